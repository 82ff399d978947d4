# SPDX-License-Identifier: Apache-2.0
"""The tables of the studies, from what measure.py found."""
import json
import os
import statistics

from results import Chart, Table, text_of

MIB = 1 << 20
LIMIT = 1.01
KEPT = "frameworks-rows.jsonl"
NO_GPU = "no GPU: neither copy engines nor GPU memory"
COLUMNS = [("row", "row"), ("p2p", "p2p"), ("reference_ms", "%s ms"), ("pickle_ms", "libpickle ms"), ("ratio", "ratio"),
           ("low", "from"), ("high", "to"), ("turns", "turns"), ("reference_rate", "%s 1/s"), ("pickle_rate", "libpickle 1/s"),
           ("unit", "of"), ("speed_up", "speed-up"), ("mfu", "MFU %%"), ("reference_share", "%s comm. %%"),
           ("pickle_share", "comm. %%"), ("predicted_ms", "predicted ms"), ("error", "error %%"), ("difference", "differ"),
           ("copied", "by copy engine"), ("allocated_mib", "torch MiB"), ("outside_mib", "beside it MiB")]
THIRD = [("row", "row"), ("reference_ms", "%s ms"), ("pickle_ms", "libpickle ms"), ("none_ms", "PK_SM_NONE ms"),
         ("ratio", "NONE / default"), ("low", "from"), ("high", "to"), ("of_reference", "NONE / %s"), ("of_low", "from"),
         ("of_high", "to"), ("per_clock", "NONE / default per clock"), ("mhz", "MHz"), ("none_mhz", "NONE MHz"),
         ("turns", "turns"), ("difference", "differ")]


def of_study(study, title, options):
    name = "NCCL" if options.cuda else "Gloo"
    columns = THIRD if study == "no-kernels" else COLUMNS
    columns = [(key, heading % ((name,) if "%s" in heading else ())) for key, heading in columns]
    return Table("frameworks-" + study, "%s: %d ranks, libpickle beside %s" % (title, options.ranks, name), columns,
                 ["ratio: time over libpickle / time over %s in the same turn, geometric mean and 95 %% interval" % name])


def percent(one, whole):
    """Of a step, what it takes more than without communication; below 0 where that was slower, by chance."""
    return 100 * (1 - one / whole)


def add(table, row, found, options):
    if found.refused is not None:
        table.add(reason=found.refused, row=row.name)
    elif row.third:
        add_third(table, row, found)
    else:
        add_pair(table, row, found, options)
    keep(table.folder, row, found)


def add_pair(table, row, found, options):
    ours, theirs = found.median("pickle"), found.median("reference")
    built = found.built["pickle"][0]
    ratio, low, high = found.ratio("pickle")
    single = found.part("pickle", "single") / built["parts"]["single_samples"]
    last = found.last["pickle"]
    notes = found.notes + ([NO_GPU] if not options.cuda else [])
    table.add(
        reason="; ".join(notes), row="%s%s" % (row.name, " (%s)" % built["note"] if built["note"] else ""),
        p2p=("on" if row.p2p else "off") if options.cuda else None,
        reference_ms=theirs * 1e3, pickle_ms=ours * 1e3, ratio=ratio, low=low, high=high, turns=len(found.times["pickle"]),
        reference_rate=built["samples"] / theirs, pickle_rate=built["samples"] / ours, unit=built["unit"],
        speed_up=single * built["samples"] / ours, mfu=100 * built["flops"] / ours / options.ranks / found.peak,
        reference_share=percent(found.part("reference", "alone"), theirs),
        pickle_share=percent(found.part("pickle", "alone"), ours),
        predicted_ms=found.predicted and found.predicted * 1e3, error=found.predicted and 100 * (found.predicted / ours - 1),
        difference=found.difference(), copied=found.copied,
        allocated_mib=max(one["allocated"] for one in last) / MIB if options.cuda else None,
        outside_mib=max(one["outside"] for one in last) / MIB if options.cuda else None)


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None


