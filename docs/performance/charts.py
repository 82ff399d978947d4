#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/performance.md and its charts, from the files of bench/results and nothing else.

usage: charts.py write TREE     fill in the tables, draw docs/performance/*.svg (needs gnuplot)
       charts.py check TREE     say where a table is not what the results say; exit 1 then
"""
import csv
import os
import re
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/experiments"))
sys.dont_write_bytecode = True
from words import sentences  # noqa: E402  pylint: disable=wrong-import-position

GPU = "bench/results/2026-11-21-h200-collectives.txt"
HOST = "bench/results/2026-11-21-host-compare-idle.txt"
OVERLAP = "bench/results/2026-11-21-host-overlap.txt"
PRODUCTS = "bench/results/2026-11-21-h200-beside.csv"
RDMA = "bench/results/2026-11-23-rdma-vm-2.csv"
NET = "bench/results/2026-11-26-net-table.txt"
SWEEP = "bench/results/2026-11-26-tcp-sweep-%s.csv"
EXPERIMENTS = "bench/results/2026-11-21-h200-experiments"  # 5 and 6
TRANSFERS = "bench/results/2026-11-23-h200-experiments"
SIMULATED = "bench/results/2026-11-21-sim-fit.txt"
PAGE = "docs/performance.md"


def sections(tree, path):
    """[(command, [row])] of pickle-perf's tables, in order; a row is {column: number}."""
    found, rows = [], None
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        for line in file:
            if line.startswith("### "):
                rows = []
                found.append((line.split(": ", 1)[1].strip(), rows))
            fields = line.split()
            if rows is None or len(fields) < 13 or not fields[0].isdigit():
                continue
            row = dict(zip(("bytes", "count", "type", "redop", "root", "us", "p99", "min", "max", "algbw", "busbw", "wrong"), fields))
            rest = [float(field) for field in fields[12:]]
            if len(rest) == 4:
                row.update(bare=rest[0], to_bare=rest[1])
            if len(rest) >= 2:
                row.update(nccl=rest[-2], ratio=rest[-1])
            found[-1][1].append({key: float(value) if key not in ("type", "redop", "root") else value for key, value in row.items()})
    return found


def section(tree, path, *words):
    """Rows of the one table whose command has all these words, and none of those that begin with !."""
    hits = [rows for command, rows in sections(tree, path)
            if all((word[1:] not in command.split()) if word[0] == "!" else word in command for word in words)]
    if len(hits) != 1:
        sys.exit("%s: %d tables with %s" % (path, len(hits), words))
    return hits[0]


def compared(tree, ranks):
    """{operation: [(bytes, {world: us})]} of pickle-compare's table for so many ranks."""
    found, here, worlds = {}, False, []
    with open(os.path.join(tree, HOST), encoding="utf-8") as file:
        for line in file:
            match = re.match(r"# (\d+) ranks a world", line)
            if match:
                here = int(match.group(1)) == ranks
            if line.startswith("# operation"):
                worlds = [w for w in line.split("|")[0].split()[3:] if w != "ratio"]
            fields = line.split("|")[0].replace("~", " ").split()
            if here and line.startswith("  ") and len(fields) > 4 and fields[1].isdigit():
                times = [fields[2]] + fields[3::2]
                found.setdefault(fields[0], []).append((int(fields[1]), dict(zip(worlds, times))))
    return found


def size(n):
    for unit, text in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return "%g %s" % (n / unit, text)
    return "%d B" % n


def table(headings, rows):
    return ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)] + ["| " + " | ".join(row) + " |" for row in rows]


def bandwidth_table(tree):
    rows = section(tree, GPU, "sendrecv", "oneway")
    return table(["bytes", "libpickle, no kernel: GB/s", "bare copy: GB/s", "NCCL: GB/s", "NCCL's time / libpickle's"],
                 [[size(r["bytes"]), "%.1f" % r["algbw"], "%.1f" % r["bare"], "%.1f" % (r["bytes"] / r["nccl"] / 1e3), "%.2f" % r["ratio"]]
                  for r in rows])


def latency_table(tree):
    default, zero = section(tree, GPU, "pingpong", "!-z"), section(tree, GPU, "pingpong", " -z ")
    return table(["bytes", "libpickle: µs", "without kernels: µs", "NCCL: µs", "NCCL's time / libpickle's"],
                 [[size(d["bytes"]), "%.2f" % d["us"], "%.2f" % z["us"], "%.2f" % d["nccl"], "%.2f" % d["ratio"]] for d, z in zip(default, zero)])


def gpu_operations(tree):
    """[(name, rows)]: those on 4 GPUs, the ones of the chart."""
    return [("allreduce", section(tree, GPU, "-n 4", "allreduce")),
            ("allgather", section(tree, GPU, "-n 4", "allgather", "!-z")),
            ("allgather, no kernels", section(tree, GPU, "-n 4", "allgather", "-i -z")),
            ("reduce_scatter", section(tree, GPU, "-n 4", "reduce_scatter")),
            ("alltoall", section(tree, GPU, "-n 4", "alltoall")),
            ("broadcast", section(tree, GPU, "-n 4", "broadcast"))]


def collectives_table(tree):
    lines = []
    for name, rows in gpu_operations(tree):
        for r in rows:
            lines.append([name, size(r["bytes"]), "%.2f" % r["us"], "%.2f" % r["nccl"], "%.2f" % r["ratio"], "%.1f" % r["busbw"]])
    return table(["4 GPUs", "bytes", "libpickle: µs", "NCCL: µs", "NCCL's time / libpickle's", "libpickle's bus GB/s"], lines)


def host_operations(tree, ranks):
    """{operation: [(bytes, us, us of the best of Open MPI's ways, ratio)]}"""
    found = {}
    for op, rows in compared(tree, ranks).items():
        for n, times in rows:
            best = min(float(times[w]) for w in ("ompi-cma", "ompi-copy", "ompi-ucx"))
            found.setdefault(op, []).append((n, times["pickle"], best, best / float(times["pickle"])))
    return found


def host_table(tree):
    lines = []
    for op, rows in host_operations(tree, 2).items():
        for n, us, best, ratio in rows:
            if op != "barrier" and n in (8, 4096, 262144, 16777216):
                lines.append([op, size(n), us, "%.2f" % best, "%.2f" % ratio])
    return table(["2 ranks", "bytes", "libpickle: µs", "best of Open MPI's ways: µs", "Open MPI's time / libpickle's"], lines)


def overlap_table(tree):
    """Rows of attention_overlap: library, four times in ms a layer, what was hidden, and more."""
    lines = []
    with open(os.path.join(tree, OVERLAP), encoding="utf-8") as file:
        for line in file:
            match = re.match(r"(libpickle|Open MPI) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) % +(\S+)", line)
            if match:
                lines.append(list(match.groups()[:5]) + [match.group(7)])
    return table(["ms a layer", "attention alone", "communication alone", "one after the other", "overlapped", "attention / overlapped"], lines)


def csv_rows(tree, path):
    with open(os.path.join(tree, path), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def beside_rows(tree):
    """What pickle-beside measured: rows that have figures, attention by run_all, products of matrices earlier."""
    rows = []
    for operation, table_of in (("sendrecv", "05-beside-messages-gpu"), ("allgather", "06-beside-allgather-gpu"), ("allreduce", "06-beside-allreduce-gpu")):
        rows += [{**row, "operation": operation} for row in csv_rows(tree, "%s/%s.csv" % (EXPERIMENTS, table_of)) if row["bytes"] and int(row["bytes"]) >= 64 << 20]
    return [row for row in rows + [row for row in csv_rows(tree, PRODUCTS) if row["compute"] == "matmul"] if row["ratio"]]


def nvlink_table(tree):
    rows = csv_rows(tree, TRANSFERS + "/03-nvlink-sizes.csv")
    return table(["bytes", "libpickle: Gb/s", "NCCL: Gb/s", "bare copy: Gb/s", "libpickle / NCCL", "bare copy / NCCL"],
                 [[size(int(r["bytes"])), digits(r["pickle_gbit"], 1), digits(r["peer_gbit"], 1), digits(r["bare_gbit"], 1), digits(r["ratio"], 2),
                   "%.2f" % (float(r["bare_gbit"]) / float(r["peer_gbit"]))] for r in rows if r["ratio"]])


PEERS = {"write": ("ib_write_lat", "ib_write_bw"), "send": ("ib_send_lat", "-"), "ucx": ("UCX, am_lat", "UCX, put_bw")}


def rdma_goal(row):
    """Where there is one, and whether it is met."""
    bytes_, ratio = int(row["bytes"]), float(row["ratio"])
    if row["peer"] != "write" or (bytes_ != 8 and not 65536 <= bytes_ <= 16777216):
        return "-"
    return ("at most 1.5: " + ("met" if ratio <= 1.5 else "MISSED")) if bytes_ == 8 else "at least 0.9: " + ("met" if ratio >= 0.9 else "MISSED")


def rdma_table(tree):
    rows = sorted(csv_rows(tree, RDMA), key=lambda r: (r["figure"] != "half_round_trip_us", r["peer"] != "write", r["peer"], int(r["queue_pairs"]), int(r["bytes"])))
    return table(["bytes", "queue pairs", "figure", "libpickle", "peer", "peer's", "libpickle / peer", "goal"],
                 [[size(int(r["bytes"])), r["queue_pairs"], "half round trip, µs" if int(r["bytes"]) == 8 else "MiB/s", r["libpickle"],
                   PEERS[r["peer"]][int(r["bytes"]) != 8], r["theirs"], r["ratio"], rdma_goal(r)] for r in rows])


def net_rows(tree):
    """(network, operation, bytes, words of one part each: us, Open MPI, Gloo, the faster bare process) of net-compare's verdicts."""
    network = None
    with open(os.path.join(tree, NET), encoding="utf-8") as file:
        for line in file:
            if re.match(r"\d+\. ", line):  # other headings are of excerpts
                began = re.search(r"net-compare -s \d+ (loopback|veth)", line)
                network = began.group(1) if began else None
            parts = [part.split() for part in line.split("|")]
            if network is not None and len(parts) == 4 and len(parts[0]) == 4 and parts[0][1].isdigit():
                yield network, parts[0][0], int(parts[0][1]), [parts[0][3]] + parts[1:]


def net_table(tree):
    def peer(words):
        return [words[0], words[1].rstrip("~"), words[2]] if len(words) == 4 else ["-"] * 3

    return table(["network", "operation", "bytes", "libpickle, µs", "Open MPI, µs", "ratio", "goal", "Gloo, µs", "ratio", "goal", "bare process, µs", "libpickle / bare"],
                 [[network, operation, size(count), us, *peer(mpi), *peer(gloo), bare[0], "%.2f" % (float(us) / float(bare[0]))]
                  for network, operation, count, (us, mpi, gloo, bare) in net_rows(tree)])


def swept(tree, network, key):
    """{(sockets, chunk bytes or window): GB/s} in the middle of what was measured with the other one; of windows those from 4 on."""
    found = {}
    for row in csv_rows(tree, SWEEP % network):
        if key == "window" or int(row["window"]) >= 4:
            found.setdefault((int(row["sockets"]), int(row[key])), []).append(float(row["gb_per_s"]))
    return {place: statistics.median(values) for place, values in found.items()}


def sweep_table(tree):
    rows = []
    for network in ("loopback", "veth"):
        middle = swept(tree, network, "chunk_bytes")
        chunks = sorted({chunk for _, chunk in middle})
        rows += [[network, str(sockets)] + ["%.1f" % middle[sockets, chunk] for chunk in chunks] for sockets in sorted({k for k, _ in middle})]
    return table(["network", "connections"] + ["chunks of " + size(chunk) for chunk in chunks], rows)


def draw_sweep(tree):
    script = ["set terminal svg noenhanced size 1000,760 font 'sans,12' background rgb 'white'", "set output '%s'" % os.path.join(tree, "docs/performance", "tcp-sweep.svg"),
              "set logscale x 2", "set grid", "set yrange [0:9]", "set ylabel 'GB/s'", "set key bottom right",
              "set multiplot layout 2,2 title 'TCP within a machine, 2 ranks, 16 MiB to and fro, 2026-11-26'"]
    for network in ("loopback", "veth"):
        for key, label in (("chunk_bytes", "chunk (windows of 4 and more)"), ("window", "window (all chunks)")):
            middle = swept(tree, network, key)
            places = sorted({place for _, place in middle})
            script += ["set xlabel '%s, %s'" % (network, label), "set xrange [%g:%g]" % (places[0] / 1.15, places[-1] * 1.15),
                       "set xtics (%s)" % ", ".join("'%s' %d" % (size(n) if key == "chunk_bytes" else n, n) for n in places)]
            plots = []
            for i, sockets in enumerate(sorted({k for k, _ in middle})):
                name = "$%s_%s_%d" % (network, key, sockets)
                script += [name + " << END"] + ["%g %g" % (n, middle[sockets, n]) for n in places] + ["END"]
                plots.append("%s with linespoints lw 2 pt %d ps 0.6 title '%d connection%s'" % (name, 5 + i, sockets, "s" if sockets > 1 else ""))
            script.append("plot " + ", ".join(plots))
    subprocess.run(["gnuplot"], input="\n".join(script + ["unset multiplot"]).encode(), check=True)


def digits(text, n):
    return "%.*f" % (n, float(text)) if text else "-"


def numbers(row):
    words = ("compute", "operation", "library", "covered", "reason")
    return {key: value if key in words else float(value) if value else None for key, value in row.items()}


def beside_words(tree):
    """A sentence for each kind of computing and operation, of messages of 1 GiB."""
    found = []
    for sentence in sentences([{**row, "bytes": int(row["bytes"])} for row in map(numbers, beside_rows(tree))], 1 << 30):
        found.append("- " + sentence)
    return found


def beside_table(tree):
    return table(["computing, messages", "library", "per clock", "time", "MHz", "W", "GB/s alone", "GB/s beside", "lost, ms/GB", "covered", "all SMs held: ms"],
                 [["%s, %s %s" % (r["compute"], r["operation"], size(int(r["bytes"]))), r["library"], digits(r["ratio_per_clock"], 3),
                   digits(r["ratio"], 3), "%s → %s" % (digits(r["mhz_alone"], 0), digits(r["mhz_beside"], 0)),
                   "%s → %s" % (digits(r["watts_alone"], 0), digits(r["watts_beside"], 0)), digits(r["rate_alone_gbps"], 1),
                   digits(r["rate_beside_gbps"], 1), digits(r["lost_ms_per_gb"], 3), r["covered"],
                   digits(r["held_ms"], 1) if r["held_ms"] else "not done"] for r in beside_rows(tree)])


def draw_beside(tree):
    """Two panels of bars, one a library: what computing keeps per clock, and what the messages keep of their rate."""
    rows = beside_rows(tree)
    names = list(dict.fromkeys("%s\\n%s\\n%s" % (r["compute"], r["operation"], size(int(r["bytes"]))) for r in rows))
    script = ["set terminal svg size 1000,760 font 'sans,12' background rgb 'white'",
              "set output '%s'" % os.path.join(tree, "docs/performance", "beside.svg"),
              "set style data histograms", "set style histogram clustered gap 1", "set style fill solid 0.9 border -1", "set grid y", "set lmargin 12", "set rmargin 3", "set bmargin 5",
              "set multiplot layout 2,1 title '2 x H200: computing and messages at the same time, 2026-11-21'"]
    for key, title, more in (("ratio_per_clock", "computing: cycles alone / beside", "set yrange [0:1.19]"),
                             ("rate_beside_gbps", "messages meanwhile: GB/s that leave each GPU", "set yrange [0:*]")):
        cells = {(r["library"], "%s\\n%s\\n%s" % (r["compute"], r["operation"], size(int(r["bytes"])))): r[key] for r in rows}
        name = "$" + key
        script += [name + " << END"] + ['"%s" %s %s' % (n, cells.get(("libpickle", n), "NaN"), cells.get(("NCCL", n), "NaN")) for n in names] + ["END"]
        script += ["set ylabel '%s'" % title, more, "set key %s" % ("off" if key == "rate_beside_gbps" else "top left horizontal"),
                   "plot %s using 2:xtic(1) title 'libpickle' lc rgb '#c0392b', '' using 3 title 'NCCL' lc rgb '#6c3483'" % name]
    subprocess.run(["gnuplot"], input="\n".join(script + ["unset multiplot"]).encode(), check=True)


def simulator_table(tree):
    """What pickle-sim said of rows that its fit did not see."""
    with open(os.path.join(tree, SIMULATED), encoding="utf-8") as file:
        text = re.sub(r"\s+", " ", file.read())
    ranks = re.findall(r"(\d ranks|all) \d+ rows (\d+) rows [\d.]+ % [\d.]+ % ([\d.]+) %", text)
    shm = "shared memory, 2 cores"
    rows = [[shm, "every third size, %s" % who if who in ("2 ranks", "4 ranks") else "every size, 3 ranks" if who != "all" else "together", count, "%s %%" % error]
            for who, count, error in ranks]
    for machine, what, pattern in (
            ("NVLink, 2 x H200", "every third size", r"Held out every third size: (\d+) rows, ([\d.]+) %"),
            ("NVLink, 2 x H200", "sizes that no sweep had, later that day", r"not fitted anew: (\d+) rows, ([\d.]+) %"),
            ("NVLink, 4 x H200", "every size; the fit saw 2 GPUs", r"4 x H200, (\d+) rows .*?: ([\d.]+) %"),
            ("TCP over loopback, 2 ranks on 2 cores", "every third size", r"held out (\d+) rows ([\d.]+) %")):
        count, error = re.search(pattern, text).groups()
        rows.append([machine, what, count, "%s %%" % error])
    return table(["machine", "held out", "rows", "median error"], rows)


TABLES = {"net": net_table, "sweep": sweep_table, "rdma": rdma_table, "overlap": overlap_table, "beside": beside_table, "beside-words": beside_words, "experiment-3": nvlink_table, "bandwidth": bandwidth_table, "latency": latency_table, "collectives": collectives_table, "host": host_table, "simulator": simulator_table}


def filled(tree, text):
    for name, make in TABLES.items():
        pattern = re.compile(r"(<!-- begin %s -->\n).*?(<!-- end %s -->)" % (name, name), re.S)
        if not pattern.search(text):
            sys.exit("%s: no place for the table '%s'" % (PAGE, name))
        text = pattern.sub(lambda match: match.group(1) + "\n".join(make(tree)) + "\n" + match.group(2), text)
    return text


def gnuplot(tree, name, title, ylabel, curves, more=""):
    """curves: [(title, [(bytes, y)])]"""
    edges = [x for _, points in curves for x, _ in points]
    script = ["set terminal svg noenhanced size 900,520 font 'sans,13' background rgb 'white'", "set output '%s'" % os.path.join(tree, "docs/performance", name + ".svg"),
              "set title '%s'" % title, "set xlabel 'bytes'", "set ylabel '%s'" % ylabel, "set logscale x 2", "set xrange [%g:%g]" % (min(edges) / 1.15, max(edges) * 1.15), "set grid", "set key outside bottom center horizontal",
              "set xtics (%s)" % ", ".join("'%s' %d" % (size(4 ** i), 4 ** i) for i in range(21)), more]
    plots = []
    for i, (label, points) in enumerate(curves):
        script += ["$c%d << END" % i] + ["%g %g" % point for point in points] + ["END"]
        plots.append("$c%d with linespoints lw 2 pt %d ps 0.6 title '%s'" % (i, 5 + i, label))
    script.append("plot " + ", ".join(plots) + (", 1 with lines dt 2 lc rgb 'black' notitle" if "ratio" in name else ""))
    subprocess.run(["gnuplot"], input="\n".join(script).encode(), check=True)


def draw(tree):
    rows = section(tree, GPU, "sendrecv", "oneway")
    both = section(tree, GPU, "sendrecv", "bidir")
    gnuplot(tree, "bandwidth", "One GPU to another, 2 x H200, NVLink, libpickle without kernels, 2026-11-21", "GB/s one way",
            [("libpickle", [(r["bytes"], r["algbw"]) for r in rows]), ("NCCL 2.28", [(r["bytes"], r["bytes"] / r["nccl"] / 1e3) for r in rows]),
             ("bare copy", [(r["bytes"], r["bare"]) for r in rows]), ("libpickle, both ways", [(r["bytes"], r["algbw"]) for r in both]),
             ("NCCL, both ways", [(r["bytes"], r["bytes"] / r["nccl"] / 1e3) for r in both])], "set yrange [0:*]")
    gnuplot(tree, "ratio-collectives", "Collectives on 4 x H200, 2026-11-21: above 1 libpickle is faster than NCCL 2.28", "time of NCCL / time of libpickle",
            [(name, [(r["bytes"], r["ratio"]) for r in rows]) for name, rows in gpu_operations(tree)], "set yrange [0:2]")
    draw_beside(tree)
    draw_sweep(tree)
    operations = host_operations(tree, 2)
    gnuplot(tree, "ratio-host", "Host memory, 2 ranks, 2026-11-21: above 1 libpickle is faster than the best of Open MPI", "time of Open MPI / time of libpickle",
            [(op, [(n, ratio) for n, _, _, ratio in rows]) for op, rows in operations.items() if op != "barrier"], "set logscale y 2; set yrange [0.5:8]")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    tree = sys.argv[2]
    with open(os.path.join(tree, PAGE), encoding="utf-8") as file:
        text = file.read()
    wanted = filled(tree, text)
    if sys.argv[1] == "check":
        same = wanted == text
        print("%s: its tables are %swhat bench/results says" % (PAGE, "" if same else "NOT "))
        sys.exit(0 if same else 1)
    with open(os.path.join(tree, PAGE), "w", encoding="utf-8") as file:
        file.write(wanted)
    draw(tree)


main()
