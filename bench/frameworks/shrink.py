#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a communicator of GPUs takes to lose a rank, through NCCL's API: over each libnccl.so.2 that is given, turn by turn, one process a GPU.

    shrink.py [-n ROUNDS] [-r RANKS] LIBRARY...

Milliseconds, medians over the rounds, of the slowest rank: to make the communicator (init) and its first right sum; from ncclCommShrink without the last
rank, which lives, to the first right sum of the others (leave); and the same with NCCL_SHRINK_ABORT when the last rank is killed (kill): the others are told so, and nobody has to notice it.
NCCL needs a GPU a rank; libpickle's ranks may share one. NCCL_NVLS_ENABLE=0 is set. Exit code 77: there are not enough GPUs.
"""
import argparse
import ctypes
import multiprocessing
import os
import signal
import statistics
import sys
import time

COUNT = 1 << 18
FLOAT, SUM, SHRINK_ABORT = 7, 0, 1
TURNS = ("init", "leave", "kill")
LIMIT_S = 60


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def must(code, what):
    if code != 0:
        raise RuntimeError("%s: error %d" % (what, code))


class Gpu:
    """A GPU of the driver: a context, two buffers of floats, a stream."""

    def __init__(self, ordinal):
        self.cu = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        must(self.cu.cuInit(0), "cuInit")
        must(self.cu.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
        must(self.cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        must(self.cu.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        self.stream = ctypes.c_void_p()
        must(self.cu.cuStreamCreate(ctypes.byref(self.stream), 1), "cuStreamCreate")
        self.ones, self.sums = self.buffer(), self.buffer()
        host = (ctypes.c_float * COUNT)(*[1.0] * COUNT)
        must(self.cu.cuMemcpyHtoD_v2(self.ones, host, ctypes.c_size_t(COUNT * 4)), "cuMemcpyHtoD")

    def buffer(self):
        at = ctypes.c_uint64()
        must(self.cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(COUNT * 4)), "cuMemAlloc")
        return at

    def first_and_last(self):
        must(self.cu.cuStreamSynchronize(self.stream), "cuStreamSynchronize")
        out = (ctypes.c_float * 2)()
        for i, at in enumerate((0, COUNT - 1)):
            must(self.cu.cuMemcpyDtoH_v2(ctypes.byref(out, 4 * i), ctypes.c_uint64(self.sums.value + 4 * at), ctypes.c_size_t(4)), "cuMemcpyDtoH")
        return out[0], out[1]


def gpu_count():
    try:
        cu, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    return count.value if cu.cuInit(0) == 0 and cu.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def add_up(nccl, gpu, comm, size):
    pointer = ctypes.c_void_p
    must(nccl.ncclAllReduce(pointer(gpu.ones.value), pointer(gpu.sums.value), ctypes.c_size_t(COUNT), FLOAT, SUM, comm, gpu.stream), "ncclAllReduce")
    if gpu.first_and_last() != (size, size):
        raise RuntimeError("%s is no sum of %d ranks" % (gpu.first_and_last(), size))


def rank_main(path, rank, size, pipe, barrier, turn):
    """One rank, one turn: sends when it began and when it was through."""
    nccl, unique, comm, smaller = ctypes.CDLL(path), Id(), ctypes.c_void_p(), ctypes.c_void_p()
    gpu = Gpu(rank % gpu_count())
    if rank == 0:
        must(nccl.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        pipe.send(bytes(unique))
    else:
        ctypes.memmove(ctypes.byref(unique), pipe.recv(), 128)
    barrier.wait(LIMIT_S)
    began = time.monotonic()
    must(nccl.ncclCommInitRank(ctypes.byref(comm), size, unique, rank), "ncclCommInitRank")
    add_up(nccl, gpu, comm, size)
    if turn != "init":
        barrier.wait(LIMIT_S)
        began = time.monotonic()
        if rank == size - 1 and turn == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank < size - 1:
            last = ctypes.c_int(size - 1)
            must(nccl.ncclCommShrink(comm, ctypes.byref(last), 1, ctypes.byref(smaller), None, SHRINK_ABORT if turn == "kill" else 0), "ncclCommShrink")
            add_up(nccl, gpu, smaller, size - 1)
    pipe.send((began, time.monotonic()))
    if turn == "leave":
        barrier.wait(LIMIT_S)
    os._exit(0)  # what the end of a communicator takes is measured elsewhere


def measure(path, size, turn):
    """Milliseconds of the slowest rank."""
    spawn = multiprocessing.get_context("spawn")
    barrier, pipes, ranks = spawn.Barrier(size), [spawn.Pipe() for _ in range(size)], []
    for rank in range(size):
        ranks.append(spawn.Process(target=rank_main, args=(path, rank, size, pipes[rank][1], barrier, turn)))
        ranks[-1].start()
        pipes[rank][1].close()  # so that the end of a rank shows
    try:
        unique = receive(pipes[0][0])
        for rank in range(1, size):
            pipes[rank][0].send(unique)
        alive = range(size - 1 if turn == "kill" else size)
        times = [receive(pipes[rank][0]) for rank in alive]
    finally:
        for process in ranks:
            process.join(LIMIT_S if sys.exc_info()[0] is None else 0.1)
            process.kill()
    return 1000 * (max(end for _, end in times) - min(begin for begin, _ in times))


def receive(pipe):
    if not pipe.poll(LIMIT_S):
        raise RuntimeError("a rank has said nothing for %d s" % LIMIT_S)
    return pipe.recv()


def version(path):
    number = ctypes.c_int()
    must(ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number)), "ncclGetVersion")
    return "%d.%d.%d" % (number.value // 10000, number.value // 100 % 100, number.value % 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("-r", "--ranks", type=int, default=0, help="one a GPU unless given")
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    arguments = parser.parse_args()
    for path in arguments.libraries:
        version(path)
    size = arguments.ranks or gpu_count()
    if gpu_count() == 0 or size < 2:
        print("SKIPPED: %d GPUs are here" % gpu_count())
        return 77
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    print("# %d ranks, %d GPUs, %d rounds; ms: median (least to most)" % (size, gpu_count(), arguments.rounds))
    times = {(path, turn): [] for path in arguments.libraries for turn in TURNS}
    for _ in range(arguments.rounds):
        for turn in TURNS:
            for path in arguments.libraries:
                times[path, turn].append(measure(path, size, turn))
    for path in arguments.libraries:
        cells = ["%s %8.1f (%.1f to %.1f)" % (turn, statistics.median(times[path, turn]), min(times[path, turn]), max(times[path, turn])) for turn in TURNS]
        print("%-10s %s   %s" % (version(path), "  ".join(cells), path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
