#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare two runs of shipped.py, also where one was cut short.

usage: shipped_compare.py NAME=FILE NAME=FILE     exit code 1 if a test passed in the first run and not in the second
"""
import collections
import json
import sys

ORDER = ("skipped", "passed", "failed")  # of several reports of one test the worst counts


def read(path):
    results = {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        result = json.loads(line)
        old = results.get(result["test"])
        if old is None or ORDER.index(result["outcome"]) > ORDER.index(old["outcome"]):
            results[result["test"]] = result
    return results


def show(name, results):
    counts = collections.Counter(result["outcome"] for result in results.values())
    print("%-8s %4d passed %4d failed %4d skipped" % (name, counts["passed"], counts["failed"], counts["skipped"]))


def main():
    (name, first), (other, second) = (
        (argument.partition("=")[0], read(argument.partition("=")[2])) for argument in sys.argv[1:3]
    )
    show(name, first)
    show(other, second)
    passed = {test for test, result in first.items() if result["outcome"] == "passed"}
    unfinished = sorted(passed - set(second))
    worse = sorted(test for test in passed & set(second) if second[test]["outcome"] != "passed")
    better = sorted(
        test
        for test, result in second.items()
        if result["outcome"] == "passed" and first.get(test, {}).get("outcome") == "failed"
    )
    for test in worse:
        print(
            "FAIL %s: passed over %s, %s over %s: %s"
            % (test, name, second[test]["outcome"], other, second[test].get("error", ""))
        )
    for test in better:
        print("INFO %s: passed over %s alone; over %s: %s" % (test, other, name, first[test].get("error", "")))
    if unfinished:
        print(
            "INFO %d tests passed over %s and were not finished over %s: %s"
            % (len(unfinished), name, other, " ".join(unfinished))
        )
    common = len(passed & set(second))
    print(
        "%s %d tests that passed over %s and ended over %s: %d did not pass there"
        % ("FAIL" if worse or not common else "PASS", common, name, other, len(worse))
    )
    sys.exit(1 if worse or not common else 0)


if __name__ == "__main__":
    main()
