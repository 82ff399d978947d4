#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that torchrun starts, the library through ctypes. It does without torch, which takes two seconds to import: what torchrun does is
to start it. Memory of torch is in python/tests/torch_operations.py.

usage: torchrun ... torchrun_rank.py PATH/libpickle.so [die]
die: in the first life of the job rank 1 dies in the middle, and torchrun starts all of them again.
"""
import ctypes
import os
import sys

from torch_ctypes import BLOCKING, F32, SUM, Config, Pickle

COUNT = 100003
DEVICE_HOST = -1


def allreduce(pickle, comm, rank, size):
    own, out = (ctypes.c_float * COUNT)(*range(rank, rank + COUNT)), (ctypes.c_float * COUNT)()
    pickle.call("pk_allreduce", own, out, COUNT, F32, SUM, comm, BLOCKING)
    if list(out) != [number * size + size * (size - 1) / 2 for number in range(COUNT)]:
        raise RuntimeError("the allreduce is wrong")


def allgather(pickle, comm, rank, size):
    own, out = (ctypes.c_float * COUNT)(*[rank] * COUNT), (ctypes.c_float * (size * COUNT))()
    pickle.call("pk_allgather", own, out, COUNT, F32, comm, BLOCKING)
    if list(out) != [place // COUNT for place in range(size * COUNT)]:
        raise RuntimeError("the allgather is wrong")


def main():
    pickle = Pickle(os.path.abspath(sys.argv[1]))
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    comm, rank, size = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    config = Config(ctypes.sizeof(Config), DEVICE_HOST, 0, 0, 0, 60000)
    pickle.call("pk_comm_init", ctypes.byref(comm), ctypes.byref(config))
    pickle.call("pk_comm_rank", comm, ctypes.byref(rank))
    pickle.call("pk_comm_size", comm, ctypes.byref(size))
    if (rank.value, size.value) != (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])):
        raise RuntimeError("rank %d of %d is not what torchrun says" % (rank.value, size.value))
    allreduce(pickle, comm, rank.value, size.value)
    if "die" in sys.argv[2:] and life == 0 and rank.value == 1:
        os._exit(3)
    allgather(pickle, comm, rank.value, size.value)
    pickle.call("pk_comm_destroy", comm)
    print("good: rank %d of %d in life %d, master %s" % (rank.value, size.value, life, os.environ["MASTER_ADDR"]), flush=True)


if __name__ == "__main__":
    main()
