#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold that a constant which decides how fast something is stands in lib/tuning, in one of the tables there, with where its value comes from,
and nowhere else.

A constant of lib/ is a #define of a number (or of PKI_NS_PER_S or a share such as BYTES / 4; on one line or more), a value of `static const`
or `constexpr`, and a number in the code itself that is shifted by 10, 20 or 30 bits or that is slept for. Those that are no tuning stand in
tests/abi/constants.txt, each with what it is instead: see there. Nothing may join them, and what has gone must leave the list.

usage: constants.py TREE | constants.py --self-test | constants.py --list TREE    (what is not listed)
"""
import os
import re
import sys

from planted import main

LIST = "tests/abi/constants.txt"
LISTED_MAX = 324 # constants that are no tuning; may only fall
KINDS = ("wire", "layout", "limit", "failure", "given")
NUMBER = r"\(*\s*(?:\(\w+\)\s*)?\(*-?(?:\d|\.\d|UINT64_C\(|PKI_NS_PER_|[A-Za-z_]\w*\s*/\s*\d)"
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)\s+%s" % NUMBER)
CONSTANT = re.compile(r"^\s*(?:static\s+)?(?:static const|const static|constexpr|static constexpr)\s+[\w\s]+?\b(\w+)\s*=\s*%s" % NUMBER)
IN_CODE = re.compile(r"(?<![\w.])(?<!>> )\d+[uUlL]*\)?\s*<<\s*(?:10|20|30)\b|\b(?:usleep|__nanosleep)\(\d|\.tv_nsec = \d{2,}")


ROWS = re.compile(r"/\*.*?\*/|^(PART|VALUE|FIXED)\(([^\n]*)\)$", re.S | re.M)
ORIGIN = re.compile(r"\b(?:[Cc]hosen|[Mm]easured|[Cc]omputed|[Gg]iven by|[Aa]s the reference|for tests)\b|docs/design/\d{4}|bench/results/")


def without_origin(text):
    """(line, name) of each row of a table whose comment, or that of the rows before it, does not say where its value comes from."""
    comment = ""
    for match in ROWS.finditer(text):
        if match.group(1) is None:
            comment = match.group()
        elif match.group(1) == "PART":
            comment = ""
        elif not ORIGIN.search(comment):
            words = match.group(2).split(", ")
            yield text.count("\n", 0, match.start()) + 1, "%s.%s" % (words[0], words[2 if match.group(1) == "VALUE" else 1])


def tables(tree):
    folder = os.path.join(tree, "lib/tuning")
    return ["lib/tuning/" + name for name in sorted(os.listdir(folder)) if name.startswith("table")] if os.path.isdir(folder) else []


def plain(text):
    """Without comments and strings, line by line as it was, but for lines that a backslash joins: they stand where the first one did."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"(?:[^\n]*\\\n)+[^\n]*", lambda match: match.group().replace("\\\n", " ") + "\n" * match.group().count("\n"), text)


def constants(text):
    """(line, name) of each; a number in the code itself is called by what stands there, without blanks."""
    for number, line in enumerate(plain(text).split("\n"), 1):
        line = re.sub(r"//.*", "", line)
        found = DEFINE.match(line) or CONSTANT.match(line)
        if found:
            yield number, found.group(1)
            continue
        for match in IN_CODE.finditer(line):
            yield number, re.sub(r"\s", "", match.group())


def sources(tree):
    for folder, _, names in os.walk(os.path.join(tree, "lib")):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), tree)
            if name.endswith((".c", ".h", ".cu", ".cuh")) and not path.startswith("lib/tuning/"):
                yield path


def read(tree, path):
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        return file.read()


