#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold sizes and habits: functions of at most 80 lines, nine in ten of at most 40, files of at most 800 (in lib/ 50 and 500), no macro that hides a
return or a goto, the licence in the first line, no descriptor of the library that does not go through util/fd.h; each file that
CONTRIBUTING's table of words names exists.

In lib/ also: structs of at most 25 members, 3 of them truth values; a transport of at most 16 slots; lines of at most 130 characters; in a
folder of the engine, the communicator, the device, the tcp or the rdma transport at most 4 files that call one another in a circle. What
exceeds that today stands in tests/abi/style_limits.txt, with how much: it may not grow, and nothing new may join it.

usage: style.py TREE | style.py --self-test | style.py --limits TREE    (what style_limits.txt would be now)
"""
import os
import re
import sys

from calls import calls, circles
from planted import main
from structs import structs

FUNCTION_MAX = 80
FUNCTION_GOOD = 40
FILE_MAX = 800
LIB_FUNCTION_MAX = 50
LIB_FILE_MAX = 500
MEMBERS_MAX = 25
TRUTHS_MAX = 3
LINE_MAX = 130
CIRCLE_MAX = 4
SLOTS_MAX = 16
TRANSPORT = "lib/transport/transport.h"
ORDERED = ("lib/engine", "lib/transport/tcp", "lib/transport/rdma", "lib/device", "lib/comm")
LIMITS = "tests/abi/style_limits.txt"
FOLDERS = ("lib", "include", "nccl", "bench", "examples", "tests", "tools")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
DEFINE = re.compile(r"^\s*#\s*define\b")
HIDDEN = re.compile(r"\b(return|goto)\b")
# Calls that make a descriptor. fopen, opendir and getaddrinfo are left out: they close what they open to read before they return.
MAKES_FD = re.compile(
    r"(?<![\w>.])(?:socket|socketpair|accept4?|memfd_create|memfd_secret|epoll_create1?|eventfd|timerfd_create|signalfd|inotify_init1?|"
    r"fanotify_init|pipe2?|open|openat2?|open64|creat|dup[23]?|shm_open|mkostemps?|mkstemp|pidfd_open|pidfd_getfd|userfaultfd|"
    r"perf_event_open|io_uring_setup|syscall|fcntl)\(")
MAKES_NO_FD = re.compile(r"syscall\(SYS_(futex\w*|membarrier|gettid|tgkill|getcpu|mbind|move_pages|get_mempolicy)\b|fcntl\((?!.*\bF_DUPFD)")
KEPT = re.compile(r"\bpki_fd_keep\((\(int\))?$")


def source_files(tree):
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.join(tree, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), tree)


def functions(lines):
    """(first line, length) of each function: a brace in the first column to the next closing one. Criterion's Test() too."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start + 1
            start = None


def macros(lines):
    """(line, text) of each macro with its continuation lines, comments and strings left out."""
    text = "\n".join(lines)
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    plain = text.split("\n")
    number = 0
    while number < len(plain):
        first = number
        if DEFINE.match(plain[number]):
            body = plain[number]
            while plain[number].rstrip().endswith("\\") and number + 1 < len(plain):
                number += 1
                body += "\n" + plain[number]
            yield first + 1, body
        number += 1


def loose_descriptors(lines):
    """(line, call) of each call that makes a descriptor and is not an argument of pki_fd_keep."""
    for number, line in enumerate(lines, 1):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("//")[0])
        for made in MAKES_FD.finditer(code):
            if not MAKES_NO_FD.match(code, made.start()) and not KEPT.search(code[:made.start()]):
                yield number, made.group().rstrip("(")


