# SPDX-License-Identifier: Apache-2.0
"""One rank of a part of nccl_programs.py: its process group, streams, data that all ranks can compute, and every operation."""
import contextlib
import datetime
import faulthandler
import os
import random
import sys
import time

import torch
import torch.distributed as dist

WORLD = 2
KERNELS = (
    "digamma",
    "erfinv",
    "sinc",
    "lgamma",
    "atanh",
    "expm1",
    "frac",
    "trunc",
    "sort",
    "argsort",
    "median",
    "unique",
    "nonzero",
    "std",
    "prod",
    "asinh",
    "acosh",
    "logit",
    "cosh",
    "deg2rad",
    "erfc",
    "i0",
    "rsqrt",
    "sign",
    "tan",
    "nanmean",
    "nansum",
    "aminmax",
    "count_nonzero",
    "erf",
    "var",
    "msort",
    "fliplr",
    "triu",
    "rot90",
    "diff",
    "isinf",
    "signbit",
    "exp2",
    "log1p",
)
NOT_IN_GLOO = ("all_gather_into_tensor", "reduce_scatter_tensor", "reduce_scatter", "all_to_all")


class Rank:
    """What a part works with. Its report goes to standard output: lines BAD and INFO, and at the end DONE."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.rank, self.other = arguments.rank, 1 - arguments.rank
        self.cuda = arguments.device == "cuda"
        self.device = torch.device("cuda", self.rank) if self.cuda else torch.device("cpu")
        self.failures = self.met = self.kernels = 0
        self.common = random.Random(arguments.seed)
        faulthandler.enable()
        faulthandler.dump_traceback_later(arguments.seconds, exit=True)
        if self.cuda:
            torch.cuda.set_device(self.rank)
        self.store = None
        if arguments.ranks == WORLD:
            self.store = dist.TCPStore("127.0.0.1", arguments.port, WORLD, self.rank == 0, timeout=datetime.timedelta(seconds=60))

    def start(self, timeout=60, bound=False):
        self.meet()
        more = {"device_id": self.device} if bound and self.cuda else {}
        dist.init_process_group(self.arguments.backend, init_method="env://", timeout=datetime.timedelta(seconds=timeout), **more)

    def bad(self, text):
        print("BAD rank %d: %s" % (self.rank, text), flush=True)
        self.failures += 1

    def info(self, text):
        print("INFO rank %d: %s" % (self.rank, text), flush=True)

    def check(self, good, text):
        if not good:
            self.bad(text)

    def equal(self, got, expected, text):
        if not torch.equal(got, expected):
            wrong = (got != expected).nonzero()
            self.bad(
                "%s: %d of %d elements wrong, the first at %d: %s instead of %s"
                % (
                    text,
                    wrong.shape[0],
                    got.numel(),
                    int(wrong[0][0]),
                    got[tuple(wrong[0])].item(),
                    expected[tuple(wrong[0])].item(),
                )
            )

    def meet(self):
        """Both ranks, without the library under test."""
        self.met += 1
        key = "meet %d" % self.met
        self.store.add(key, 1)
        begin = time.monotonic()
        while self.store.add(key, 0) < WORLD:
            if time.monotonic() - begin > 60:
                raise RuntimeError("the other rank has not come to meeting %d" % self.met)
            time.sleep(0.002)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def stream(self):
        return torch.cuda.Stream() if self.cuda else None

    def within(self, stream):
        return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()

    def data(self, count, seed, rank=None):
        """Small whole numbers: sums are exact."""
        rank = self.rank if rank is None else rank
        return torch.arange(count, device=self.device, dtype=torch.float32).remainder_(97).add_(3 * rank + seed % 11)

    # ---- kernels that run for the first time ----

    def new_kernel(self):
        """Launch a kernel that this process has never run: one of torch's, or one compiled now, whose result is checked later."""
        self.kernels += 1
        if self.cuda and self.kernels % 3:
            factor = float(self.kernels + 2)
            values = torch.full((1000,), 2.0, device=self.device)
            result = (self.jitted if self.kernels % 3 == 1 else self.compiled)(values, factor)
            return lambda: self.check(bool((result == 2.0 * factor).all()), "a kernel compiled beside an operation")
        number = self.kernels // 3 if self.cuda else self.kernels
        dtype = (torch.float32, torch.float64)[number // len(KERNELS) % 2]
        getattr(torch, KERNELS[number % len(KERNELS)])(torch.full((64, 8), 0.5, device=self.device, dtype=dtype))
        return lambda: None

    def jitted(self, values, factor):
        """By torch's jiterator."""
        code = "template <typename T> T fresh_%d(T x) { return x * T(%d); }" % (self.kernels, factor)
        return torch.cuda.jiterator._create_jit_fn(code)(values)

    def compiled(self, values, factor):
        """By NVRTC and the driver's own calls to load a module, where torch offers that."""
        name = "fresh_%d" % self.kernels
        code = "__global__ void %s(float* x, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= %d; }"
        try:
            kernel = torch.cuda._compile_kernel(code % (name, factor), name)
        except Exception as error:  # pylint: disable=broad-except
            self.info("torch.cuda._compile_kernel: %s" % " ".join(str(error).split())[:200])
            return self.jitted(values, factor)
        kernel((1, 1, 1), (256, 1, 1), [values, values.numel()])
        return values

    def allocate_anew(self):
        if self.cuda:
            torch.cuda.empty_cache()
            torch.empty(33 << 20, dtype=torch.uint8, device=self.device)

    # ---- operations: each takes a number of floats, a seed, and whether it is asynchronous; gives (works, check) ----

    def halves(self, count, seed, rank=None):
        return list(self.data(2 * count, seed, rank).chunk(2))

    def all_reduce(self, count, seed, later):
        own = self.data(count, seed)
        work = dist.all_reduce(own, async_op=later)
        return work, lambda: self.equal(own, self.data(count, seed, 0) + self.data(count, seed, 1), "all_reduce")

    def broadcast(self, count, seed, later):
        root = seed % 2
        own = self.data(count, seed)
        work = dist.broadcast(own, root, async_op=later)
        return work, lambda: self.equal(own, self.data(count, seed, root), "broadcast")

    def reduce(self, count, seed, later):
        root = seed % 2
        own = self.data(count, seed)
        work = dist.reduce(own, root, async_op=later)
        expected = [0, 1] if root == self.rank else None
        return work, lambda: expected and self.equal(own, self.data(count, seed, 0) + self.data(count, seed, 1), "reduce")

    def all_gather_into_tensor(self, count, seed, later):
        own, out = self.data(count, seed), torch.full((2 * count,), -1.0, device=self.device)
        work = dist.all_gather_into_tensor(out, own, async_op=later)
        return work, lambda: self.equal(out, torch.cat([self.data(count, seed, r) for r in range(2)]), "all_gather_into_tensor")

    def all_gather(self, count, seed, later):
        own, out = self.data(count, seed), [torch.full((count,), -1.0, device=self.device) for _ in range(2)]
        work = dist.all_gather(out, own, async_op=later)
        return work, lambda: [self.equal(out[r], self.data(count, seed, r), "all_gather") for r in range(2)]

    def reduce_scatter_tensor(self, count, seed, later):
        own, out = self.data(2 * count, seed), torch.full((count,), -1.0, device=self.device)
        work = dist.reduce_scatter_tensor(out, own, async_op=later)
        return work, lambda: self.equal(
            out, self.halves(count, seed, 0)[self.rank] + self.halves(count, seed, 1)[self.rank], "reduce_scatter_tensor"
        )

    def reduce_scatter(self, count, seed, later):
        own, out = [part.clone() for part in self.halves(count, seed)], torch.full((count,), -1.0, device=self.device)
        work = dist.reduce_scatter(out, own, async_op=later)
        return work, lambda: self.equal(
            out, self.halves(count, seed, 0)[self.rank] + self.halves(count, seed, 1)[self.rank], "reduce_scatter"
        )

    def all_to_all_single(self, count, seed, later):
        own, out = self.data(2 * count, seed), torch.full((2 * count,), -1.0, device=self.device)
        work = dist.all_to_all_single(out, own, async_op=later)
        return work, lambda: self.equal(
            out, torch.cat([self.halves(count, seed, r)[self.rank] for r in range(2)]), "all_to_all_single"
        )

    def all_to_all(self, count, seed, later):
        own = [part.clone() for part in self.halves(count, seed)]
        out = [torch.full((count,), -1.0, device=self.device) for _ in range(2)]
        work = dist.all_to_all(out, own, async_op=later)
        return work, lambda: [self.equal(out[r], self.halves(count, seed, r)[self.rank], "all_to_all") for r in range(2)]

    def send_recv(self, count, seed, later):
        source = seed % 2
        own = self.data(count, seed)
        one_way = (dist.isend if later else dist.send) if self.rank == source else (dist.irecv if later else dist.recv)
        work = one_way(own, self.other)
        return work if later else None, lambda: self.equal(own, self.data(count, seed, source), "send and recv")

    def batch_isend_irecv(self, count, seed, _later):
        own, out = self.data(count, seed), torch.full((count,), -1.0, device=self.device)
        order = [dist.P2POp(dist.isend, own, self.other), dist.P2POp(dist.irecv, out, self.other)]
        works = dist.batch_isend_irecv(order if seed % 3 else order[::-1])
        return works, lambda: self.equal(out, self.data(count, seed, self.other), "batch_isend_irecv")

    def gather(self, count, seed, later):
        root = seed % 2
        own = self.data(count, seed)
        out = [torch.full((count,), -1.0, device=self.device) for _ in range(2)] if root == self.rank else None
        work = dist.gather(own, out, root, async_op=later)
        return work, lambda: [self.equal(out[r], self.data(count, seed, r), "gather") for r in range(2) if out]

    def scatter(self, count, seed, later):
        root = seed % 2
        parts = [part.clone() for part in self.halves(count, seed)] if root == self.rank else None
        out = torch.full((count,), -1.0, device=self.device)
        work = dist.scatter(out, parts, root, async_op=later)
        return work, lambda: self.equal(out, self.halves(count, seed, root)[self.rank], "scatter")

    def barrier(self, _count, _seed, later):
        more = {"device_ids": [self.rank]} if self.cuda else {}
        return dist.barrier(async_op=later, **more), lambda: None

    OPERATIONS = (
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather_into_tensor",
        "all_gather",
        "reduce_scatter_tensor",
        "reduce_scatter",
        "all_to_all_single",
        "all_to_all",
        "send_recv",
        "batch_isend_irecv",
        "gather",
        "scatter",
        "barrier",
    )

    def operations(self):
        return [name for name in self.OPERATIONS if self.arguments.backend != "gloo" or name not in NOT_IN_GLOO]

    @staticmethod
    def wait(work):
        for one in work if isinstance(work, list) else [work]:
            if one is not None:
                one.wait()

    def short_round(self):
        """Every operation once, small and a little longer."""
        for number, name in enumerate(self.operations()):
            for count in (3, 70001):
                work, check = getattr(self, name)(count, number, number % 2 == 0)
                self.wait(work)
                self.synchronize()
                check()

    def finish(self, destroy):
        if destroy:
            self.synchronize()
        if destroy and dist.is_initialized():
            dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
        print("DONE" if self.failures == 0 else "%d failures" % self.failures, flush=True)
        if self.failures:
            sys.exit(1)