def listed(tree):
    """{(path, name)} of the list, and what is wrong in it."""
    names, problems, path = set(), [], ""
    for number, line in enumerate(read(tree, LIST).split("\n") if os.path.exists(os.path.join(tree, LIST)) else [], 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if line[0] != " ":
            path = words[0]
        elif words[0] in KINDS:
            names |= {(path, name) for name in words[1:]}
        else:
            problems.append("%s:%d: '%s' is no kind of constant" % (LIST, number, words[0]))
    return names, problems


def check(tree):
    names, problems = listed(tree)
    found = set()
    for path in tables(tree):
        problems += ["%s:%d: %s has no origin: say what was measured, who gives it, or that it was chosen" % ((path,) + row)
                     for row in without_origin(read(tree, path))]
    for path in sources(tree):
        for number, name in constants(read(tree, path)):
            found.add((path, name))
            if (path, name) not in names:
                problems.append("%s:%d: %s is a constant: if it decides how fast something is it belongs in lib/tuning, else into %s, which says "
                                "what else a constant can be" % (path, number, name, LIST))
    problems += ["%s: %s has no %s any more" % ((LIST,) + gone) for gone in sorted(names - found)]
    if len(names) > LISTED_MAX:
        problems.append("%s lists %d constants, %d are allowed" % (LIST, len(names), LISTED_MAX))
    return problems


def print_list(tree):
    names, _ = listed(tree)
    for path in sources(tree):
        new = sorted({name for _, name in constants(read(tree, path))} - {name for of, name in names if of == path})
        if new:
            print("%s\n    ? %s" % (path, " ".join(new)))


GOOD = {"lib/tuning/table.h": "#define SPINS 4000\n", "lib/x.c": "/* 4 << 10 */\n#define TEXT \"1 << 20\"\n#define NEXT (SPINS + 1)\nint x = 1 << 4;\n"}
TABLE = "PART(a)\n/* %s. */\nVALUE(a, int, one, 1)\n/* %s. */\nFIXED(a, two, TWO, 2)\nVALUE(a, int, three, 3)\nEND(a)\n"
CASES = [
    (None, GOOD),
    ("SPINS is a constant", {**GOOD, "lib/y.c": "#define SPINS 4000\n"}),
    ("BYTES is a constant", {**GOOD, "lib/y.h": "#define BYTES ((size_t)4 << 10) /* chosen */\n"}),
    ("BYTES is a constant", {**GOOD, "lib/y.h": "static const size_t bytes = 1;\n#define BYTES (-4)\n", LIST: "lib/y.h\n    limit bytes\n"}),
    ("y.c:2: SPINS is a constant", {**GOOD, "lib/y.c": "\n#define SPINS \\\n    (4000) /* chosen */\n"}),
    ("y.c:5: LANES is a constant", {**GOOD, "lib/y.c": "\n#define NEXT \\\n    (SPINS + 1)\n\n#define LANES 4\n"}),
    ("SLEEP_NS is a constant", {**GOOD, "lib/y.c": "#define SLEEP_NS PKI_NS_PER_S\n"}),
    ("LAG is a constant", {**GOOD, "lib/y.c": "#define LAG (SPINS / 2)\n"}),
    ("SLEEP_NS is a constant", {**GOOD, "lib/y.c": "#define SLEEP_NS (PKI_NS_PER_S / 2)\n"}),
    ("lanes is a constant", {**GOOD, "lib/y.cu": "constexpr int lanes = 4;\n"}),
    ("64<<10 is a constant", {**GOOD, "lib/y.c": "    if (bytes > 64 << 10)\n"}),
    ("usleep(1 is a constant", {**GOOD, "lib/y.c": "    usleep(1000);\n"}),
    (None, {**GOOD, "lib/y.c": "#define SPINS 4000\n", LIST: "# no tuning\nlib/y.c\n    wire SPINS\n"}),
    ("lib/y.c has no SPINS", {**GOOD, "lib/y.c": "\n", LIST: "lib/y.c\n    wire SPINS\n"}),
    (None, {**GOOD, "lib/tuning/table_x.h": TABLE % ("Looks. Chosen", "Both of them: docs/design/0002")}),
    ("table_x.h:3: a.one has no origin", {**GOOD, "lib/tuning/table_x.h": TABLE % ("Looks", "Chosen")}),
    ("table_x.h:6: a.three has no origin", {**GOOD, "lib/tuning/table_x.h": TABLE % ("Measured, Zen 4", "Looks")}),
    ("no kind", {**GOOD, "lib/y.c": "#define SPINS 4000\n", LIST: "lib/y.c\n    speed SPINS\n"}),
]

if sys.argv[1:2] == ["--list"]:
    print_list(sys.argv[2])
    sys.exit(0)
main("constants", __doc__, CASES, check)
