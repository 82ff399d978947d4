#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/guide.md is true: its programs compile without a warning, its fragments too (among declarations that every reader would guess), and
each command that it shows prints what stands below it.

In a ```console block a line "$ command" is run by sh, in one folder for all; the lines below must come in what it prints (in any order, since
mpirun passes on output and errors as they reach it). "..." stands for anything. A command with "# fails" behind it must fail, every other must not. Commands whose
program is not on this machine (mpirun, pickle-perf) are left out, and counted.

usage: guide.py GUIDE PREFIX [FOLDER-OF-PROGRAMS...] | guide.py --self-test
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import planted

STRICT = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c", "-"]
AROUND = """#include <pickle/pickle.h>
void fragment(pk_comm_t *comm, float *gradients, size_t count, void *cuda_stream, int rank, int size, pk_result_t result);
void fragment(pk_comm_t *comm, float *gradients, size_t count, void *cuda_stream, int rank, int size, pk_result_t result)
{
(void)comm; (void)gradients; (void)count; (void)cuda_stream; (void)rank; (void)size; (void)result;
{
%s
}
(void)result;
}
"""


def blocks(text, kind):
    return re.findall(r"^```%s\n(.*?)^```$" % kind, text, re.S | re.M)


def environment(prefix, folders):
    found = {}
    for folder, _, names in os.walk(prefix):
        for name in ("pickle.pc", "libpickle.so"):
            if name in names:
                found[name] = folder
    env = dict(os.environ, LC_ALL="C", PKG_CONFIG_PATH=found.get("pickle.pc", ""), LD_LIBRARY_PATH=found.get("libpickle.so", ""),
               PATH=os.pathsep.join(list(folders) + [os.environ["PATH"]]), PK_TIMEOUT_MS="30000",
               # As root.
               OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_hwloc_base_binding_policy="none")
    for name in [n for n in env if n.startswith("PK_") and n != "PK_TIMEOUT_MS" or n in ("RANK", "WORLD_SIZE")]:
        del env[name]
    return env


def compile_all(text, work, env):
    flags = subprocess.run(["pkg-config", "--cflags", "pickle"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, check=False).stdout.decode().split()
    for block in blocks(text, "c"):
        name = re.match(r"/\* (\w+\.c):", block)
        if name:
            with open(os.path.join(work, name.group(1)), "w", encoding="utf-8") as file:
                file.write(block)
        source = block if "int main(" in block else AROUND % block
        run = subprocess.run(["cc"] + flags + STRICT, input=source.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False)
        if run.returncode != 0:
            yield "%s: %s" % (name.group(1) if name else "a fragment", run.stdout.decode())


def commands(text):
    """(command, must it fail, expected lines)"""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            first, *lines = part.rstrip("\n").split("\n")
            yield re.sub(r"\s+# fails$", "", first), first.endswith("# fails"), lines


def unmatched(lines, printed):
    """The first expected line that did not come."""
    rest = [line.rstrip() for line in printed.split("\n")]
    for line in lines:
        pattern = re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")))
        found = [other for other in rest if pattern.fullmatch(other)]
        if line != "..." and not found:
            return line
        if line != "...":
            rest.remove(found[0])
    return None


def missing(command, env):
    words = [w for part in re.split(r"&&|[|;&]", command) for w in part.split() if "=" not in w][:40]
    return [w for w in ("mpirun", "pickle-perf", "pickle-info", "pickle-compare", "torchrun") if w in words and not shutil.which(w, path=env["PATH"])]


def run_all(text, work, env, counts):
    for command, fails, lines in commands(text):
        if missing(command, env):
            counts["left out"] += 1
            continue
        counts["run"] += 1
        try:
            run = subprocess.run(["sh", "-c", command], cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 timeout=60, check=False)
        except subprocess.TimeoutExpired:
            yield "$ %s\n  did not end" % command
            continue
        printed = run.stdout.decode(errors="replace")
        if (run.returncode != 0) != fails:
            yield "$ %s\n  ended with %d:\n%s" % (command, run.returncode, printed)
        elif unmatched(lines, printed) is not None:
            yield "$ %s\n  did not print '%s', but:\n%s" % (command, unmatched(lines, printed), printed)


def check(text, env, counts):
    with tempfile.TemporaryDirectory() as work:
        yield from compile_all(text, work, env)
        yield from run_all(text, work, env, counts)
    if counts["run"] == 0:
        yield "no command was run"


GUIDE = "```c\n/* one.c: one. */\nint main(void)\n{\n    return 0;\n}\n```\n```console\n$ cc one.c -o one && ./one\n$ echo one two three\none ... three\n" \
        "$ false    # fails\n```\n"
PLANTED = [
    (None, GUIDE),
    ("one.c", GUIDE.replace("return 0;", "int unused; return 0;")),
    ("a fragment", GUIDE + "```c\nint x = pk;\n```\n"),
    ("ended with", GUIDE.replace("return 0;", "return 3;")),
    ("ended with 0", GUIDE.replace("$ false", "$ true")),
    ("did not print 'one ... four'", GUIDE.replace("... three", "... four")),
    ("did not print 'once'", GUIDE.replace("$ echo one two three\none ... three", "$ echo once\nonce\nonce")),
    ("no command", GUIDE.replace("$ ", "")),
]


def check_planted(tree):
    """Fragments include the library's header, which is not there: an error of their own stands for any."""
    with open(os.path.join(tree, "guide.md"), encoding="utf-8") as file:
        yield from check(file.read().replace("int x = pk;", "#error planted"), environment(tree, []), {"run": 0, "left out": 0})


def main():
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(1 if planted.self_test("guide", [(what, {"guide.md": text}) for what, text in PLANTED], check_planted) else 0)
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    counts = {"run": 0, "left out": 0}
    problems = list(check(text, environment(sys.argv[2], [os.path.abspath(folder) for folder in sys.argv[3:]]), counts))
    for problem in problems:
        print(problem)
    print("guide: %d blocks of C, %d commands run, %d left out, %d problems" % (len(blocks(text, "c")), counts["run"], counts["left out"], len(problems)))
    sys.exit(1 if problems else 0)


main()