def check_file(path, lines, lengths):
    if not lines or LICENCE not in lines[0]:
        yield "%s:1: the first line must be the licence: %s" % (path, LICENCE)
    file_max, function_max = (LIB_FILE_MAX, LIB_FUNCTION_MAX) if path.startswith("lib/") else (FILE_MAX, FUNCTION_MAX)
    if len(lines) > file_max:
        yield "%s: %d lines, %d are allowed" % (path, len(lines), file_max)
    for first, length in functions(lines):
        lengths.append(length)
        if length > function_max:
            yield "%s:%d: function of %d lines, %d are allowed" % (path, first, length, function_max)
    if path.startswith("lib/") and not path.startswith("lib/util/fd."):
        for number, call in loose_descriptors(lines):
            yield "%s:%d: %s() makes a descriptor that may be 0, 1 or 2: wrap it in pki_fd_keep" % (path, number, call)
    if path.startswith("tests/"):
        return # macros that write whole functions are at home there
    for first, body in macros(lines):
        if HIDDEN.search(body):
            yield "%s:%d: a macro hides a return or a goto" % (path, first)


def exceeding(path, lines):
    """(kind, name, how much) of what a file of lib/ has that exceeds a limit."""
    long_lines = sum(1 for line in lines if len(line) > LINE_MAX)
    if long_lines > 0:
        yield "lines", path, long_lines
    for tag, count, truths in structs("\n".join(lines)):
        if count > MEMBERS_MAX:
            yield "members", tag, count
        if truths > TRUTHS_MAX:
            yield "truths", tag, truths


def read_limits(tree):
    limits = {}
    path = os.path.join(tree, LIMITS)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip() and not line.startswith("#"):
                    kind, name, most = line.split()
                    limits[kind, name] = int(most)
    return limits


KINDS = {
    "members": ("struct %s has %d members", MEMBERS_MAX),
    "truths": ("struct %s has %d truth values", TRUTHS_MAX),
    "circle": ("%s has %d files that call one another in a circle", CIRCLE_MAX),
    "lines": ("%%s has %%d lines of more than %d characters" % LINE_MAX, 0),
}


def check_limits(found, limits):
    for (kind, name), much in sorted(found.items()):
        text, most = KINDS[kind]
        if much > limits.get((kind, name), most):
            yield (text + ", %d are allowed") % (name, much, limits.get((kind, name), most))


TITLES = {
    "members": "structs of more than %d members" % MEMBERS_MAX,
    "truths": "structs of more than %d truth values" % TRUTHS_MAX,
    "circle": "folders with circles of more than %d files" % CIRCLE_MAX,
    "lines": "files with lines of more than %d characters" % LINE_MAX,
}


def print_limits(found, with_files):
    """The table of what exceeds a limit, in the form of style_limits.txt."""
    for kind, title in TITLES.items():
        rows = {name: much for (k, name), much in found.items() if k == kind}
        print("# %s in lib: %d, %d too many in all" % (title, len(rows), sum(rows.values()) - len(rows) * KINDS[kind][1]))
        if kind == "lines" and not with_files:
            continue
        for name, much in sorted(rows.items(), key=lambda row: (-row[1], row[0])):
            print("%-8s %-44s %d" % (kind, name, much))


def check_words(tree):
    """Rows of CONTRIBUTING's table of words: where it lives."""
    path = os.path.join(tree, "CONTRIBUTING.md")
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        table = re.search(r"^## Words\n(.*?)(?=^## )", file.read(), re.S | re.M)
    known = {os.path.relpath(os.path.join(folder, name), tree) for top in ("lib", "tests")
             for folder, _, names in os.walk(os.path.join(tree, top)) for name in names}
    for row in re.findall(r"^\|.*\|$", table.group(1), re.M) if table else []:
        for name in re.findall(r"`([\w/*]+\.(?:c|h|cu|cuh|py))`", row.split("|")[-2]):
            pattern = re.compile("(^|.*/)" + re.escape(name).replace(r"\*", "[^/]*") + "$")
            if not any(pattern.match(path) for path in known):
                yield "CONTRIBUTING.md: the table of words names %s, which does not exist" % name


