#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three lists must be one: symbols the shared library exports, lib/pickle.map, and PK_API declarations in include/pickle. And
the library must keep its promises about itself: its SONAME, what it is linked to, its size.

usage: symbols.py libpickle.so TREE | symbols.py --self-test
"""
import glob
import os
import re
import subprocess
import sys

STANZAS = ["PICKLE_0.1", "PICKLE_0.3"]
SONAME = "libpickle.so.0"
NEEDED_MAY_BE = re.compile(r"(libc|libm|libdl|libpthread|librt|libhwloc|libcrypto|ld-linux[^.]*)\.so.*")
SIZE_MAX = 2000000 # of what is loaded; debug information does not count


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def in_map(text):
    """{symbol: stanza}; a wildcard among the global ones is an error."""
    symbols = {}
    for stanza, body in re.findall(r"(\w[\w.]*)\s*\{(.*?)\}", without_comments(text), flags=re.S):
        exported = body.split("local:")[0].replace("global:", "")
        for symbol in filter(None, (word.strip() for word in exported.split(";"))):
            symbols[symbol] = stanza
    return symbols


def in_headers(texts):
    symbols = set()
    for text in texts:
        text = re.sub(r"^\s*#.*$", "", without_comments(text), flags=re.M)
        for declaration in re.findall(r"\bPK_API\b([^;]*);", text):
            name = re.search(r"\b(\w+)\s*\(", declaration)
            symbols.add(name.group(1) if name else declaration.split()[-1])
    return symbols


def in_library(nm_output):
    """{symbol: stanza} from nm -D --defined-only; the stanzas' own absolute symbols left out."""
    symbols = {}
    for line in nm_output.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] != "A":
            name, _, stanza = fields[2].partition("@@")
            symbols[name] = stanza
    return symbols


def compare(library, mapped, declared):
    problems = []
    for name in sorted(set(library) | set(mapped) | declared):
        missing = [where for where, there in
                   (("the library", name in library), ("pickle.map", name in mapped), ("the headers", name in declared)) if not there]
        if missing:
            problems.append("%s is missing in %s" % (name, " and ".join(missing)))
        elif library[name] != mapped[name]:
            problems.append("%s is exported in %s, the map says %s" % (name, library[name], mapped[name]))
        if not name.startswith("pk_"):
            problems.append("%s: public names begin with pk_" % name)
        if name in mapped and mapped[name] not in STANZAS:
            problems.append("%s: stanza %s is unknown here" % (name, mapped[name]))
    return problems


def check_dynamic(readelf_output):
    problems = []
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", readelf_output)
    if soname != [SONAME]:
        problems.append("SONAME is %s, not %s" % (soname, SONAME))
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf_output):
        if not NEEDED_MAY_BE.fullmatch(needed):
            problems.append("the library is linked to %s" % needed)
    if re.search(r"\((RPATH|RUNPATH)\)", readelf_output):
        problems.append("the library carries a run path")
    if re.search(r"\(FLAGS\).*\bSTATIC_TLS\b", readelf_output): # there is room for little of it, in all libraries of a process together
        problems.append("the library wants memory at a fixed place in each thread: it could not be opened late, nor twice")
    return problems


def check_size(readelf_output):
    sizes = [int(size, 16) for size in re.findall(r"^\s*LOAD\s+0x[0-9a-f]+\s+0x[0-9a-f]+\s+0x[0-9a-f]+\s+(0x[0-9a-f]+)",
                                                  readelf_output, flags=re.M)]
    total = sum(sizes)
    print("symbols: %d bytes are loaded from the library" % total)
    if total == 0 or total > SIZE_MAX:
        return ["the library loads %d bytes, %d are allowed" % (total, SIZE_MAX)]
    return []


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def check(library, tree):
    headers = []
    for path in sorted(glob.glob(os.path.join(tree, "include", "pickle", "*.h"))):
        with open(path, encoding="utf-8") as file:
            headers.append(file.read())
    with open(os.path.join(tree, "lib", "pickle.map"), encoding="utf-8") as file:
        mapped = in_map(file.read())
    exported = in_library(output_of("nm", "-D", "--defined-only", library))
    print("symbols: %d exported, %d in the map" % (len(exported), len(mapped)))
    if not exported:
        return ["the library exports nothing"]
    return (compare(exported, mapped, in_headers(headers)) + check_dynamic(output_of("readelf", "-dW", library)) +
            check_size(output_of("readelf", "-lW", library)))


HEADER = "/** PK_API void pk_no(void); */\n#define PK_API x\nPK_API int pk_a(int x,\n    int y);\nPK_API const char *pk_b(void);\n"
MAP = "/* x; */ PICKLE_0.1 {\nglobal:\n    pk_a;\n    pk_b; /* y */\nlocal:\n    *;\n};\n"
NM = "0000000000000000 A PICKLE_0.1\n0000000000001119 T pk_a@@PICKLE_0.1\n0000000000001129 T pk_b@@PICKLE_0.1\n"
DYNAMIC = " 0x1 (NEEDED) Shared library: [libhwloc.so.15]\n 0xe (SONAME) Library soname: [libpickle.so.0]\n"
LOAD = "  LOAD           0x000000 0x0000000000000000 0x0000000000000000 0x%x 0x2000 R   0x1000\n"


def self_test():
    def compared(nm=NM, symbol_map=MAP, header=HEADER):
        return compare(in_library(nm), in_map(symbol_map), in_headers([header]))

    cases = [
        ("in order", not compared()),
        ("exported too much", compared(nm=NM + "0000000000001139 T pki_c@@PICKLE_0.1\n")),
        ("not declared", compared(header=HEADER.replace("pk_b(void)", "pk_c(void)"))),
        ("not in the map", compared(symbol_map=MAP.replace("pk_b;", ""))),
        ("wildcard", compared(symbol_map=MAP.replace("pk_b;", "pk_*;"))),
        ("other stanza", compared(nm=NM.replace("pk_b@@PICKLE_0.1", "pk_b@@PICKLE_0.2"))),
        ("no stanza", compared(nm=NM.replace("pk_b@@PICKLE_0.1", "pk_b"))),
        ("dynamic in order", not check_dynamic(DYNAMIC)),
        ("soname", check_dynamic(DYNAMIC.replace("so.0", "so.1"))),
        ("libcuda", check_dynamic(DYNAMIC + " 0x1 (NEEDED) Shared library: [libcuda.so.1]\n")),
        ("libpmix", check_dynamic(DYNAMIC + " 0x1 (NEEDED) Shared library: [libpmix.so.2]\n")),
        ("libstdc++", check_dynamic(DYNAMIC + " 0x1 (NEEDED) Shared library: [libstdc++.so.6]\n")),
        ("run path", check_dynamic(DYNAMIC + " 0x1d (RUNPATH) Library runpath: [/opt]\n")),
        ("static tls", check_dynamic(DYNAMIC + " 0x1e (FLAGS) SYMBOLIC STATIC_TLS\n")),
        ("size in order", not check_size(LOAD % 0x5000)),
        ("too large", check_size(LOAD % (SIZE_MAX + 1))),
    ]
    failures = [name for name, found in cases if not found]
    for name in failures:
        print("not found: %s" % name)
    print("symbols self-test: %d cases, %d failures" % (len(cases), len(failures)))
    return len(failures)


def main():
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(1 if self_test() else 0)
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    problems = check(sys.argv[1], sys.argv[2])
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


main()
