# SPDX-License-Identifier: Apache-2.0
"""Tables of results: printed, written as text, CSV and JSON, and drawn by gnuplot (SVG and PNG)."""
import csv
import json
import os
import shutil
import subprocess

COLOURS = {"libpickle": "#c0392b", "Open MPI": "#1b4f72", "Gloo": "#1e8449", "NCCL": "#6c3483"}
OTHERS = ["#e59866", "#2e86c1", "#82e0aa", "#af7ac5", "#b7950b", "#566573"]
TYPES = [7, 9, 5, 11, 13, 4, 6, 8]


def text_of(value):
    """A number with as many digits as say something."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if value == int(value) and abs(value) >= 100:
        return "%d" % value
    return "%.0f" % value if abs(value) >= 1000 else "%.4g" % value


class Table:
    """Rows are dictionaries by column. A row whose cells are not all filled says why in `reason`. Each is in the files as soon as it is added."""
    folder = None  # of the files of all tables; None: not before write
    about = ()

    def __init__(self, name, title, columns, notes=()):
        self.name = name        # of the files
        self.title = title
        self.columns = columns  # [(key, heading)]
        self.notes = list(notes)
        self.rows = []
        self.chart = None

    def add(self, reason="", **cells):
        self.rows.append({**{key: cells.get(key) for key, _ in self.columns}, "reason": reason})
        if self.folder is not None:
            self.write_rows()

    def filled(self):
        return [row for row in self.rows if not row["reason"]]

    def faults(self):
        """What a reader would miss: nothing at all, or an empty cell without a reason."""
        if not self.rows:
            return ["%s: no row" % self.name]
        return ["%s: row %d has no %s and no reason" % (self.name, number, key)
                for number, row in enumerate(self.rows, 1) for key, _ in self.columns if row[key] is None and not row["reason"]]

    def text(self):
        heads = [heading for _, heading in self.columns]
        cells = [[text_of(row[key]) for key, _ in self.columns] for row in self.rows]
        widths = [max(len(line[i]) for line in [heads] + cells) for i in range(len(heads))]
        words = [any(isinstance(row[key], str) for row in self.rows) for key, _ in self.columns]
        lines = ["# " + line for line in [self.title] + self.notes]
        for line, row in zip([heads] + cells, [{"reason": ""}] + self.rows):
            padded = [cell.ljust(width) if word else cell.rjust(width) for cell, width, word in zip(line, widths, words)]
            lines.append(("  ".join(padded) + ("  (%s)" % row["reason"] if row["reason"] else "")).rstrip())
        return "\n".join(lines) + "\n"

    def write(self):
        self.write_rows()
        if self.chart is not None:
            self.chart.draw(os.path.join(self.folder, self.name))

    def write_rows(self):
        path = os.path.join(self.folder, self.name)
        with open(path + ".txt", "w", encoding="utf-8") as out:
            out.write("".join("# %s\n" % line for line in self.about) + self.text())
        with open(path + ".csv", "w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, [key for key, _ in self.columns] + ["reason"])
            writer.writeheader()
            writer.writerows(self.rows)
        with open(path + ".json", "w", encoding="utf-8") as out:
            json.dump({"table": self.name, "title": self.title, "notes": self.notes, "about": self.about,
                       "columns": dict(self.columns), "rows": self.rows,
                       "chart": self.chart.described() if self.chart is not None else None}, out, indent=1)
            out.write("\n")


class Chart:
    """Lines over a logarithmic x, or bars over names."""

    def __init__(self, title, x, y, bars=False, log_y=False, y_from_zero=False, bytes_x=True):
        self.title, self.x, self.y = title, x, y
        self.bars, self.log_y, self.y_from_zero, self.bytes_x = bars, log_y, y_from_zero, bytes_x
        self.series = []  # [(name, [(x, y)])]

    def described(self):
        """All that it takes to draw it elsewhere."""
        return dict(vars(self))

    @staticmethod
    def from_description(description):
        chart = Chart(description["title"], description["x"], description["y"])
        vars(chart).update(description)
        chart.series = [(name, [tuple(point) for point in points]) for name, points in description["series"]]
        return chart

    def add(self, name, points):
        points = [(x, y) for x, y in points if y is not None]
        if points:
            self.series.append((name, points))

    def style(self, number):
        name = self.series[number][0]
        family = next((known for known in COLOURS if name.startswith(known)), None)
        before = sum(1 for other, _ in self.series[:number] if family and other.startswith(family))
        colour = COLOURS[family] if family and before == 0 else OTHERS[number % len(OTHERS)]
        return "lc rgb '%s' lw %s pt %d ps 0.8" % (colour, "3" if family == "libpickle" else "2", TYPES[number % len(TYPES)])

    def settings(self):
        lines = ["set title '%s'" % quoted(self.title), "set xlabel '%s'" % quoted(self.x), "set ylabel '%s'" % quoted(self.y),
                 "set grid xtics ytics lc rgb '#cccccc' lt 1 lw 0.5",
                 "set key outside right top vertical Left reverse samplen 2 width 1", "set bmargin 6"]
        if len(self.series) == 1:
            lines.append("unset key")
        if self.log_y:
            lines.append("set logscale y")
        elif self.y_from_zero or self.bars:
            lines += ["set yrange [0:*]", "set offsets graph 0, graph 0, graph 0.08, 0"]  # the highest line is not the frame
        if self.bars:
            lines += ["set style data histogram", "set style histogram clustered gap 1", "set style fill solid 0.9 border -1",
                      "set xtics rotate by -35", "set grid noxtics", "set bmargin 9"]
        elif self.bytes_x:
            places = [x for _, points in self.series for x, _ in points]
            lines += ["set logscale x 2", "set xrange [%g:%g]" % (min(places) / 1.15, max(places) * 1.15),
                      "set xtics rotate by -30 (%s)" % ", ".join(byte_tics())]
        else:
            places = sorted({x for _, points in self.series for x, _ in points})
            lines.append("set xtics (%s)" % ", ".join("%g" % x for x in places))
            if places[-1] >= 8 * places[0] > 8:
                lines += ["set logscale x 2", "set xrange [%g:%g]" % (places[0] / 1.1, places[-1] * 1.1)]
            else:
                lines.append("set offsets 0.2, 0.2, graph 0.08, 0")
        return lines

    def bar_script(self):
        names = []
        for _, points in self.series:
            names += [x for x, _ in points if x not in names]
        lines = ["$data << EOD"]
        for name in names:
            values = [dict(points).get(name) for _, points in self.series]
            lines.append("\"%s\" %s" % (name, " ".join("NaN" if value is None else "%g" % value for value in values)))
        lines.append("EOD")
        plots = ["$data using %d:xtic(1) title '%s' %s" % (i + 2, quoted(name), self.style(i).split(" lw")[0])
                 for i, (name, _) in enumerate(self.series)]
        return lines + ["plot " + ", ".join(plots)]

    def line_script(self):
        lines, plots = [], []
        for i, (name, points) in enumerate(self.series):
            lines += ["$data%d << EOD" % i] + ["%g %g" % point for point in points] + ["EOD"]
            plots.append("$data%d using 1:2 with linespoints title '%s' %s" % (i, quoted(name), self.style(i)))
        return lines + ["plot " + ", ".join(plots)]

    def draw(self, path):
        if not self.series or shutil.which("gnuplot") is None:
            return
        for terminal, ending in (("pngcairo size 1000,640 font 'sans,12'", "png"), ("svg size 1000,640 font 'sans,12'", "svg")):
            script = ["set terminal %s" % terminal, "set output '%s.%s'" % (path, ending)] + self.settings()
            script += self.bar_script() if self.bars else self.line_script()
            subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True, timeout=60,
                           stderr=subprocess.DEVNULL)


def draw_folder(folder):
    """The charts of results that were written where gnuplot was not. Their number; None: it is not here either."""
    drawn = 0
    if shutil.which("gnuplot") is None:
        return None
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".json"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            description = json.load(file).get("chart")
        if description is not None and description["series"]:
            Chart.from_description(description).draw(os.path.join(folder, name[:-len(".json")]))
            drawn += 1
    return drawn


def byte_tics():
    """Names of sizes; gnuplot's own write KiB as kiB."""
    return ["'%d %s' %d" % (2 ** (2 * i % 10), ("B", "KiB", "MiB", "GiB", "TiB")[2 * i // 10], 4 ** i) for i in range(21)]


def quoted(text):
    return text.replace("'", "’").replace("_", " ")
