#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/run_all when time is over: what was measured is shown and written, rows say why the rest is missing, and no process is left. The
programs are scripts here that write two rows and then stand still.
usage: cut_off.py RUN_ALL"""
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

STANDS_STILL = """#!/bin/sh
trap '' TERM
echo $$ >>"%(pids)s"
while [ $# -gt 0 ]; do
    [ "$1" != --csv ] || csv=$2
    shift
done
[ -z "$csv" ] || printf 'bytes,synchronous_us,open_each_time_us,kernel_copy_us,open_us,close_us,gbit_per_s,reason\\n4096,1,2,3,4,5,6,\\n16384,1,2,3,4,5,6,\\n' >"$csv"
echo "2 of 9 done"
while :; do sleep 0.2; done
"""


def wait_for(what, seconds):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not within %d s" % seconds
        time.sleep(0.05)


def start(run_all, work, *arguments):
    os.makedirs(work + "/bin", exist_ok=True)
    for name in ("pickle-perf", "pickle-perf-jobs", "pickle-compare"):
        with open("%s/bin/%s" % (work, name), "w", encoding="utf-8") as out:
            out.write(STANDS_STILL % {"pids": work + "/pids"})
        os.chmod("%s/bin/%s" % (work, name), 0o755)
    open(work + "/pids", "w", encoding="utf-8").close()
    environment = {key: value for key, value in os.environ.items() if key != "PICKLE_BENCH_GPUS"}
    return subprocess.Popen([sys.executable, run_all, "--tiny", "--bin", work + "/bin", "--out", work + "/out"] + list(arguments), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def rows_of(work, name):
    with open("%s/out/%s.csv" % (work, name), encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    with open("%s/out/%s.json" % (work, name), encoding="utf-8") as file:
        assert len(json.load(file)["rows"]) == len(rows)
    return rows


def pids(work):
    with open(work + "/pids", encoding="utf-8") as lines:
        return [int(line) for line in lines]


def nothing_left(work):
    assert pids(work)
    wait_for(lambda: not any(os.path.exists("/proc/%d" % pid) for pid in pids(work)), 5)


def two_rows_and(work, why):
    rows = rows_of(work, "07-copies-host")
    assert [(row["bytes"], row["reason"]) for row in rows[:2]] == [("4096", ""), ("16384", "")], rows
    assert len(rows) == 3 and why in rows[2]["reason"] and "2 of 9 done" in rows[2]["reason"], rows


def budget_is_over(run_all, work):
    began = time.monotonic()
    process = start(run_all, work, "--only", "host", "--budget", "3", "7", "8")
    text = process.communicate(timeout=60)[0]
    assert time.monotonic() - began < 20 and process.returncode == 0, text
    assert "\n16384  " in text, text
    two_rows_and(work, "cut off: the 3 s of this run are over")
    assert "not run: out of time" in rows_of(work, "08-host-copies")[0]["reason"]
    nothing_left(work)


def told_to_end(run_all, work):
    process = start(run_all, work, "--only", "host", "7", "8")
    wait_for(lambda: len(pids(work)) == 2, 30)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 1 and "SIGTERM" in text, (process.returncode, text)
    two_rows_and(work, "told to end by SIGTERM")
    assert "not run" in rows_of(work, "08-host-copies")[0]["reason"]
    nothing_left(work)


def order_on_gpus(run_all, work):
    """What matters most first; where there is none every row says so, at once."""
    process = start(run_all, work, "--only", "gpu")
    text = process.communicate(timeout=60)[0]
    titles = [line.split(":")[0][3:] for line in text.splitlines() if line.startswith("== ")]
    assert titles == "5 6 3 10 11 2 7 8 9".split(), titles


def main():
    for test in (budget_is_over, told_to_end, order_on_gpus):
        with tempfile.TemporaryDirectory() as work:
            test(sys.argv[1], work)
            print("ok: " + test.__name__)


main()
