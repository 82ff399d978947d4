# SPDX-License-Identifier: Apache-2.0
"""What a rank's fault is for the other, over the backend "pickle": an exception within the deadline, wherever it happens, and
never the end of the process. Each cell is two processes: the one at fault does what the cell is named after, and the other must
see the exception.

usage: torch_faults.py [CELL...]      as in kill-collective; all otherwise"""
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel

import libpickle
import libpickle.torch
from checks import forked, statuses
from torch_store import Store

DEADLINE = 2.0
SLACK = 1.0 * int(os.environ.get("PICKLE_TEST_SLACK", "20")) # 1 s is promised
TOGETHER = 6 # cells at a time
STORE = None
NET = []
GONE = (libpickle.PeerError, libpickle.AbortedError)
LATE = libpickle.DeadlineError
EXPECTED = { # of the other rank
    "kill": (LATE, GONE), "exit": (LATE, GONE), "raise": (LATE, GONE), "stop": (LATE, LATE), "late": (LATE, LATE),
    "mismatch": (libpickle.MismatchError,) * 2,
}


def begin(name, rank, size=2):
    dist.init_process_group("pickle", store=dist.PrefixStore(name, STORE.client()), rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=DEADLINE))


def seen_by_the_other(name):
    return "seen/" + name


def operate(where, rank, count=4):
    if where == "collective":
        dist.all_reduce(torch.zeros(count))
    elif where == "backward": # the operations and their futures are C++'s
        NET[0](torch.ones(count, 20)).sum().backward()
    elif rank == 0:
        dist.recv(torch.zeros(count), 1)
    else:
        dist.send(torch.zeros(count), 0)


def fail(fault, where, name, rank):
    """What the rank at fault does, where the cell says so."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exit":
        sys.exit(0)
    elif fault == "raise":
        sys.stderr = None # nobody needs to see its words
        raise KeyError("what a program raises")
    elif fault == "late":
        STORE.client().wait([seen_by_the_other(name)], datetime.timedelta(seconds=60))
    seen = None
    try:
        if where == "init":
            begin(name, rank, size=3 if fault == "mismatch" else 2)
        else:
            operate(where, rank, count=5)
    except Exception as error: # pylint: disable=broad-except
        seen = error
    # A short message counts as sent before anybody takes it; and who comes late may find all that the other had given.
    if seen is None and (where == "init" or fault == "mismatch" and where == "collective"):
        raise AssertionError("%s-%s: the rank at fault saw no exception" % (fault, where))


def suffer(fault, where, name, rank):
    begun = time.monotonic()
    try:
        begin(name, rank) if where == "init" else operate(where, rank)
    except Exception as error: # pylint: disable=broad-except
        taken = time.monotonic() - begun
        expected = EXPECTED[fault][where != "init"] if where != "backward" else RuntimeError # what torch makes of it
        if not isinstance(error, expected):
            raise AssertionError("%s-%s: %s instead of %s" % (fault, where, type(error), expected)) from error
        if taken > DEADLINE + SLACK:
            raise AssertionError("%s-%s: seen after %.1f s" % (fault, where, taken)) from error
        STORE.client().set(seen_by_the_other(name), "")
        print("%-9s %-10s rank %d: %5.2f s %s" % (fault, where, rank, taken, str(error).partition("\n")[0]), flush=True)
        return
    raise AssertionError("%s-%s: nothing was raised" % (fault, where))


def cell(fault, where, guilty, name):
    def body(rank):
        torch.set_num_threads(1)
        if where != "init":
            begin(name, rank)
            dist.barrier()
        if where == "backward":
            net = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.Linear(20, 1))
            NET.append(DistributedDataParallel(net, bucket_cap_mb=0.0001))
        (fail if rank == guilty else suffer)(fault, where, name, rank)
    return forked(2, body)


def judge(fault, where, guilty, pids):
    (victim,) = statuses(pids[:guilty] + pids[guilty + 1:])
    if fault == "stop":
        os.kill(pids[guilty], signal.SIGKILL)
    (other,) = statuses([pids[guilty]])
    wanted = {"kill": -signal.SIGKILL, "stop": -signal.SIGKILL, "raise": 1}.get(fault, 0)
    if victim != 0 or other != wanted:
        print("FAILED: %s-%s, rank %d at fault: it ended with %d (%d is wanted), the other with %d" % (
            fault, where, guilty, other, wanted, victim))
        return 1
    return 0


def main(names):
    """Run these cells, or all of them. Returns 1 where one failed."""
    global STORE
    STORE = Store(DEADLINE)
    cells = [(fault, where, 1) for fault in EXPECTED for where in ("init", "collective", "p2p")]
    cells += [(fault, "init", 0) for fault in EXPECTED]
    cells += [(fault, "backward", 1) for fault in ("kill", "stop", "exit", "raise", "late")]
    if names != ["all"]:
        cells = [one for one in cells if "%s-%s" % one[:2] in names]
    failed = 0
    while cells:
        batch, cells = cells[:TOGETHER], cells[TOGETHER:]
        begun = [(one, cell(*one, "-".join(map(str, one)))) for one in batch]
        failed += sum(judge(*one, pids) for one, pids in begun)
    print("torch_faults: %d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["all"]))
