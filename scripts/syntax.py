#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler of a build says of those files that were not compiled there: warnings are found before code is made, in half the time.

usage: syntax.py BUILD-FOLDER
"""
import json
import multiprocessing.pool
import os
import shlex
import subprocess
import sys


def commands(build):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            words = shlex.split(entry["command"])
            output = words.index("-o")
            if not os.path.exists(os.path.join(entry["directory"], words[output + 1])):
                yield entry["directory"], words[:output] + words[output + 2:] + ["-fsyntax-only"]


def run(command):
    done = subprocess.run(command[1], cwd=command[0], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    sys.stdout.write(done.stdout.decode(errors="replace"))
    return done.returncode == 0


def main():
    wanted = list(commands(sys.argv[1]))
    with multiprocessing.pool.ThreadPool(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(run, wanted, 1)
    print("%d files, %d that do not compile" % (len(results), results.count(False)))
    sys.exit(results.count(False) != 0)


if __name__ == "__main__":
    main()
