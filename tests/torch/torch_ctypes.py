#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libpickle beside PyTorch: two processes, one GPU each, the library through ctypes, memory and streams from torch.

usage: torch_ctypes.py PATH/libpickle.so [--late SECONDS] [--skip capture,...]

Everything runs twice: with torch's expandable segments (VMM memory) and without. Lines PASS and FAIL, INFO for what was measured; exit
code 1 if something failed, 77 where there are not two GPUs.
"""
import argparse
import ctypes
import multiprocessing
import os
import random
import socket
import statistics
import sys
import threading
import time

RESULTS = {0: "ok", 5: "unsupported", 8: "timeout", 9: "peer", 10: "aborted"}
UINT8, F16, BF16, F32 = 1, 6, 7, 8
SUM = 0
STEPS = ("first_use", "compiled", "p2p", "order", "collectives", "reuse", "capture", "stall")


class Stream(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_size_t), ("handle", ctypes.c_void_p)]


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


class Config(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int), ("sm_policy", ctypes.c_int), ("max_sms", ctypes.c_int),
                ("nonblocking", ctypes.c_int), ("timeout_ms", ctypes.c_uint64)]


class ErrorInfo(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("code", ctypes.c_int), ("sys_errno", ctypes.c_int), ("rank", ctypes.c_int),
                ("peer", ctypes.c_int), ("op_number", ctypes.c_uint64), ("op", ctypes.c_char * 32), ("text", ctypes.c_char * 512)]


BLOCKING = Stream(0, None)


class Pickle:
    """The calls that are used here; each raises when the library returns an error."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        signatures = {
            "pk_comm_init": [pointer, pointer],
            "pk_comm_init_rank": [pointer, integer, integer, pointer, pointer],
            "pk_get_unique_id": [pointer],
            "pk_comm_destroy": [pointer],
            "pk_comm_rank": [pointer, pointer],
            "pk_comm_size": [pointer, pointer],
            "pk_comm_async_error": [pointer],
            "pk_send": [pointer, size, integer, integer, pointer, Stream],
            "pk_recv": [pointer, size, integer, integer, pointer, Stream],
            "pk_group_start": [],
            "pk_group_end": [],
            "pk_allgather": [pointer, pointer, size, integer, pointer, Stream],
            "pk_allreduce": [pointer, pointer, size, integer, ctypes.c_uint64, pointer, Stream],
            "pk_register": [pointer, pointer, size],
            "pk_deregister": [pointer, pointer, size],
            "pk_last_error": [pointer],
        }
        for name, arguments in signatures.items():
            function = getattr(self.lib, name)
            function.argtypes = arguments
            function.restype = integer

    def last_error(self):
        info = ErrorInfo(struct_size=ctypes.sizeof(ErrorInfo))
        self.lib.pk_last_error(ctypes.byref(info))
        return info.text.decode(errors="replace")

    def call(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result != 0:
            raise RuntimeError("%s: %s: %s" % (name, RESULTS.get(result, result), self.last_error()))

    def config(self, gpu):
        return Config(ctypes.sizeof(Config), gpu + 1, 0, 0, 0, 60000)

    def init(self, gpu):
        comm = ctypes.c_void_p()
        config = self.config(gpu)
        self.call("pk_comm_init", ctypes.byref(comm), ctypes.byref(config))
        return comm

    def another(self, comm, rank, gpu):
        """A second communicator of the same two ranks; its id travels through the first."""
        own, ids, second = UniqueId(), (UniqueId * 2)(), ctypes.c_void_p()
        if rank == 0:
            self.call("pk_get_unique_id", ctypes.byref(own))
        self.call("pk_allgather", ctypes.byref(own), ctypes.byref(ids), 128, UINT8, comm, BLOCKING)
        config = self.config(gpu)
        self.call("pk_comm_init_rank", ctypes.byref(second), 2, rank, ctypes.byref(ids[0]), ctypes.byref(config))
        return second


class Rank:
    def __init__(self, rank, path, barrier, late):
        import torch  # after the environment has been set

        self.torch = torch
        self.rank, self.other, self.late = rank, 1 - rank, late
        self.barrier = barrier
        self.failures = 0
        torch.cuda.set_device(rank)
        torch.zeros(1, device="cuda")
        self.pickle = Pickle(path)
        self.comm = self.pickle.init(rank)

    def report(self, good, text):
        print("%s rank %d: %s" % ("PASS" if good else "FAIL", self.rank, text), flush=True)
        self.failures += not good

    def info(self, text):
        print("INFO rank %d: %s" % (self.rank, text), flush=True)

    def meet(self):
        self.barrier.wait(120)

    def data(self, count, seed):
        """Bytes that both ranks can compute."""
        generator = self.torch.Generator().manual_seed(seed)
        return self.torch.randint(0, 256, (count,), dtype=self.torch.uint8, generator=generator)

    def send(self, tensor, stream, comm=None):
        self.pickle.call("pk_send", tensor.data_ptr(), tensor.numel() * tensor.element_size(), UINT8, self.other, comm or self.comm,
                         Stream(2, stream.cuda_stream))

    def recv(self, tensor, stream, comm=None):
        self.pickle.call("pk_recv", tensor.data_ptr(), tensor.numel() * tensor.element_size(), UINT8, self.other, comm or self.comm,
                         Stream(2, stream.cuda_stream))

    def exchange(self, source, result, stream, comm=None):
        self.pickle.call("pk_group_start")
        self.send(source, stream, comm)
        self.recv(result, stream, comm)
        self.pickle.call("pk_group_end")

    # ---- steps ----

    def operation(self, kind, count, side):
        """One operation of `count` floats in a stream; returns what checks it."""
        torch = self.torch
        with torch.cuda.stream(side):
            own = torch.full((count,), self.rank + 1.0, device="cuda")
            out = torch.full((2 * count,), -1.0, device="cuda")
        stream = Stream(2, side.cuda_stream)
        if kind == "exchange":
            self.exchange(own, out[:count], side)
            return lambda: bool((out[:count] == self.other + 1.0).all())
        if kind == "one way":
            if self.rank == 0:
                self.send(own, side)
                return lambda: True
            self.recv(out[:count], side)
            return lambda: bool((out[:count] == 1.0).all())
        if kind == "allgather":
            self.pickle.call("pk_allgather", own.data_ptr(), out.data_ptr(), count, F32, self.comm, stream)
            return lambda: bool((out[:count] == 1).all()) and bool((out[count:] == 2).all())
        self.pickle.call("pk_allreduce", own.data_ptr(), out.data_ptr(), count, F32, SUM, self.comm, stream)
        return lambda: bool((out[:count] == 3).all())

    def first_use(self):
        """Kernels of torch that have never run here, in the operation's stream and beside it, while one rank is late."""
        torch, common = self.torch, random.Random(7)
        names = ("digamma", "erfinv", "i0e", "i1", "ndtri", "entr", "log_ndtr", "bessel_j0", "expit", "sinc", "logit", "lgamma", "atanh",
                 "acosh", "expm1", "frac", "trunc", "cumsum", "cumprod", "sort", "flip", "cummax", "logcumsumexp", "argsort", "median",
                 "unique", "nonzero", "std", "prod", "renorm")
        more = {"cumsum": (0,), "cumprod": (0,), "cummax": (0,), "logcumsumexp": (0,), "flip": ((0,),), "renorm": (2, 0, 1.0)}
        turns = wrong = 0
        longest = 0.0
        for name in names:
            for dtype in (torch.float32, torch.float64):
                kind, count = common.choice(("exchange", "one way", "allgather", "allreduce")), common.choice((1024, 1 << 18, 16 << 20))
                late, both = common.randrange(2), common.random() < 0.5
                function = getattr(torch, name, None) or getattr(torch.special, name)
                arguments = more.get(name, ())
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    values = torch.rand(64, 8, device="cuda", dtype=dtype)
                self.meet()
                if self.rank == late:
                    time.sleep(0.1)
                check = self.operation(kind, count, side)
                begin = time.monotonic()
                if both or self.rank != late:
                    with torch.cuda.stream(side):
                        function(values, *arguments)
                    function(values, *arguments)
                    torch.cuda.empty_cache()
                side.synchronize()
                longest = max(longest, time.monotonic() - begin)
                turns += 1
                wrong += not check()
        self.report(wrong == 0, "%d operations beside kernels that run for the first time, %d wrong; %.2f s the longest"
                    % (turns, wrong, longest))

    def compiled(self):
        """torch.compile beside an operation whose peer is late."""
        torch, wrong = self.torch, 0
        for turn, kind in enumerate(("exchange", "allgather", "one way", "allreduce")):
            def scaled(x, by=turn + 2.0):
                return torch.tanh(x * by).sum() + x.square().mean()
            side = torch.cuda.Stream()
            values = torch.rand(1000 + turn, device="cuda")
            expected = scaled(values)
            self.meet()
            if self.rank == turn % 2:
                time.sleep(0.3)
            check = self.operation(kind, 4 << 20, side)
            got = torch.compile(scaled)(values)
            side.synchronize()
            wrong += not check() or not torch.allclose(got, expected)
        self.report(wrong == 0, "4 operations beside torch.compile, %d wrong" % wrong)

    def p2p(self):
        """Sizes that lie within and across the 20 MiB pieces of expandable segments, at odd offsets too."""
        torch = self.torch
        side = torch.cuda.Stream()
        for count, offset in ((1, 0), (4096, 0), (4097, 3), (1 << 20, 0), ((20 << 20) + 5, 1), (96 << 20, 0), (256 << 20, 0)):
            with torch.cuda.stream(side):
                source = torch.empty(count + offset, dtype=torch.uint8, device="cuda")[offset:]
                result = torch.full((count + offset,), 0x5A, dtype=torch.uint8, device="cuda")[offset:]
                source.copy_(self.data(count, count + self.rank))
            self.exchange(source, result, side)
            side.synchronize()
            good = torch.equal(result.cpu(), self.data(count, count + self.other))
            self.report(good, "exchange of %d bytes at offset %d on a side stream" % (count, offset))

    def order(self):
        """The operation takes its place in the stream: what is queued before and after it needs no synchronisation."""
        torch = self.torch
        side = torch.cuda.Stream()
        wrong = 0
        with torch.cuda.stream(side):
            source = torch.empty(1 << 20, dtype=torch.float32, device="cuda")
            result = torch.empty_like(source)
            total = torch.zeros_like(source)
            for turn in range(50):
                source.fill_(turn * 2 + self.rank)
                self.exchange(source, result, side)
                total.add_(result)
        side.synchronize()
        expected = sum(turn * 2 + self.other for turn in range(50))
        wrong = int((total != expected).sum())
        self.report(wrong == 0, "50 exchanges between kernels of one stream, %d elements wrong" % wrong)

    def collectives(self):
        torch = self.torch
        side = torch.cuda.Stream()
        stream = Stream(2, side.cuda_stream)
        for count in (1000, (1 << 20) + 3, 16 << 20):
            with torch.cuda.stream(side):
                gathered = torch.full((2 * count,), -1.0, device="cuda")
                gathered[self.rank * count:(self.rank + 1) * count] = self.rank + 1.0
                own = gathered[self.rank * count:]
            self.pickle.call("pk_allgather", own.data_ptr(), gathered.data_ptr(), count, F32, self.comm, stream)
            side.synchronize()
            good = bool((gathered[:count] == 1).all()) and bool((gathered[count:] == 2).all())
            self.report(good, "allgather in place of %d floats" % count)
            for dtype, code in ((torch.float32, F32), (torch.bfloat16, BF16), (torch.float16, F16)):
                with torch.cuda.stream(side):
                    own = (torch.arange(count, device="cuda") % 100 + self.rank).to(dtype)
                    total = torch.empty_like(own)
                self.pickle.call("pk_allreduce", own.data_ptr(), total.data_ptr(), count, code, SUM, self.comm, stream)
                side.synchronize()
                expected = (torch.arange(count, device="cuda") % 100 * 2 + 1).to(dtype)
                self.report(torch.equal(total, expected), "allreduce of %d %s" % (count, dtype))

    def reuse(self):
        """Memory that is freed, given back to the driver and allocated again: an old mapping must not be taken for it."""
        torch = self.torch
        side = torch.cuda.Stream()
        wrong = 0
        for turn in range(20):
            count = (3 << 20) + turn * (1 << 20)
            source = self.data(count, turn * 2 + self.rank).cuda()
            result = torch.zeros(count, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            self.exchange(source, result, side)
            side.synchronize()
            wrong += not torch.equal(result.cpu(), self.data(count, turn * 2 + self.other))
            del source, result
            torch.cuda.empty_cache()
            self.meet()
        self.report(wrong == 0, "20 exchanges in memory that comes and goes, %d wrong" % wrong)

    def eager_thread(self, comm, turns, outcome):
        torch = self.torch
        try:
            torch.cuda.set_device(self.rank)
            stream = torch.cuda.Stream()
            source = torch.empty(100000, dtype=torch.uint8, device="cuda")
            result = torch.empty_like(source)
            for turn in range(turns):
                with torch.cuda.stream(stream):
                    source.fill_((turn * 2 + self.rank) % 251)
                self.exchange(source, result, stream, comm)
                stream.synchronize()
                outcome["wrong"] += int((result.cpu() != (turn * 2 + self.other) % 251).any())
                outcome["turns"] += 1
        except Exception as error:  # pylint: disable=broad-except
            outcome["error"] = str(error)

    def capture(self):
        torch, count, replays = self.torch, 4 << 20, 200
        side = torch.cuda.Stream()
        source = torch.zeros(count, dtype=torch.float32, device="cuda")
        result = torch.zeros_like(source)
        doubled = torch.zeros_like(source)
        second = self.pickle.another(self.comm, self.rank, self.rank)
        outcome = {"wrong": 0, "turns": 0, "error": None}
        thread = threading.Thread(target=self.eager_thread, args=(second, 100, outcome))
        torch.cuda.synchronize()
        self.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            if self.rank == 0:
                self.send(source, side)
                self.recv(result, side)
            else:
                self.recv(result, side)
                self.send(source, side)
            torch.mul(result, 2, out=doubled)
        thread.start()
        wrong = 0
        for turn in range(replays):
            with torch.cuda.stream(side):
                source.fill_(turn * 2 + self.rank)
                graph.replay()
            side.synchronize()
            wrong += not bool((doubled == (turn * 2 + self.other) * 2).all())
        thread.join(120)
        self.report(wrong == 0, "%d replays of a captured exchange, %d wrong" % (replays, wrong))
        self.report(outcome["error"] is None and outcome["wrong"] == 0 and outcome["turns"] == 100,
                    "eager traffic beside them: %s" % outcome)
        self.meet()
        del graph
        self.pickle.call("pk_comm_destroy", second)

    def iterations(self, seconds, until=None):
        """Times in ms of one matrix product after the other, for some seconds or until the stream `until` is idle."""
        torch = self.torch
        stream = torch.cuda.Stream()
        times = []
        with torch.cuda.stream(stream):
            left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
            begin = time.monotonic()
            while time.monotonic() - begin < seconds and (until is None or not until.query()):
                start = time.monotonic()
                torch.matmul(left, left)
                stream.synchronize()
                times.append((time.monotonic() - start) * 1e3)
        return times

    def stall(self):
        """Products in one stream while another waits for a peer that is late."""
        torch = self.torch
        side = torch.cuda.Stream()
        buffer = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.iterations(0.5)
        self.meet()
        if self.rank == 1:
            time.sleep(self.late)
            self.send(buffer, side)
            side.synchronize()
            return
        alone = self.iterations(1.0)
        self.recv(buffer, side)
        beside = self.iterations(self.late + 5, side)
        side.synchronize()
        self.info("products alone: median %.3f ms, max %.3f; beside a pending receive: %d of them, median %.3f ms, max %.3f; "
                  "CUDA_DEVICE_MAX_CONNECTIONS %s" % (statistics.median(alone), max(alone), len(beside), statistics.median(beside),
                                                      max(beside), os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")))
        self.report(max(beside) < 500, "no product beside a pending receive takes half a second")

    def run(self, skip):
        for step in STEPS:
            if step in skip:
                continue
            try:
                getattr(self, step)()
            except Exception as error:  # pylint: disable=broad-except
                self.report(False, "%s: %s" % (step, error))
                break
            self.meet()
        self.pickle.call("pk_comm_destroy", self.comm)
        return self.failures


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def rank_main(rank, path, port, barrier, late, skip):
    os.environ.update(PK_RANK=str(rank), PK_SIZE="2", PK_ROOT="127.0.0.1:%d" % port)
    failures = 1
    try:
        failures = Rank(rank, path, barrier, late).run(skip)
    finally:
        if failures:
            barrier.abort()
    sys.exit(1 if failures else 0)


def run_pair(path, expandable, connections, late, skip):
    """Two ranks with the given settings; True when all went well."""
    value = "expandable_segments:%s" % expandable
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = value
    os.environ["PYTORCH_ALLOC_CONF"] = value
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(connections)
    print("== expandable segments %s, CUDA_DEVICE_MAX_CONNECTIONS %d" % (expandable, connections), flush=True)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    port = free_port()
    ranks = [context.Process(target=rank_main, args=(r, path, port, barrier, late, skip)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
        if process.is_alive():
            print("FAIL a rank does not end", flush=True)
            process.kill()
            process.join()
    return all(process.exitcode == 0 for process in ranks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--late", type=float, default=2.0, help="seconds that the peer is late in the stall test")
    parser.add_argument("--skip", default="", help="steps to leave out: " + ",".join(STEPS))
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("SKIPPED: no torch here")
        sys.exit(77)
    if torch.cuda.device_count() < 2:
        print("SKIPPED: two GPUs are needed, %d are here" % torch.cuda.device_count())
        sys.exit(77)
    skip = set(filter(None, arguments.skip.split(",")))
    path = os.path.abspath(arguments.library)
    good = True
    for expandable in (False, True):
        good = run_pair(path, expandable, 8, arguments.late, skip) and good
    good = run_pair(path, True, 1, arguments.late, skip) and good
    print("all passed" if good else "FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
