#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A set of ranks of one library: started by sets.py, one process that imports torch and forks a rank for each descriptor that
it is given. A rank reads commands as lines of JSON from its socket and answers each by a line; it ends when the socket does.

usage: rank.py BACKEND DEVICE PORT DESCRIPTOR...     BACKEND as torch's; DEVICE: cuda or cpu"""
import contextlib
import datetime
import gc
import importlib
import inspect
import json
import os
import socket
import statistics
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

WAIT = datetime.timedelta(seconds=120)
MIB = 1 << 20
FIRST_BYTES = 64 * MIB
PEAKS = {"H100 80GB HBM3": 989.4e12, "H200": 989.4e12, "A100-SXM4": 312e12} # bfloat16 without sparsity, by NVIDIA's data sheets


class Rank:
    def __init__(self, backend, device, port, rank, size):
        self.rank, self.size, self.cuda, self.backend = rank, size, device == "cuda", backend
        self.device = torch.device("cuda", rank % torch.cuda.device_count()) if self.cuda else torch.device("cpu")
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.element_bytes = 2 if self.cuda else 4
        self.case, self.times = None, 3
        self.prepare()
        before = self.outside()
        store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=WAIT)
        bound = self.cuda and "device_id" in inspect.signature(dist.init_process_group).parameters
        more = {"device_id": self.device} if bound else {}
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT, **more)
        self.base = before
        self.memory = {"init": self.outside() - before}
        self.generator = torch.Generator(device=self.device)

    def prepare(self):
        """What a process needs on its GPU whatever the library: the context, the matrix library, its workspace."""
        torch.set_num_threads(1)
        if not self.cuda:
            return
        torch.cuda.set_device(self.device)
        square = torch.ones(1024, 1024, device=self.device, dtype=self.dtype)
        (square @ square).sum().item()
        torch.cuda.synchronize()

    def outside(self):
        """Bytes of GPU memory in use that torch's allocator does not hold: contexts, kernels, and what a library has taken."""
        if not self.cuda:
            return 0
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info(self.device)
        return whole - free - torch.cuda.memory_reserved(self.device)

    def builds(self):
        """Weights made here are made on the device, where torch can."""
        return torch.device(self.device) if self.cuda and hasattr(torch.device, "__enter__") else contextlib.nullcontext()

    def seed(self, number):
        self.generator.manual_seed(1000 + number)

    # ---- commands ----

    def about(self):
        files = set()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                if "/libnccl" in line or "/libpickle.so" in line:
                    files.add(line.split()[-1])
        version = ".".join(map(str, torch.cuda.nccl.version())) if self.cuda else ""
        name = torch.cuda.get_device_name(self.device) if self.cuda else "CPU"
        peak = next((peak for word, peak in PEAKS.items() if word in name), None)
        return {"torch": torch.__version__, "version": version, "files": sorted(files), "device": name,
                "peak": peak or self.measured_peak(),
                "peak_is": "data sheet" if peak else "measured by a product of matrices"}

    def measured_peak(self):
        size = 8192 if self.cuda else 256
        square = torch.randn(size, size, device=self.device, dtype=self.dtype)
        return 2 * size ** 3 / self.timed(lambda: square @ square)

    def first_use(self, sums=True):
        """GPU memory of the library after one operation of each kind that the studies use."""
        size = FIRST_BYTES if self.cuda else 4096
        one, other = (torch.zeros(size // 4, device=self.device) for _ in range(2))
        parts = list(torch.zeros(self.size * size // 4, device=self.device).chunk(self.size))
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        calls = [lambda: dist.all_gather(parts, one), lambda: dist.all_to_all_single(other, one),
                 lambda: self.pass_on(one, other, after, before)]
        if sums:
            calls.append(lambda: dist.all_reduce(one))
        most = self.outside()
        for call in calls:
            call()
            most = max(most, self.outside())
        self.memory["first_use"] = most - self.base
        return self.memory

    def pass_on(self, one, other, after, before):
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, after), dist.P2POp(dist.irecv, other, before)]):
            work.wait()

    def build(self, study, arguments, times):
        """The case, its time without communication, and a few steps, a number of times each."""
        self.drop()
        self.times = times
        torch.manual_seed(1)
        self.seed(self.rank)
        self.case = importlib.import_module(study).make(self, **arguments)
        parts = self.case.measure_parts(self.timed)
        if hasattr(self.case, "drop"):
            self.case.drop()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        seconds = self.timed(self.case.step)
        case = self.case
        return {"parts": parts, "seconds": seconds, "samples": case.samples, "unit": case.unit, "flops": case.flops,
                "note": case.note, "exact": case.exact, "recipe": case.recipe(parts["alone"]), "unsummed": case.unsummed_bytes()}

    def drop(self):
        self.case = None
        gc.collect()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def timed(self, step):
        """Seconds of a step: the median of some, behind some that are not counted."""
        for _ in range(self.times // 2 + 1):
            step()
        return statistics.median(self.interval(step, 1)[0] for _ in range(self.times))

    def interval(self, step, steps):
        """(seconds of a step, what the steps gave), between two events of the stream on a GPU."""
        given = []
        if self.cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(steps):
                given.append(step())
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / steps, given
        began = time.perf_counter()
        for _ in range(steps):
            given.append(step())
        return (time.perf_counter() - began) / steps, given

    def turn(self, steps):
        """One step that is not counted, for the ranks to meet, and then those that are."""
        first = self.case.step()
        seconds, given = self.interval(self.case.step, steps)
        values = [float(value) for value in [first] + given if value is not None]
        most = torch.cuda.max_memory_allocated(self.device) if self.cuda else 0
        return {"seconds": seconds, "values": values, "allocated": most,
                "outside": self.outside() - self.base if self.cuda else 0}

    def copies(self):
        """What copy engines and kernels did in one step, by torch's profiler: {name: [count, bytes, bytes of those of 1 MiB
        and more, us]}."""
        if not self.cuda:
            return {}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.case.step()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
        return summary(events)

    def answer(self, command):
        do = command.pop("do")
        if do not in ("about", "first_use", "build", "turn", "copies", "drop"):
            raise ValueError("no such command: %s" % do)
        return getattr(self, do)(**command)

    def serve(self, commands, answers):
        for line in commands:
            try:
                said = {"result": self.answer(json.loads(line))}
            except NotImplementedError as error:
                said = {"result": {"refused": str(error)}}
            except Exception as error: # pylint: disable=broad-except
                traceback.print_exc()
                said = {"error": "%s: %s" % (type(error).__name__, str(error).splitlines()[0] if str(error) else "")}
            answers.write(json.dumps(said) + "\n")
            answers.flush()


def summary(events):
    found = {}
    for event in events:
        kind, name = event.get("cat"), event.get("name", "")
        if event.get("ph") != "X" or kind not in ("gpu_memcpy", "kernel"):
            continue
        if kind == "kernel" and not name.startswith(("pki_", "ncclDev", "ncclKernel")):
            name = "other kernels"
        size = int(event.get("args", {}).get("bytes", 0))
        row = found.setdefault(name, [0, 0, 0, 0])
        for place, more in enumerate((1, size, size if size >= MIB else 0, event.get("dur", 0))):
            row[place] += more
    return found


def rank_main(arguments, rank, descriptors):
    backend, device, port = arguments
    for number, descriptor in enumerate(descriptors):
        if number != rank:
            os.close(descriptor)
    if backend == "pickle":
        import libpickle.torch # noqa: F401  pylint: disable=unused-import
    own = Rank(backend, device, int(port), rank, len(descriptors))
    with socket.socket(fileno=descriptors[rank]) as end:
        with end.makefile("r", encoding="utf-8") as commands, end.makefile("w", encoding="utf-8") as answers:
            own.serve(commands, answers)
    own.drop()
    dist.destroy_process_group()


def main():
    descriptors = [int(word) for word in sys.argv[4:]]
    children = []
    for rank in range(len(descriptors)):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                rank_main(sys.argv[1:4], rank, descriptors)
                code = 0
            except BaseException: # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code) # not torch's exit of a process that waits
        children.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    sys.exit(max(1 if os.waitpid(pid, 0)[1] else 0 for pid in children))


if __name__ == "__main__":
    main()
