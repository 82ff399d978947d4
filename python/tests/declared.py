# SPDX-License-Identifier: Apache-2.0
"""What the package says of the library is what the headers say: names as in lib/pickle.map, structures as a C compiler lays them
out.

usage: declared.py TREE CC"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile

import libpickle
from libpickle import _declarations, _library
from checks import equal

TREE, CC = sys.argv[1:]


def names_of_the_map():
    with open(os.path.join(TREE, "lib/pickle.map"), encoding="utf-8") as file:
        return set(re.findall(r"^\s+(pk_\w+);", file.read(), re.M))


def layout(name):
    made = _library.structures[name]
    return [ctypes.sizeof(made)] + [getattr(made, field).offset for field, *_ in made._fields_]


def layouts_in_c(names):
    lines = ["#include <pickle/pickle.h>", "#include <stdio.h>", "int main(void) {"]
    for name in names:
        fields = [field for field, *_ in _library.structures[name]._fields_]
        numbers = ["sizeof(struct %s)" % name] + ["offsetof(struct %s, %s)" % (name, field) for field in fields]
        lines.append('printf("%s\\n", %s);' % (" ".join(["%zu"] * len(numbers)), ", ".join(numbers)))
    lines.append("}")
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        subprocess.run([CC, "-I", os.path.join(TREE, "include"), source, "-o", program], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [[int(word) for word in line.split()] for line in printed.splitlines()]


equal(set(_declarations.FUNCTIONS), names_of_the_map(), "functions")
names = sorted(_library.structures)
equal([layout(name) for name in names], layouts_in_c(names), "structures")
assert len(names) >= 7, names
major, minor, patch = map(int, libpickle.__version__.split("."))
equal(_library.lib.pk_version(), major * 10000 + minor * 100 + patch, "version")
for name in ("Send", "Recv", "Allreduce", "Allgatherv", "Split"):
    assert "@return" in getattr(libpickle.Communicator, name).__doc__, name
print("declared: %d functions, %d structures" % (len(_declarations.FUNCTIONS), len(names)))