def check_slots(tree):
    """Function pointers in the table that a transport fills."""
    if not os.path.exists(os.path.join(tree, TRANSPORT)):
        return
    text = "\n".join(read_lines(tree, TRANSPORT))
    table = re.search(r"^struct pki_transport \{\n(.*?)^\};", text, re.S | re.M)
    slots = len(re.findall(r"^\s+[\w *]+\(\*\w+\)\(", table.group(1), re.M)) if table else 0
    if not 0 < slots <= SLOTS_MAX:
        yield "%s: a transport has %d slots, 1 to %d are allowed" % (TRANSPORT, slots, SLOTS_MAX)


def read_lines(tree, path):
    with open(os.path.join(tree, path), encoding="utf-8") as file:
        lines = file.read().split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return lines


def find_exceeding(tree):
    found = {}
    for path in source_files(tree):
        if path.startswith("lib/"):
            for kind, name, much in exceeding(path, read_lines(tree, path)):
                found[kind, name] = max(much, found.get((kind, name), 0))
    inside = [pair for top in ORDERED for pair in calls(tree, top) if os.path.dirname(pair[0]) == os.path.dirname(pair[1])]
    for files in circles(inside):
        folder = os.path.dirname(files[0])
        if len(files) > CIRCLE_MAX:
            found["circle", folder] = max(len(files), found.get(("circle", folder), 0))
    return found


def check(tree):
    problems = []
    lengths = []
    files = 0
    for path in source_files(tree):
        files += 1
        problems += check_file(path, read_lines(tree, path), lengths)
    found = find_exceeding(tree)
    problems += check_limits(found, read_limits(tree))
    problems += check_words(tree)
    problems += check_slots(tree)
    good = sum(1 for length in lengths if length <= FUNCTION_GOOD)
    if good * 10 < len(lengths) * 9:
        problems.append("only %d of %d functions have at most %d lines: nine in ten must" % (good, len(lengths), FUNCTION_GOOD))
    if files == 0:
        problems.append("no source file under %s" % tree)
    print("style: %d files, %d functions, %d of at most %d lines, the longest %d" %
          (files, len(lengths), good, FUNCTION_GOOD, max(lengths, default=0)))
    if found:
        print_limits(found, False)
    return problems


def function_of(lines):
    return "void f(void)\n{\n" + "    g();\n" * (lines - 2) + "}\n"


GOOD = "/* %s */\n#define ONE 1 /* return of the one */\n#define TEXT \"goto\"\n" % LICENCE + function_of(50) + function_of(5) * 10
PLANTED = [
    ("function of 51", GOOD + function_of(51)),
    ("501 lines", ("/* %s */\n" % LICENCE) + "\n" * 500),
    ("macro hides", GOOD + "#define CHECK(x) if (x) return x\n"),
    ("macro hides", GOOD + "#define CHECK(x) \\\n    do { \\\n        if (x) \\\n            goto out; \\\n    } while (0)\n"),
    ("nine in ten", GOOD + function_of(45) * 2),
    ("licence", "int x;\n"),
    ("socket() makes", GOOD + "    fd = socket(AF_UNIX, SOCK_STREAM, 0);\n"),
    ("pipe2() makes", GOOD + "    if (pipe2(ends, O_CLOEXEC) != 0)\n"),
    ("fcntl() makes", GOOD + "    fd = fcntl(old, F_DUPFD_CLOEXEC, 0);\n"),
    ("syscall() makes", GOOD + "    fd = (int)syscall(SYS_pidfd_open, pid, 0);\n"),
    (None, GOOD + "    fd = pki_fd_keep(open(path, O_RDONLY));\n    fcntl(fd, F_SETFL, 0);\n    iface->open(fd);\n"
     "    fd = pki_fd_keep((int)syscall(SYS_userfaultfd, 0));\n    syscall(SYS_futex, word);\n"),
]


