#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of what `channels waiting` and `channels sequences` wrote.

waiting:   for every setting and waiting operation the smallest n at which a probe stands still: "n" where all 8 do, "n:k/m" where
           k of 8 do first and all 8 from m on, "-" for never, "*" where fewer stand still at a higher n
sequences: in how many sequences copies stood still that nothing kept, and whether as many other streams as there are copy
           connections had unfinished copies when those were queued

usage: tables.py CSV...
"""
import csv
import sys

PROBES = ["push", "pull", "H2D", "D2H", "D2D", "kernel", "write", "chain"]
SETTING = ["mode", "mc", "mcc", "size", "fresh", "process"]
STREAMS = 16


def stuck_of(row):
    return 8 - int(row["done_of_8"])


def cell(rows, probe):
    """rows: {(n, probe): row}"""
    stuck = {n: stuck_of(row) for (n, name), row in sorted(rows.items()) if name == probe}
    some = [n for n in stuck if stuck[n] > 0]
    if not stuck:
        return "?"
    if not some:
        return "-"
    first = some[0]
    every = [n for n in stuck if stuck[n] == 8]
    text = str(first) if stuck[first] == 8 else "%d:%d/%s" % (first, stuck[first], every[0] if every else "-")
    return text + ("*" if any(stuck[n] < stuck[first] for n in stuck if n > first) else "")


def print_setting(setting, cases):
    print("\n%s, connections %s, copy connections %s, %s bytes, fresh %s: probes in the %s process" % setting)
    if setting[-1] == "other":
        rows = [row for case in cases.values() for row in case.values()]
        print("%d of %d rows with a probe that stands still" % (sum(stuck_of(row) > 0 for row in rows), len(rows)))
        return
    print("%-7s%-10s%-8s" % ("wait", "form", "kind") + "".join("%9s" % probe for probe in PROBES))
    for case, rows in cases.items():
        print("%-7s%-10s%-8s" % case + "".join("%9s" % cell(rows, probe) for probe in PROBES))


def waiting(rows):
    settings = {}
    for row in rows:
        cases = settings.setdefault(tuple(row[name] for name in SETTING), {})
        cases.setdefault((row["wait"], row["form"], row["kind"]), {})[int(row["n"]), row["probe"]] = row
    for setting, cases in settings.items():
        print_setting(setting, cases)
    stuck = [row for row in rows if stuck_of(row) > 0]
    again = [row for row in stuck if row["done_later"] != "-1"]
    print("\n%d rows, %d with a probe that stands still, %d of them looked at again after 300 ms, %d of these changed" %
          (len(rows), len(stuck), len(again), sum(row["done_later"] != row["done_of_8"] for row in again)))


def others_busy(sequence):
    """{stream that stands still at the end although nothing keeps it: the most other streams with unfinished copies when a copy
    was queued into it, since it was idle last}"""
    *steps, end = sequence
    idle, waiting_streams = int(end["idle"], 16), int(end["stream"])
    used, most, before = 0, {}, 0xffff
    for step in steps:
        stream = int(step["stream"])
        used |= (step["op"] != "W") << stream
        if step["op"] != "R":
            others = bin(~before & 0xffff & ~(1 << stream)).count("1")
            most[stream] = others if before >> stream & 1 else max(most.get(stream, 0), others)
        before = int(step["idle"], 16)
    return {stream: most[stream] for stream in range(STREAMS) if (used & ~waiting_streams & ~idle) >> stream & 1}


def by_setting(rows):
    """{setting: [sequence]}; a sequence ends with its row E"""
    settings, sequence = {}, []
    for row in rows:
        sequence.append(row)
        if row["op"] == "E":
            settings.setdefault((row["mode"], row["mc"], row["mcc"]), []).append(sequence)
            sequence = []
    return settings


def sequences(rows):
    for setting, all_of_them in by_setting(rows).items():
        stuck = [found for found in map(others_busy, all_of_them) if found]
        others = [count for found in stuck for count in found.values()]
        early = sum(count < (int(setting[2]) or 4) for count in others)
        print("\n%s, connections %s, copy connections %s:" % setting)
        print("%d sequences, in %d of them copies stood still, in %d streams; %d of these were queued while fewer other "
              "streams than copy connections had unfinished copies" % (len(all_of_them), len(stuck), len(others), early))


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        (waiting if rows and "probe" in rows[0] else sequences)(rows)


main()
