#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/performance.md are rows of bench/results, and its charts are drawn from there.

usage: charts.py check TREE     say which row of the page stands in no summary that its section names; exit 1 then
       charts.py draw TREE      draw docs/performance/*.svg (needs gnuplot)
"""
import os
import re
import subprocess
import sys

PAGE = "docs/performance.md"
GPUS = "bench/results/0.3-h200.md"
BEFORE = "bench/results/0.2-h200.md" # attention beside messages by copy engines
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def read(tree, path):
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        return file.read()


def rows(text):
    """The cells of each row of figures in Markdown tables."""
    text = re.sub(r"^\| .*\n(?=\|---)", "", text, flags=re.M)  # headings
    lines = [line for line in text.split("\n") if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in lines]
    return [cells for cells in found if any(re.match(r"\d", cell) for cell in cells[1:])]


def within(cells, row):
    """Are these cells among the row's, in its order?"""
    rest = iter(row)
    return all(cell in rest for cell in cells)


def strangers(tree):
    """(heading, row) of the page's rows that no summary has which their section names; and how many rows there are."""
    lost, count = [], 0
    for section in re.split(r"^## ", read(tree, PAGE), flags=re.M)[1:]:
        names = re.findall(r"\.\./(bench/results/[\w.-]+\.md)", section)
        known = [row for name in names for row in rows(read(tree, name))]
        for cells in rows(section):
            count += 1
            if not any(within(cells, row) for row in known):
                lost.append((section.split("\n")[0], " | ".join(cells)))
    return lost, count


def table(text, heading):
    """{column: cell} of each row of the first table below this heading."""
    lines = text[text.index("\n## %s" % heading) + 1:].split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("| "))
    names = [cell.strip() for cell in lines[start].strip("|").split("|")]
    found = []
    for line in lines[start + 2:]:
        if not line.startswith("| "):
            return found
        found.append(list(zip(names, [cell.strip() for cell in line.strip("|").split("|")])))
    return found


def size(words):
    number, unit = words.split()
    return int(number) * UNITS[unit]


def gnuplot(tree, name, script):
    head = ["set terminal svg noenhanced size 900,520 font 'sans,13' background rgb 'white'",
            "set output '%s'" % os.path.join(tree, "docs/performance", name + ".svg"), "set grid",
            "set key outside bottom center horizontal"]
    subprocess.run(["gnuplot"], input="\n".join(head + script).encode(), check=True)


def draw_bandwidth(tree):
    points = [(size(row[0][1]), [float(cell) for _, cell in row[1:5]]) for row in table(read(tree, GPUS), "Send and receive")]
    curves = [("libpickle, no kernels", [(n, f[1]) for n, f in points]), ("NCCL 2.28", [(n, n / f[3] / 1e3) for n, f in points]),
              ("bare copy", [(n, f[2]) for n, f in points])]
    script = ["set title 'One GPU to another, 2 x H200, NVLink, 2026-11'", "set ylabel 'GB/s'", "set logscale x 2",
              "set xrange [3000:1.5e9]", "set yrange [0:*]", "set xtics (%s)" % ", ".join("'%s' %d" % (row[0][1], size(row[0][1]))
                                                              for row in table(read(tree, GPUS), "Send and receive"))]
    for i, (_, data) in enumerate(curves):
        script += ["$c%d << END" % i] + ["%g %g" % point for point in data] + ["END"]
    gnuplot(tree, "bandwidth", script + ["plot " + ", ".join("$c%d with linespoints lw 2 pt %d title '%s'" % (i, 5 + i, name)
                                                             for i, (name, _) in enumerate(curves))])


def draw_beside(tree):
    beside = [dict(row) for row in table(read(tree, BEFORE), "Computing and messages") if "1 GiB" in row[0][1] and "allreduce" not in row[0][1]]
    beside += [dict(row) for row in table(read(tree, GPUS), "Computing and messages")]
    script = ["set title 'Attention and messages of 1 GiB at the same time, H200, 2026-11'", "set style data histograms",
              "set style fill solid 0.8", "set yrange [0:1.1]", "set ylabel 'beside / alone'", "$d << END"]
    script += ['"%s, %s" %s %g' % (row["messages"].split()[0], row["library"], row["cycles"],
                                   float(row["GB/s beside"]) / float(row["GB/s alone"])) for row in beside] + ["END"]
    gnuplot(tree, "beside", script + ["set xtics rotate by -20", "plot $d using 2:xtic(1) title 'cycles that attention keeps', "
                                      "$d using 3 title 'rate that messages keep'"])


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("draw", "check"):
        sys.exit(__doc__)
    if sys.argv[1] == "draw":
        draw_bandwidth(sys.argv[2])
        draw_beside(sys.argv[2])
        return
    lost, count = strangers(sys.argv[2])
    for heading, row in lost:
        print("%s: %s: not in a summary that the section names: %s" % (PAGE, heading, row))
    print("%s: %d rows, %d not in bench/results" % (PAGE, count, len(lost)))
    sys.exit(1 if lost or count < 20 else 0)


main()