def struct_of(members, truths):
    return GOOD + "struct many {\n" + "    int *a, b[2]; /* bool */\n" * ((members - truths) // 2) + "    bool c;\n" * truths + "};\n"


def circle_of(files, folder="engine/x"):
    text = "void pki_f%d(void)\n{\n    pki_f%d();\n}\n"
    return {"lib/%s/%d.c" % (folder, i): GOOD + text % (i, (i + 1) % files) for i in range(files)}


def table_of(slots):
    return {TRANSPORT: GOOD + "struct pki_transport {\n    bool posts;\n" + "    bool (*f)(void (*g)(int));\n" * slots + "};\n"}


LONG_LINE = GOOD + "/* " + "x" * LINE_MAX + " */\n"
LIMITED = [
    (None, {"bench/x.c": GOOD.replace(function_of(50), function_of(80))}),
    ("function of 81", {"bench/x.c": GOOD.replace(function_of(50), function_of(81))}),
    (None, {"bench/x.c": GOOD + "\n" * (799 - GOOD.count("\n"))}),
    ("801 lines", {"bench/x.c": GOOD + "\n" * (801 - GOOD.count("\n"))}),
    (None, {"lib/x.c": struct_of(25, 3)}),
    ("27 members, 25 are", {"lib/x.c": struct_of(27, 1)}),
    ("4 truth values, 3 are", {"lib/x.c": struct_of(24, 4)}),
    ("4 truth values, 3 are", {"lib/x.c": GOOD + "struct s {\n    int a;\n    struct {\n        bool b, c;\n    } d;\n    atomic_bool e, f;\n};\n"}),
    (None, {"lib/x.c": GOOD + "struct s {\n    bool (*f)(bool a), (*g)(bool b), (*h)(bool c), (*i)(bool d);\n    bool *b, *c, *d, *e;\n};\n"}),
    (None, {"lib/x.c": struct_of(27, 1), LIMITS: "members many 27\n"}),
    ("29 members, 27 are", {"lib/x.c": struct_of(29, 1), LIMITS: "members many 27\n"}),
    ("27 members, 25 are", {"lib/x.c": struct_of(27, 1), LIMITS: "members other 27\n"}),
    ("1 lines of more", {"lib/x.c": LONG_LINE}),
    (None, {"lib/x.c": LONG_LINE, LIMITS: "# so far\nlines lib/x.c 1\n"}),
    (None, {"bench/x.c": LONG_LINE}),
    (None, table_of(16)),
    ("has 17 slots, 1 to 16", table_of(17)),
    ("has 0 slots", table_of(0)),
    (None, circle_of(4)),
    ("5 files that call", circle_of(5)),
    ("5 files that call", circle_of(5, "transport/tcp/x")),
    ("5 files that call", circle_of(5, "transport/rdma")),
    ("5 files that call", circle_of(5, "comm")),
    ("5 files that call", circle_of(5, "device")),
    (None, circle_of(5, "transport/other")),
    (None, {**circle_of(5), LIMITS: "circle lib/engine/x 5\n"}),
    (None, {**circle_of(5), "lib/engine/x/4.c": GOOD + "void pki_f4(void)\n{\n}\n", "lib/engine/y/4.c": GOOD + "void pki_f5(void)\n{\n    pki_f0();\n}\n"}),
    ("names gone.c", {"lib/x.c": GOOD, "CONTRIBUTING.md": "## Words\n\n| a | b | `x.c`, `gone.c` |\n\n## More\n"}),
    (None, {"lib/x.c": GOOD, "CONTRIBUTING.md": "## Words\n\n| a | b | `*.c` |\n\n## More\n"}),
]
CASES = [(expected, {"lib/x.c": text}) for expected, text in [(None, GOOD)] + PLANTED] + LIMITED

if sys.argv[1:2] == ["--limits"]:
    print_limits(find_exceeding(sys.argv[2]), True)
    sys.exit(0)
main("style", __doc__, CASES, check)
