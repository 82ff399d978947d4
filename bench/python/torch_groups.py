#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over the backends "pickle" and "gloo", turn by turn in the same processes: operations of several sizes, and
what of a data-parallel step is communication: a step less one whose communication is left out by a hook. Median times, and the
ratio of the medians.

usage: torch_groups.py [--busy N] [RANKS [TURNS]]      PYTHONPATH names the folder of libpickle's package
       --busy: this number of processes beside it want a processor all the time, as on a crowded machine"""
import argparse
import datetime
import os
import signal
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import libpickle.torch

SIZES = (8, 8192, 65536, 1 << 20, 16 << 20)
MINUTES = datetime.timedelta(seconds=300)


def network(group):
    torch.manual_seed(1)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=1)


def without_communication(_, bucket):
    """A hook of DistributedDataParallel that hands back what it gets."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def step(net, batch):
    net.zero_grad()
    net(batch).pow(2).mean().backward()


def seconds(call, group):
    dist.barrier(group)
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def operations(size):
    tensor = torch.ones(size // 4)
    parts = [torch.ones(size // 4) for _ in range(dist.get_world_size())]
    calls = max(1, min(50, (1 << 21) // size))

    def often(call):
        return lambda: [call() for _ in range(calls)]
    yield "allreduce %d" % size, calls, lambda group: often(lambda: dist.all_reduce(tensor, group=group))
    yield "allgather %d" % size, calls, lambda group: often(lambda: dist.all_gather(parts, tensor, group=group))
    yield "broadcast %d" % size, calls, lambda group: often(lambda: dist.broadcast(tensor, 0, group=group))


def measured(turns, groups):
    """{row: {backend: median seconds}}"""
    rows = {}
    cases = [case for size in SIZES for case in operations(size)]
    nets = {name: network(group) for name, group in groups.items()}
    alone = network(groups["gloo"])
    alone.register_comm_hook(None, without_communication)
    batch = torch.randn(1, 512) # little to compute, also for a slow BLAS: communication is what is looked at
    for turn in range(turns + 1):
        for name, group in groups.items():
            found = {row: seconds(make(group), group) / calls for row, calls, make in cases}
            with_it = seconds(lambda: step(nets[name], batch), group)
            without = seconds(lambda: step(alone, batch), group)
            found["data-parallel step"], found["of it communication"] = with_it, max(0.0, with_it - without)
            for row, value in found.items():
                if turn: # the first one warms up
                    rows.setdefault(row, {}).setdefault(name, []).append(value)
    return {row: {name: statistics.median(values) for name, values in by.items()} for row, by in rows.items()}


def rank_main(rank, size, turns, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size, timeout=MINUTES)
    groups = {"pickle": dist.new_group(backend="pickle", timeout=MINUTES), "gloo": dist.new_group(backend="gloo", timeout=MINUTES)}
    rows = measured(turns, groups)
    dist.barrier()
    if rank == 0:
        print("%-24s %12s %12s %8s" % ("", "pickle us", "gloo us", "ratio"))
        for row, by in rows.items():
            print("%-24s %12.1f %12.1f %8.2f" % (row, by["pickle"] * 1e6, by["gloo"] * 1e6, by["pickle"] / max(by["gloo"], 1e-9)))
    dist.destroy_process_group()


def crowd(count):
    """Processes that only count. They end with this one's death, too."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            parent = os.getppid()
            while os.getppid() == parent:
                sum(range(100000))
            os._exit(0)
        pids.append(pid)
    return pids


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("ranks", type=int, nargs="?", default=2)
    parser.add_argument("turns", type=int, nargs="?", default=15)
    parser.add_argument("--busy", type=int, default=0)
    wanted = parser.parse_args()
    folder = tempfile.mkdtemp()
    children, busy = [], crowd(wanted.busy)
    for rank in range(wanted.ranks):
        pid = os.fork()
        if pid == 0:
            rank_main(rank, wanted.ranks, wanted.turns, os.path.join(folder, "store"))
            sys.exit(0)
        children.append(pid)
    code = max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in children)
    print("load of the last minute: %.1f, processors: %d" % (os.getloadavg()[0], os.cpu_count()))
    for pid in busy:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    sys.exit(code)


if __name__ == "__main__":
    main()
