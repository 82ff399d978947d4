#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls that vLLM makes to NCCL, through ctypes on the library that is named; and its CUDA graphs: 67 of 64 all-reduces each.

usage: vllm_calls.py PATH/libnccl.so.2 [--graphs 67] [--operations 64]

Two processes, one GPU each. Lines PASS and FAIL; exit code 1 if something failed, 77 where there are not two GPUs.
"""
import argparse
import ctypes
import faulthandler
import os
import re
import sys
import tempfile
import time

import nccl_ctypes
from nccl_ctypes import FLOAT32, SUM, Nccl
from nccl_programs import CRASHES, start, wait_all

SECONDS = 100


def receive_id(nccl, rank, folder):
    """Rank 0's id, through a file."""
    path = os.path.join(folder, "id")
    if rank == 0:
        with open(path + ".new", "wb") as file:
            file.write(nccl.unique_id())
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return file.read()


def check(torch, got, expected, text):
    torch.cuda.synchronize()
    if not torch.equal(got, expected):
        raise AssertionError("%s: %d of %d elements wrong" % (text, int((got != expected).sum()), got.numel()))


def data(torch, count, seed, rank):
    return torch.arange(count, device="cuda", dtype=torch.float32).remainder_(97).add_(4 * rank + seed)


def calls(torch, nccl, comm, rank):
    """Each call by itself, small and long, on a stream of torch's."""
    stream = torch.cuda.Stream()
    handle = stream.cuda_stream
    for turn, count in enumerate((1, 1000, 1 << 20)):
        with torch.cuda.stream(stream):
            parts = [data(torch, count, turn, r) for r in range(2)]
            own, out = parts[rank].clone(), torch.full((count,), -1.0, device="cuda")
            both = torch.full((2 * count,), -1.0, device="cuda")
        torch.cuda.synchronize()  # what is expected is computed in another stream
        nccl.call("ncclAllReduce", own.data_ptr(), out.data_ptr(), count, FLOAT32, SUM, comm, handle)
        check(torch, out, parts[0] + parts[1], "ncclAllReduce of %d" % count)
        nccl.call("ncclAllGather", own.data_ptr(), both.data_ptr(), count, FLOAT32, comm, handle)
        check(torch, both, torch.cat(parts), "ncclAllGather of %d" % count)
        nccl.call("ncclReduceScatter", both.data_ptr(), out.data_ptr(), count, FLOAT32, SUM, comm, handle)
        check(torch, out, 2 * parts[rank], "ncclReduceScatter of %d" % count)
        nccl.call("ncclReduce", own.data_ptr(), out.data_ptr(), count, FLOAT32, SUM, 1, comm, handle)
        torch.cuda.synchronize()
        if rank == 1:
            check(torch, out, parts[0] + parts[1], "ncclReduce of %d" % count)
        nccl.call("ncclBroadcast", own.data_ptr(), out.data_ptr(), count, FLOAT32, 1, comm, handle)
        check(torch, out, parts[1], "ncclBroadcast of %d" % count)
        if rank == 0:
            nccl.call("ncclSend", own.data_ptr(), count, FLOAT32, 1, comm, handle)
        else:
            nccl.call("ncclRecv", out.data_ptr(), count, FLOAT32, 0, comm, handle)
            check(torch, out, parts[0], "ncclRecv of %d" % count)
        nccl.call("ncclGroupStart")
        nccl.call("ncclSend", own.data_ptr(), count, FLOAT32, 1 - rank, comm, handle)
        nccl.call("ncclRecv", out.data_ptr(), count, FLOAT32, 1 - rank, comm, handle)
        nccl.call("ncclGroupEnd")
        check(torch, out, parts[1 - rank], "ncclSend and ncclRecv of %d in a group" % count)
    window(torch, nccl, comm, rank)


def window(torch, nccl, comm, rank):
    memory, handle = ctypes.c_void_p(), ctypes.c_void_p()
    nccl.call("ncclMemAlloc", ctypes.byref(memory), 4 << 20)
    nccl.call("ncclCommWindowRegister", comm, memory, 4 << 20, ctypes.byref(handle), nccl_ctypes.WIN_COLL_SYMMETRIC)
    if handle.value:
        nccl.call("ncclCommWindowDeregister", comm, handle)
    else:
        print("INFO rank %d: no window: %s" % (rank, nccl.last_error(comm)), flush=True)
    nccl.call("ncclMemFree", memory)


