#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold sizes and habits: functions of at most 80 lines, nine in ten of at most 40, files of at most 800, no macro that hides a
return or a goto, the licence in the first line, no descriptor of the library that does not go through util/fd.h.

usage: style.py TREE | style.py --self-test
"""
import os
import re

from planted import main

FUNCTION_MAX = 80
FUNCTION_GOOD = 40
FILE_MAX = 800
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
    if len(lines) > FILE_MAX:
        yield "%s: %d lines, %d are allowed" % (path, len(lines), FILE_MAX)
    for first, length in functions(lines):
        lengths.append(length)
        if length > FUNCTION_MAX:
            yield "%s:%d: function of %d lines, %d are allowed" % (path, first, length, FUNCTION_MAX)
    if path.startswith("lib/") and not path.startswith("lib/util/fd."):
        for number, call in loose_descriptors(lines):
            yield "%s:%d: %s() makes a descriptor that may be 0, 1 or 2: wrap it in pki_fd_keep" % (path, number, call)
    if path.startswith("tests/"):
        return # macros that write whole functions are at home there
    for first, body in macros(lines):
        if HIDDEN.search(body):
            yield "%s:%d: a macro hides a return or a goto" % (path, first)


def check(tree):
    problems = []
    lengths = []
    files = 0
    for path in source_files(tree):
        with open(os.path.join(tree, path), encoding="utf-8") as file:
            lines = file.read().split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        files += 1
        problems += check_file(path, lines, lengths)
    good = sum(1 for length in lengths if length <= FUNCTION_GOOD)
    if good * 10 < len(lengths) * 9:
        problems.append("only %d of %d functions have at most %d lines: nine in ten must" % (good, len(lengths), FUNCTION_GOOD))
    if files == 0:
        problems.append("no source file under %s" % tree)
    print("style: %d files, %d functions, %d of at most %d lines, the longest %d" %
          (files, len(lengths), good, FUNCTION_GOOD, max(lengths, default=0)))
    return problems


def function_of(lines):
    return "void f(void)\n{\n" + "    g();\n" * (lines - 2) + "}\n"


GOOD = "/* %s */\n#define ONE 1 /* return of the one */\n#define TEXT \"goto\"\n" % LICENCE + function_of(80) + function_of(5) * 10
PLANTED = [
    ("function of 81", GOOD + function_of(81)),
    ("801 lines", ("/* %s */\n" % LICENCE) + "\n" * 800),
    ("macro hides", GOOD + "#define CHECK(x) if (x) return x\n"),
    ("macro hides", GOOD + "#define CHECK(x) \\\n    do { \\\n        if (x) \\\n            goto out; \\\n    } while (0)\n"),
    ("nine in ten", GOOD + function_of(60) * 2),
    ("licence", "int x;\n"),
    ("socket() makes", GOOD + "    fd = socket(AF_UNIX, SOCK_STREAM, 0);\n"),
    ("pipe2() makes", GOOD + "    if (pipe2(ends, O_CLOEXEC) != 0)\n"),
    ("fcntl() makes", GOOD + "    fd = fcntl(old, F_DUPFD_CLOEXEC, 0);\n"),
    ("syscall() makes", GOOD + "    fd = (int)syscall(SYS_pidfd_open, pid, 0);\n"),
    (None, GOOD + "    fd = pki_fd_keep(open(path, O_RDONLY));\n    fcntl(fd, F_SETFL, 0);\n    iface->open(fd);\n"
     "    fd = pki_fd_keep((int)syscall(SYS_userfaultfd, 0));\n    syscall(SYS_futex, word);\n"),
]


CASES = [(expected, {"lib/x.c": text}) for expected, text in [(None, GOOD)] + PLANTED]

main("style", __doc__, CASES, check)
