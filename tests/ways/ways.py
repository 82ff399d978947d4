#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The way of a buffer: from the call of the API to the system call that takes its address, or in GPU memory to the launch of the kernel that does, by
the functions that are on the call stack then, each in its file. Prints each way that was seen. A way passes MOST files, and enters
none a second time after it has left it. An inline function of a header counts as its caller's.

usage: ways.py PROGRAM TREE [gpu] | ways.py --self-test      (exit code 77: no gdb, or it may not look into a process; no two GPUs)
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys

MOST = 6 # files
CALLS = {"host": ("pk_send", "pk_allreduce"), "gpu": ("pk_allreduce",)}
SECONDS = 120
HERE = os.path.dirname(os.path.abspath(__file__))
CANNOT = re.compile(r"ptrace: Operation not permitted|Cannot create process|warning: Error disabling address space|Python scripting is not supported")


def sources(tree):
    """The .c files of lib/, below it."""
    lib = os.path.join(tree, "lib")
    return {os.path.relpath(os.path.join(folder, name), lib) for folder, _, names in os.walk(lib) for name in names if name.endswith(".c")}


def file_of(path, files):
    """Where an object comes from a compiler's cache, another copy of the tree may stand in it."""
    return next((file for file in files if path.endswith("/lib/" + file)), None) if path else None


def way_of(stack, files):
    """[(function, file)] from the API down, of one line of frames.py. What is not in lib/ is left out."""
    way = []
    for function, path in reversed(stack["frames"]):
        if function == stack["call"]:
            way = []
        file = file_of(path, files)
        if file is not None:
            way.append((function, file))
    return way


def files_of(way):
    files = []
    for _, file in way:
        if not files or files[-1] != file:
            files.append(file)
    return files


def check(call, ways):
    """What is wrong with the ways of a call of the API."""
    if not ways:
        yield "%s: no system call or kernel took an address of its buffers" % call
    for way in ways:
        files = files_of(way)
        if not way or way[0][0] != call:
            yield "%s: the way does not begin there: %s" % (call, files)
        if len(set(files)) != len(files):
            yield "%s: enters %s again" % (call, sorted(file for file in set(files) if files.count(file) > 1))
        if len(set(files)) > MOST:
            yield "%s: passes %d files, %d are allowed: %s" % (call, len(set(files)), MOST, files)


def show(call, by, way):
    print("%s, %d files, to %s" % (call, len(set(files_of(way))), by))
    for file in files_of(way):
        print("    %-28s %s" % (file, " ".join(function for function, at in way if at == file)))


def environment(rank, root):
    """With what a machine decides at init that copies once faster than twice: else an allreduce of this length makes no system call."""
    return dict(os.environ, PICKLE_TEST_TUNING="shm.one_copy_fast=1", PK_RANK=str(rank), PK_SIZE="2", PK_ROOT=root, PK_LOG="none")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(command):
    """Lines of frames.py, and all that gdb said; None: it cannot be used here."""
    root = "127.0.0.1:%d" % free_port()
    gdb = ["gdb", "-nx", "-batch", "-x", os.path.join(HERE, "frames.py"), "--args"] + command
    other = subprocess.Popen(command, env=environment(1, root))
    try:
        done = subprocess.run(gdb, env=environment(0, root), capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:
        other.kill()
        other.wait()
    said = done.stdout + done.stderr
    if CANNOT.search(said) or "exited with code 0115" in said: # 77
        return None, said
    return [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("WAY ")], said


def main(program, tree, memory="host"):
    if shutil.which("gdb") is None:
        print("ways: there is no gdb")
        return 77
    stacks, said = run([program, memory])
    if stacks is None:
        print("ways: gdb cannot look into a process here, or there are no GPUs\n" + said)
        return 77
    files, problems = sources(tree), []
    for call in CALLS[memory]:
        ways = {}
        for stack in stacks:
            if stack["call"] == call:
                ways.setdefault(tuple(way_of(stack, files)), stack["by"])
        for way, by in ways.items():
            show(call, by, way)
        problems += check(call, ways)
    if problems and not stacks:
        print(said)
    for problem in problems:
        print(problem)
    print("ways: %d stacks, %d problems" % (len(stacks), len(problems)))
    return 1 if problems else 0


def stack_of(call, *frames):
    return {"call": call, "frames": [[function, file and "/t/lib/" + file] for function, file in frames]}


def self_test():
    api, engine = ("pk_send", "api/a.c"), ("run", "engine/b.c")
    deep = tuple(("f%d" % i, "engine/%d.c" % i) for i in range(5))
    cases = [
        (None, stack_of("pk_send", ("move", "shm/c.c"), engine, ("run_all", "engine/b.c"), ("inlined", "engine/b.h"), api, ("main", None))),
        (None, stack_of("pk_send", *deep, api)),
        ("passes", stack_of("pk_send", ("one", "engine/more.c"), *deep, api)),
        ("enters", stack_of("pk_send", engine, ("move", "shm/c.c"), engine, api)),
        ("does not begin", stack_of("pk_send", engine, ("thread", None))),
    ]
    wrong = 0
    for expected, stack in cases:
        files = [path[len("/t/lib/"):] for _, path in stack["frames"] if path and path.endswith(".c")]
        problems = list(check("pk_send", [tuple(way_of(stack, files))]))
        if not (any(expected in problem for problem in problems) if expected else not problems):
            print("expected '%s', got %s" % (expected, problems))
            wrong += 1
    wrong += not list(check("pk_send", []))
    print("ways self-test: %d failures" % wrong)
    return 1 if wrong else 0


if sys.argv[1:] == ["--self-test"]:
    sys.exit(self_test())
if len(sys.argv) not in (3, 4) or not set(sys.argv[3:]) <= set(CALLS):
    sys.exit(__doc__)
sys.exit(main(*sys.argv[1:]))