def capture(torch, nccl, comm, pool, stream, count, operations):
    """A chain of all-reduces; each halves the sum and adds its number, so that every one shows in the result."""
    graph, values = torch.cuda.CUDAGraph(), torch.zeros(count, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        current = values
        for number in range(operations):
            out = torch.empty_like(current)
            nccl.call(
                "ncclAllReduce",
                current.data_ptr(),
                out.data_ptr(),
                count,
                FLOAT32,
                SUM,
                comm,
                torch.cuda.current_stream().cuda_stream,
            )
            current = out * 0.5 + float(number)
    return graph, values, current


def graphs(torch, nccl, comm, rank, wanted, operations):
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    counts = [1024 * number for number in range(wanted, 0, -1)]  # the largest first, as vLLM does
    began = time.monotonic()
    captured = [capture(torch, nccl, comm, pool, stream, count, operations) for count in counts]
    print(
        "INFO rank %d: %d graphs of %d all-reduces captured in %.2f s" % (rank, wanted, operations, time.monotonic() - began),
        flush=True,
    )
    added = float(sum(range(operations)))
    began = time.monotonic()
    for turn in range(3):
        order = list(range(wanted)) if turn % 2 == 0 else list(range(wanted))[::-1]
        for which in order:
            graph, values, result = captured[which]
            values.copy_(data(torch, counts[which], turn, rank))
            graph.replay()
            expected = (data(torch, counts[which], turn, 0) + data(torch, counts[which], turn, 1)) * 0.5 + added
            check(torch, result, expected, "graph %d, replayed for the %d. time" % (which, turn + 1))
        eager = data(torch, 1000, turn, rank)
        nccl.call(
            "ncclAllReduce", eager.data_ptr(), eager.data_ptr(), 1000, FLOAT32, SUM, comm, torch.cuda.current_stream().cuda_stream
        )
        check(torch, eager, data(torch, 1000, turn, 0) + data(torch, 1000, turn, 1), "ncclAllReduce between replays")
    print("INFO rank %d: %d replays in %.2f s" % (rank, 3 * wanted, time.monotonic() - began), flush=True)


def rank_main(arguments):
    import torch

    faulthandler.enable()
    faulthandler.dump_traceback_later(SECONDS - 10, exit=True)
    torch.cuda.set_device(arguments.rank)
    nccl = Nccl(arguments.library)
    print("INFO rank %d: version %d, %s" % (arguments.rank, nccl.version(), nccl.lib.ncclGetErrorString(5).decode()), flush=True)
    comm = nccl.init(2, receive_id(nccl, arguments.rank, arguments.folder), arguments.rank)
    calls(torch, nccl, comm, arguments.rank)
    print("DONE calls", flush=True)
    graphs(torch, nccl, comm, arguments.rank, arguments.graphs, arguments.operations)
    print("DONE graphs", flush=True)
    torch.cuda.synchronize()
    nccl.call("ncclCommDestroy", comm)
    faulthandler.cancel_dump_traceback_later()
    print("DONE end", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--graphs", type=int, default=67)
    parser.add_argument("--operations", type=int, default=64)
    for name, kind in (("rank", int), ("folder", str)):
        parser.add_argument("--" + name, type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.library = os.path.abspath(arguments.library)
    if arguments.rank is not None:
        rank_main(arguments)
        return
    try:
        import torch
    except ImportError:
        print("SKIP torch is not here")
        sys.exit(77)
    if torch.cuda.device_count() < 2:
        print("SKIP two GPUs are needed, %d are here" % torch.cuda.device_count())
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix="vllm-calls-")
    own = dict(os.environ, PYTHONUNBUFFERED="1")
    own.setdefault("NCCL_NVLS_ENABLE", "0")
    for name in ("PK_RANK", "PK_SIZE", "PK_ROOT"):
        own.pop(name, None)
    started = [
        start(
            [
                sys.executable,
                os.path.abspath(__file__),
                arguments.library,
                "--rank",
                str(rank),
                "--folder",
                folder,
                "--graphs",
                str(arguments.graphs),
                "--operations",
                str(arguments.operations),
            ],
            own,
            folder,
        )
        for rank in range(2)
    ]
    wait_all([process for process, _ in started], time.monotonic(), SECONDS, 10)
    codes, outputs = [process.returncode for process, _ in started], []
    for _, file in started:
        file.seek(0)
        outputs.append(file.read())
    for output in outputs:
        print("\n".join(re.findall(r"^INFO .*", output, re.M)))
    failed = any(codes)
    for part in ("calls", "graphs", "end"):
        good = all("DONE " + part in output.splitlines() for output in outputs)
        failed = failed or not good
        print("%s %s" % ("PASS" if good else "FAIL", part))
    if failed:
        for rank in range(2):
            print("---- rank %d ended with %s\n%s" % (rank, CRASHES.get(codes[rank], codes[rank]), outputs[rank][-3000:]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
