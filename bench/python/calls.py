#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs: allreduce of 8 bytes by libpickle, and by mpi4py over Open MPI where that is here, turn by turn
in the same processes. Prints the median time of a call in each turn, and the ratio of the medians.

usage: mpirun -n 2 python3 calls.py [TURNS [CALLS]]      PYTHONPATH names the folder of libpickle's package"""
import statistics
import sys
import time

import numpy

import libpickle

try:
    from mpi4py import MPI
except ImportError:
    MPI = None


def microseconds(call, calls):
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls * 1e6


def main():
    turns, calls = (int(word) for word in (sys.argv[1:] + ["21", "10000"][len(sys.argv) - 1:]))
    comm = libpickle.Communicator(device="host")
    mine, total = numpy.full(1, comm.rank + 1.0), numpy.zeros(1)
    made = libpickle.Buffer(mine), libpickle.Buffer(total)
    programs = {
        "libpickle": lambda: comm.Allreduce(mine, total),
        "libpickle, Buffer": lambda: comm.Allreduce(*made),
    }
    if MPI is not None:
        programs["mpi4py"] = lambda: MPI.COMM_WORLD.Allreduce(mine, total)
    times = {name: [] for name in programs}
    for turn in range(turns + 1):
        for name, call in programs.items():
            total[0] = 0
            comm.Barrier()
            taken = microseconds(call, calls)
            if total[0] != comm.size * (comm.size + 1) / 2:
                sys.exit("%s: the sum is %g" % (name, total[0]))
            if turn: # the first one warms up
                times[name].append(taken)
    if comm.rank == 0:
        for name, taken in times.items():
            print("%-18s %6.2f us (%.2f to %.2f)" % (name, statistics.median(taken), min(taken), max(taken)))
        if MPI is not None:
            for name in list(programs)[:2]:
                print("%s / mpi4py: %.2f" % (name, statistics.median(times[name]) / statistics.median(times["mpi4py"])))
    comm.Free()


if __name__ == "__main__":
    main()
