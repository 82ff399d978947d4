#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three lists must be one: variables that the code reads, the table "Environment" of README.md, and what pickle-info prints. And
they must stay few.

usage: environment.py TREE | environment.py --self-test
"""
import os
import re

from planted import main

VARIABLES_MAX = 25
LITERAL = re.compile(r'"(PK_[A-Z0-9_]+)"') # a name and nothing else: what is handed to getenv and its like
ROW = re.compile(r"^\|([^|]*)\|")
INFO = "bench/pickle-info.c"


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def in_code(tree, top):
    names = {}
    for folder, _, files in os.walk(os.path.join(tree, top)):
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), tree)
            if not name.endswith((".c", ".h")) or path == INFO:
                continue
            with open(os.path.join(tree, path), encoding="utf-8") as file:
                for variable in LITERAL.findall(without_comments(file.read())):
                    names.setdefault(variable, path)
    return names


def in_info(tree):
    with open(os.path.join(tree, INFO), encoding="utf-8") as file:
        return set(LITERAL.findall(without_comments(file.read())))


def in_table(tree):
    """Variables of the first column, in order, with repetitions."""
    with open(os.path.join(tree, "README.md"), encoding="utf-8") as file:
        section = re.search(r"^## Environment\n(.*?)(?=^## |\Z)", file.read(), flags=re.S | re.M)
    names = []
    for line in section.group(1).split("\n") if section else []:
        row = ROW.match(line)
        if row:
            names += re.findall(r"`(PK_[A-Z0-9_]+)`", row.group(1))
    return names


def check(tree):
    library, bench, info, table = in_code(tree, "lib"), in_code(tree, "bench"), in_info(tree), in_table(tree)
    read = {**in_code(tree, "nccl"), **bench, **library}
    for name in sorted(set(read) - set(table)):
        yield "%s: %s is not in README.md's table" % (read[name], name)
    for name in sorted(set(table) - set(read)):
        yield "README.md: nothing reads %s" % name
    for name in sorted(name for name in set(table) if table.count(name) > 1):
        yield "README.md: %s stands there twice" % name
    for name in sorted(set(library) - info):
        yield "%s: %s is unknown to pickle-info" % (library[name], name)
    for name in sorted(info - set(library)):
        yield "%s: the library does not read %s" % (INFO, name)
    if len(table) > VARIABLES_MAX:
        yield "README.md: %d variables, %d are allowed" % (len(table), VARIABLES_MAX)
    if not table or not library:
        yield "no variables were found: %d in README.md, %d in lib" % (len(table), len(library))


TREE = {
    "lib/comm/config.c": 'a = getenv("PK_ONE"); /* "PK_NONE" */ b = fail("PK_TEXT is wrong");\n',
    "bench/perf.c": 'c = getenv("PK_TWO");\n',
    INFO: '{ "PK_ONE", "first" },\n',
    "README.md": "| `PK_ELSEWHERE` | |\n## Environment\n\n| variable | meaning |\n|---|---|\n| `PK_ONE` `PK_TWO` | see `PK_OTHER` |\n\n"
                 "## More\n| `PK_LATER` | |\n",
}
MANY = " ".join("`PK_V%d`" % i for i in range(VARIABLES_MAX - 1))
PLANTED = [
    (None, {}),
    ("PK_NEW is not in README.md", {"lib/util/log.c": 'getenv("PK_NEW")', INFO: '"PK_ONE", "PK_NEW"'}),
    ("PK_NEW is not in README.md", {"bench/perf.c": 'getenv("PK_TWO"); getenv("PK_NEW")'}),
    ("PK_NEW is not in README.md", {"nccl/env.c": 'setenv("PK_NEW", value, 0)'}),
    ("nothing reads PK_TWO", {"bench/perf.c": ""}),
    ("PK_ONE stands there twice", {"README.md": TREE["README.md"].replace("`PK_TWO`", "`PK_TWO` `PK_ONE`")}),
    ("PK_ONE is unknown to pickle-info", {INFO: ""}),
    ("does not read PK_GONE", {INFO: '"PK_ONE", "PK_GONE"'}),
    ("%d variables" % (VARIABLES_MAX + 1), {"README.md": TREE["README.md"].replace("`PK_TWO`", "`PK_TWO` " + MANY)}),
    ("no variables were found", {"README.md": "", "lib/comm/config.c": "", "bench/perf.c": "", INFO: ""}),
]

main("environment", __doc__, [(expected, {**TREE, **changes}) for expected, changes in PLANTED], check)
