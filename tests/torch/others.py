#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy and JAX, unchanged, over NCCL, or over libpickle under `pickle-nccl --`: one process with two GPUs, and two with one each.

usage: others.py [--only PART,...] [--expect pickle] [--out FOLDER]

A line PASS, FAIL or SKIP for each part; parts have processes of their own. Exit code 1 if one failed, 77 if none could run.
"""
import argparse
import concurrent.futures
import faulthandler
import os
import re
import signal
import sys
import tempfile
import time

import nccl_ctypes
from nccl_programs import CRASHES, free_ports, start, wait_all

SECONDS = 120
COUNTS = (1, 1000, 1 << 20)


def check(good, text):
    if not good:
        raise AssertionError(text)


def show_mapped():
    print("INFO mapped: %s" % " ".join(nccl_ctypes.mapped()), flush=True)


# ---- CuPy ----


def cupy_one_process(_rank, _port):
    """NcclCommunicator.initAll: one thread drives both GPUs, every collective in a group."""
    import cupy
    from cupy.cuda import nccl

    comms = nccl.NcclCommunicator.initAll([0, 1])
    streams = []
    for r in range(2):
        with cupy.cuda.Device(r):
            streams.append(cupy.cuda.Stream(non_blocking=True))

    def fresh(count, fill=None):
        arrays = []
        for r in range(2):
            with cupy.cuda.Device(r):
                arrays.append(
                    cupy.arange(count, dtype=cupy.float32) % 97 + 10 * r if fill is None else cupy.full(count, fill, cupy.float32)
                )
                cupy.cuda.Device(r).synchronize()
        return arrays

    def group(call):
        nccl.groupStart()
        for r in range(2):
            with cupy.cuda.Device(r):
                call(r, comms[r], streams[r].ptr)
        nccl.groupEnd()
        for r in range(2):
            with cupy.cuda.Device(r):
                streams[r].synchronize()

    def same(array, expected, text):
        check((cupy.asnumpy(array) == expected).all(), text)

    kind = nccl.NCCL_FLOAT32
    for count in COUNTS:
        own, out = fresh(count), fresh(count, -1)
        first, second = (cupy.asnumpy(array) for array in own)
        group(lambda r, comm, s: comm.allReduce(own[r].data.ptr, out[r].data.ptr, count, kind, nccl.NCCL_SUM, s))
        for r in range(2):
            same(out[r], first + second, "allReduce of %d" % count)
        group(lambda r, comm, s: comm.broadcast(own[r].data.ptr, out[r].data.ptr, count, kind, 1, s))
        for r in range(2):
            same(out[r], second, "broadcast of %d" % count)
        group(lambda r, comm, s: comm.reduce(own[r].data.ptr, out[r].data.ptr, count, kind, nccl.NCCL_MAX, 0, s))
        same(out[0], second, "reduce of %d" % count)
        both = fresh(2 * count, -1)
        group(lambda r, comm, s: comm.allGather(own[r].data.ptr, both[r].data.ptr, count, kind, s))
        for r in range(2):
            same(both[r][:count], first, "allGather of %d" % count)
            same(both[r][count:], second, "allGather of %d" % count)
        group(lambda r, comm, s: comm.reduceScatter(both[r].data.ptr, out[r].data.ptr, count, kind, nccl.NCCL_SUM, s))
        for r in range(2):
            same(out[r], 2 * (first, second)[r], "reduceScatter of %d" % count)

        def exchange(r, comm, s):
            comm.send(own[r].data.ptr, count, kind, 1 - r, s)
            comm.recv(out[r].data.ptr, count, kind, 1 - r, s)

        group(exchange)
        for r in range(2):
            same(out[r], (second, first)[r], "send and recv of %d" % count)
    for comm in comms:
        comm.destroy()


def cupyx_two_processes(rank, port):
    """cupyx.distributed with the store that it starts itself."""
    import cupy
    import cupyx.distributed

    cupy.cuda.Device(rank).use()
    comm = cupyx.distributed.init_process_group(2, rank, host="127.0.0.1", port=port)
    for count in COUNTS:
        values = [cupy.arange(count, dtype=cupy.float32) % 97 + 10 * r for r in range(2)]
        own, out = values[rank].copy(), cupy.full(count, -1, cupy.float32)
        comm.all_reduce(own, out)
        check(bool((out == values[0] + values[1]).all()), "all_reduce of %d" % count)
        out = own.copy()
        comm.broadcast(out, 1)
        check(bool((out == values[1]).all()), "broadcast of %d" % count)
        comm.reduce(own, out, root=0)
        check(rank != 0 or bool((out == values[0] + values[1]).all()), "reduce of %d" % count)
        both = cupy.full((2, count), -1, cupy.float32)
        comm.all_gather(own, both, count)
        check(all(bool((both[r] == values[r]).all()) for r in range(2)), "all_gather of %d" % count)
        comm.reduce_scatter(both, out, count)
        check(bool((out == 2 * values[rank]).all()), "reduce_scatter of %d" % count)
        comm.send_recv(own, out, 1 - rank)
        check(bool((out == values[1 - rank]).all()), "send_recv of %d" % count)
        comm.all_to_all(both, both2 := cupy.full((2, count), -1, cupy.float32))
        check(all(bool((both2[r] == values[rank]).all()) for r in range(2)), "all_to_all of %d" % count)
        comm.scatter(both, out, 0)
        check(bool((out == values[rank]).all()), "scatter of %d" % count)
        comm.gather(own, both2, 1)
        check(rank != 1 or all(bool((both2[r] == values[r]).all()) for r in range(2)), "gather of %d" % count)
        if rank == 0:
            comm.send(own, 1)
        else:
            comm.recv(out, 0)
            check(bool((out == values[0]).all()), "recv of %d" % count)
        cupy.cuda.Device(rank).synchronize()
        comm.barrier()


# ---- JAX ----


def jax_rounds(jax):
    import numpy

    numpy_of = jax.numpy
    lax, spec = jax.lax, jax.sharding.PartitionSpec
    automatic = {"axis_types": (jax.sharding.AxisType.Auto,)} if hasattr(jax.sharding, "AxisType") else {}
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("x",), **automatic)
    sharding = jax.sharding.NamedSharding(mesh, spec("x"))
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map

    def mapped(function):
        return jax.jit(shard_map(function, mesh=mesh, in_specs=spec("x"), out_specs=spec("x")))

    cases = {
        "psum": (lambda x: lax.psum(x, "x") + 0 * x, lambda a, b: (a + b, a + b)),
        "pmax": (lambda x: lax.pmax(x, "x") + 0 * x, lambda a, b: (numpy.maximum(a, b),) * 2),
        "all_gather": (lambda x: lax.all_gather(x, "x", tiled=True), lambda a, b: (numpy.concatenate([a, b]),) * 2),
        "psum_scatter": (lambda x: lax.psum_scatter(x, "x", tiled=True), lambda a, b: (a + b).reshape(2, -1)),
        "ppermute": (lambda x: lax.ppermute(x, "x", [(0, 1), (1, 0)]), lambda a, b: (b, a)),
        "all_to_all": (
            lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
            lambda a, b: (
                numpy.concatenate([a[: len(a) // 2], b[: len(b) // 2]]),
                numpy.concatenate([a[len(a) // 2 :], b[len(b) // 2 :]]),
            ),
        ),
    }
    for count in (2, 1000, 1 << 20):
        parts = [(numpy.arange(count) % 97 + 10 * r).astype(numpy.float32) for r in range(2)]
        whole = numpy.concatenate(parts)
        array = jax.make_array_from_callback(whole.shape, sharding, lambda index, whole=whole: whole[index])
        for name, (function, expected) in cases.items():
            compiled = mapped(function)
            for _ in range(3):
                result = jax.block_until_ready(compiled(array))
            for shard in result.addressable_shards:
                which = list(mesh.devices).index(shard.device)
                check(
                    (numpy.asarray(shard.data) == expected(*parts)[which]).all(), "%s of %d on device %d" % (name, count, which)
                )
    matrix = numpy.arange(64, dtype=numpy.float32).reshape(8, 8)
    array = jax.make_array_from_callback(matrix.shape, sharding, lambda index: matrix[index])
    total = jax.jit(lambda x: numpy_of.sum(x @ x.T))(array)
    check(float(total) == float((matrix @ matrix.T).sum()), "what the compiler made of a product of shards")


def jax_one_process(_rank, _port):
    """shard_map over both GPUs of one process."""
    import jax

    check(len(jax.devices()) == 2, "JAX sees %s" % jax.devices())
    jax_rounds(jax)


def jax_two_processes(rank, port):
    """jax.distributed: one GPU a process."""
    import jax

    more = {} if os.environ.get("JAX_PLATFORMS") == "cpu" else {"local_device_ids": [rank]}
    jax.distributed.initialize("127.0.0.1:%d" % port, num_processes=2, process_id=rank, **more)
    check(len(jax.local_devices()) == 1 and len(jax.devices()) == 2, "JAX sees %s" % jax.devices())
    jax_rounds(jax)
    jax.distributed.shutdown()


PARTS = {
    "cupy_one_process": (cupy_one_process, 1),
    "cupyx_two_processes": (cupyx_two_processes, 2),
    "jax_one_process": (jax_one_process, 1),
    "jax_two_processes": (jax_two_processes, 2),
}


def rank_main(arguments):
    faulthandler.enable()
    faulthandler.dump_traceback_later(SECONDS - 10, exit=True)
    try:
        PARTS[arguments.part][0](arguments.rank, arguments.port)
    except ImportError as error:
        print("SKIP %s" % error, flush=True)
        os._exit(77)
    show_mapped()
    faulthandler.cancel_dump_traceback_later()
    print("DONE", flush=True)


def run(arguments, name):
    ranks, (port,), began = PARTS[name][1], free_ports(1), time.monotonic()
    own = dict(os.environ, PYTHONUNBUFFERED="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    own.setdefault("NCCL_NVLS_ENABLE", "0")
    own["NCCL_DEBUG"] = "VERSION"
    started = [
        start(
            [
                sys.executable,
                os.path.abspath(__file__),
                "--part",
                name,
                "--rank",
                str(rank),
                "--port",
                str(port),
                "--expect",
                arguments.expect,
            ],
            own,
            arguments.out,
        )
        for rank in range(ranks)
    ]
    seconds = wait_all([process for process, _ in started], began, SECONDS, 10)
    codes, outputs = [process.returncode for process, _ in started], []
    for _, file in started:
        file.seek(0)
        outputs.append(file.read())
        file.close()
    text = "".join("---- rank %d, exit code %s\n%s\n" % (r, codes[r], outputs[r]) for r in range(ranks))
    if 77 in codes:
        return "SKIP", re.search(r"^SKIP (.*)", text, re.M).group(1), text
    # A rank that was ended because another had failed comes last.
    for r in sorted(range(ranks), key=lambda r: codes[r] == -signal.SIGKILL):
        if codes[r] != 0 or "DONE" not in outputs[r].splitlines():
            wrong = re.findall(r"^\S*(?:Error|Exception|error).*", outputs[r], re.M)
            return (
                "FAIL",
                "rank %d ended with %s: %s" % (r, CRASHES.get(codes[r], codes[r]), "; ".join(wrong[-2:]) or "see its output"),
                text,
            )
    wrong = None if own.get("JAX_PLATFORMS") == "cpu" else nccl_ctypes.says_wrong("\n".join(outputs), arguments.expect)
    return ("FAIL", wrong, text) if wrong else ("PASS", "%.1f s" % max(seconds), text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--expect", default="")
    parser.add_argument("--out", default="")
    for name, kind in (("part", str), ("rank", int), ("port", int)):
        parser.add_argument("--" + name, type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        rank_main(arguments)
        return
    arguments.out = os.path.abspath(arguments.out or tempfile.mkdtemp(prefix="nccl-others-"))
    os.makedirs(arguments.out, exist_ok=True)
    names, words = arguments.only.split(","), []
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        runs = {pool.submit(run, arguments, name): name for name in names}
        for done in concurrent.futures.as_completed(runs):
            word, reason, text = done.result()
            words.append(word)
            for line in re.findall(r"^INFO .*", text, re.M):
                print("%s: %s" % (runs[done], line))
            print("%s %s: %s" % (word, runs[done], reason), flush=True)
            with open(os.path.join(arguments.out, runs[done] + ".txt"), "w", encoding="utf-8") as file:
                file.write(text)
            if word == "FAIL":
                print("\n".join("    " + line for line in text.splitlines()[-25:]), flush=True)
    sys.exit(1 if "FAIL" in words else 77 if set(words) == {"SKIP"} else 0)


if __name__ == "__main__":
    main()
