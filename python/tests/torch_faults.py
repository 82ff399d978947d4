# SPDX-License-Identifier: Apache-2.0
"""What a rank's fault is for the other: an exception within the deadline, wherever it happens, that says who it was, and never the
end of the process. Each cell is two processes: the one at fault does what the cell is named after, and the other must see the
exception. Over the backend "pickle", or with tensors of GPUs over the backend "nccl" under pickle-nccl.

usage: torch_faults.py [--cuda] [CELL...]      as in kill-collective; "each": rank 1's 18, without backward; without a name all
           --cuda: tensors of GPUs; there is a place more, the first operation of such tensors, which makes their communicator
       pickle-nccl -- torch_faults.py --nccl [CELL...]      without a name "each": torch raises nothing in backward there"""
import datetime
import importlib
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
EXPECTED = { # of the other rank: in init, later
    "kill": (LATE, GONE), "exit": (LATE, GONE), "raise": (LATE, GONE), "stop": (LATE, LATE), "late": (LATE, LATE),
    "mismatch": (libpickle.MismatchError,) * 2,
}
PLACES = ("init", "collective", "p2p")
CUDA = NCCL = False


def device_of(rank):
    return torch.device("cuda", rank % torch.cuda.device_count()) if CUDA else torch.device("cpu")


def begin(name, rank, size=2):
    more = {"device_id": device_of(rank)} if NCCL else {} # so that init makes the communicator
    dist.init_process_group("nccl" if NCCL else "pickle", store=dist.PrefixStore(name, STORE.client()), rank=rank,
                            world_size=size, timeout=datetime.timedelta(seconds=DEADLINE), **more)


def seen_by_the_other(name):
    return "seen/" + name


def operate(where, rank, count=4):
    tensor = torch.zeros(count, device=device_of(rank))
    if where == "backward": # the operations and their futures are C++'s
        NET[0](torch.ones(count, 20, device=tensor.device)).sum().backward()
        if CUDA:
            dist.barrier() # with GPU tensors backward() may end before the GPU does
    elif where != "p2p" and not CUDA:
        dist.all_reduce(tensor)
    elif where != "p2p": # one that is waited for: errors show there, or with the next operation
        dist.all_reduce(tensor, async_op=True).wait(datetime.timedelta(seconds=DEADLINE if NCCL else DEADLINE + SLACK))
    elif not CUDA or NCCL:
        (dist.recv if rank == 0 else dist.send)(tensor, 1 - rank)
    else:
        (dist.irecv if rank == 0 else dist.isend)(tensor, 1 - rank).wait(datetime.timedelta(seconds=DEADLINE + SLACK))


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
        STORE.client().set(seen_by_the_other(name), "")
        expected = EXPECTED[fault][where not in ("init", "first")]
        if (NCCL or where == "backward") and not isinstance(error, libpickle.Error): # torch has made one of its own of it
            expected = RuntimeError
        if not isinstance(error, expected):
            raise AssertionError("%s-%s: %s instead of %s" % (fault, where, type(error), expected)) from error
        if not NCCL and not any(word % (1 - rank) in str(error) for word in ("peer %d", "rank %d")):
            raise AssertionError("%s-%s: '%s' does not say who it was" % (fault, where, error)) from error
        if taken > DEADLINE + SLACK:
            raise AssertionError("%s-%s: seen after %.1f s" % (fault, where, taken)) from error
        print("%-9s %-10s rank %d: %5.2f s %s" % (fault, where, rank, taken, str(error).partition("\n")[0]), flush=True)
        return
    raise AssertionError("%s-%s: nothing was raised" % (fault, where))


def cell(fault, where, guilty, name):
    def body(rank):
        torch.set_num_threads(1)
        if CUDA:
            torch.cuda.set_device(device_of(rank))
        if where != "init":
            begin(name, rank)
            if CUDA and not NCCL and where != "first":
                dist.all_reduce(torch.zeros(1, device=device_of(rank)))
            dist.barrier()
        if where == "backward":
            net = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.Linear(20, 1))
            NET.append(DistributedDataParallel(net.to(device_of(rank)), bucket_cap_mb=0.0001))
            dist.barrier() # the other may still be in there
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


def under_nccl():
    """Waits of the backend nccl end with exceptions, its watchdog does not end the process, and init has a deadline, which torch's has not."""
    if "libnccl.so" not in os.environ.get("LD_PRELOAD", ""):
        sys.exit("torch_faults: --nccl wants pickle-nccl: pickle-nccl -- python3 torch_faults.py --nccl")
    os.environ.update(TORCH_NCCL_BLOCKING_WAIT="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0",
                      PK_TIMEOUT_MS=str(int(1000 * DEADLINE)))


def chosen(names):
    """(fault, where, the rank at fault) of each cell."""
    places = PLACES + (("first",) if CUDA and not NCCL else ())
    cells = [(fault, where, 1) for fault in EXPECTED for where in places]
    cells += [(fault, "init", 0) for fault in EXPECTED]
    cells += [(fault, "backward", 1) for fault in ("kill", "stop", "exit", "raise", "late")]

    def is_wanted(fault, where, guilty):
        return not names or "all" in names or "%s-%s" % (fault, where) in names or ("each" in names and guilty == 1 and where in places)
    return [one for one in cells if is_wanted(*one)]


def main(names):
    """Run these cells, or all of them. Returns 1 where one failed."""
    global STORE, CUDA, NCCL
    NCCL = "--nccl" in names
    CUDA = NCCL or "--cuda" in names
    names = [name for name in names if name not in ("--cuda", "--nccl")]
    if NCCL:
        names = names or ["each"] # of a rank 0 that does not come torch's store tells, after a minute
        under_nccl()
    if hasattr(torch, "compile"): # DistributedDataParallel imports it, longer than the deadline where all cells do so at once
        importlib.import_module("torch._dynamo")
    STORE = Store(DEADLINE)
    cells = chosen(names)
    failed = 0
    while cells:
        batch, cells = cells[:TOGETHER], cells[TOGETHER:]
        begun = [(one, cell(*one, "-".join(map(str, one)))) for one in batch]
        failed += sum(judge(*one, pids) for one, pids in begun)
    print("torch_faults: %d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