def add_third(table, row, found):
    ratio, low, high = found.ratio("none", "pickle")
    of_reference, of_low, of_high = found.ratio("none")
    mhz, none_mhz = mean(found.clocks["pickle"]), mean(found.clocks["none"])
    notes = found.notes + ([] if mhz and none_mhz else ["no clock seen (nvidia-smi)"])
    table.add(reason="; ".join(notes), row=row.name, reference_ms=found.median("reference") * 1e3,
              pickle_ms=found.median("pickle") * 1e3, none_ms=found.median("none") * 1e3, ratio=ratio, low=low, high=high,
              of_reference=of_reference, of_low=of_low, of_high=of_high, mhz=mhz, none_mhz=none_mhz,
              per_clock=ratio * none_mhz / mhz if mhz and none_mhz else None, turns=len(found.times["none"]),
              difference=found.difference())


def keep(folder, row, found):
    """All that was measured of a row, for who wants more than the table."""
    kept = {"study": row.study, "row": row.name, "p2p": row.p2p, "arguments": row.arguments, "seconds": found.times,
            "mhz": found.clocks, "built": found.built, "predicted": found.predicted, "copies": found.copies,
            "refused": found.refused}
    with open(os.path.join(folder, KEPT), "a", encoding="utf-8") as file:
        file.write(json.dumps(kept) + "\n")


def memory(started):
    """What each set of ranks took of GPU memory, by cuMemGetInfo over init and the first operations: the most of any rank."""
    table = Table("frameworks-memory", "GPU memory that the library takes (MiB)",
                  [("library", "library"), ("p2p", "p2p"), ("init", "after init"), ("first_use", "after first use"),
                   ("ratio", "of the other's")],
                  ["first use: an operation of each kind, 64 MiB a rank; the most of any rank"])
    names = {"reference": "NCCL", "pickle": "libpickle", "none": "libpickle, PK_SM_NONE"}
    most = {(name, p2p): max(said["first_use"] for said in memory) / MIB for name, p2p, _, memory in reversed(started)}
    for name, p2p, about, memory in started:
        theirs = most.get(("reference", p2p))
        used = max(said["first_use"] for said in memory) / MIB
        table.add(reason="" if theirs else "nothing to compare with",
                  library="%s %s" % (names[name], about["version"] if name == "reference" else ""),
                  p2p="on" if p2p else "off", init=max(said["init"] for said in memory) / MIB, first_use=used,
                  ratio=used / theirs if theirs else None)
    return table


def line(table, row):
    """One row as it is printed while others are to come."""
    cells = ["%s %s" % (heading, text_of(row[key])) for key, heading in table.columns if row[key] is not None]
    return "  " + ", ".join(cells) + (" (%s)" % row["reason"] if row["reason"] else "")


def summary(shown):
    """Of all studies: how far predictions are off, and where libpickle is slower for certain."""
    rows = [row for table in shown for row in table.rows if row.get("ratio") is not None and "none_ms" not in row]
    errors = [abs(row["error"]) for row in rows if row.get("error") is not None]
    slower = ["%s%s %.3f [%.3f, %.3f]" % (row["row"], " without peer-to-peer" if row.get("p2p") == "off" else "", row["ratio"],
                                         row["low"], row["high"])
              for row in rows if row["low"] > LIMIT]
    lines = ["rows whose interval lies above %.2f: %s" % (LIMIT, "; ".join(slower) or "none")]
    if errors:
        lines.append("pickle-sim's prediction: median error %.1f %% of %d rows" % (statistics.median(errors), len(errors)))
    return lines


def chart(table):
    """Time over libpickle to the other's, a bar a row."""
    if "ratio" not in dict(table.columns) or not table.rows or "row" not in table.rows[0]:
        return
    table.chart = Chart(table.title, "", "time / the other's", bars=True)
    for p2p in ("on", "off"):
        points = [(row["row"], row["ratio"]) for row in table.rows if row["ratio"] is not None
                  and (row.get("p2p") or "on") == p2p]
        if points:
            table.chart.add("libpickle" if p2p == "on" else "libpickle, without peer-to-peer", points)
