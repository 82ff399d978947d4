# SPDX-License-Identifier: Apache-2.0
"""What the checks of the tree share: each proves on small trees with planted faults that it finds them."""
import os
import sys
import tempfile


def write(tree, files):
    for path, text in files.items():
        full = os.path.join(tree, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)


def self_test(name, cases, check):
    """cases: (part of what check(tree) must say, None for a tree in order; {path: text}). Returns how many came out otherwise."""
    failures = 0
    for expected, files in cases:
        with tempfile.TemporaryDirectory() as tree:
            write(tree, files)
            problems = list(check(tree))
        if not (any(expected in problem for problem in problems) if expected else not problems):
            print("expected '%s', got %s" % (expected, problems))
            failures += 1
    print("%s self-test: %d planted faults, %d failures" % (name, sum(1 for expected, _ in cases if expected), failures))
    return failures


def main(name, usage, cases, check):
    """usage: NAME TREE | NAME --self-test"""
    if len(sys.argv) != 2:
        sys.exit(usage)
    if sys.argv[1] == "--self-test":
        sys.exit(1 if self_test(name, cases, check) else 0)
    report(name, list(check(sys.argv[1])))


def report(name, problems):
    for problem in problems:
        print(problem)
    print("%s: %d problems" % (name, len(problems)))
    sys.exit(1 if problems else 0)
