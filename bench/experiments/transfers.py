# SPDX-License-Identifier: Apache-2.0
"""Experiments 1 to 3, 7, 8 and a part of 9: from one rank to another, the copy itself, and GPUs that may not reach one another."""
import statistics

from machine import Failed, ratio
from results import Chart, Table

GBIT = 8  # a GB/s


def perf_gbit(rows):
    return {row["bytes"]: row["algbw_gbps"] * GBIT for row in rows}


def one_way(machine, begin, end, *more, environment=None, hosts=True):
    return machine.perf(2, "sendrecv", "-p", "oneway", "-b", begin, "-e", end, "-f", "4", "-n", machine.pick("3", "10", "20"), "-w", "2",
                        *more, environment=environment, hosts=hosts)


def memory_of(machine):
    return ["-d", "cuda"] if machine.no_gpus() is None else []


def queue_pairs(machine):
    """Over the number of queue pairs."""
    table = Table("01-rdma-queue-pairs", "1. Bandwidth over RDMA by queue pairs, one way, 2 ranks of 2 hosts (Gb/s)",
                  [("qps", "QPs"), ("bytes", "bytes"), ("pickle_gbit", "libpickle"), ("peer_gbit", "NCCL")])
    size = machine.pick("64K", "64M", "1G")
    for qps in (1, 2, 3, 4):
        why = machine.no_rdma()
        row = {"qps": qps}
        if why is None:
            try:
                measured = one_way(machine, size, size, *memory_of(machine), environment={"PK_QPS": str(qps)})[0]
                row.update(bytes=measured["bytes"], pickle_gbit=measured["algbw_gbps"] * GBIT)
                why = "NCCL: not measured between ranks of one host"
            except Failed as failed:
                why = str(failed)
        table.add(reason=why, **row)
    table.chart = Chart("Bandwidth over RDMA", "queue pairs", "Gb/s", y_from_zero=True, bytes_x=False)
    table.chart.add("libpickle", [(row["qps"], row["pickle_gbit"]) for row in table.rows])
    return table


def rdma_sizes(machine):
    table = Table("02-rdma-sizes", "2. Bandwidth over RDMA by size, 4 queue pairs, one way, 2 ranks of 2 hosts (Gb/s)",
                  [("bytes", "bytes"), ("pickle_gbit", "libpickle"), ("peer_gbit", "NCCL")])
    why = machine.no_rdma()
    if why is None:
        try:
            rows = one_way(machine, "4K", machine.pick("64K", "64M", "4G"), *memory_of(machine), environment={"PK_QPS": "4"})
            for bytes_, rate in perf_gbit(rows).items():
                table.add(bytes=bytes_, pickle_gbit=rate, reason="NCCL: not measured between ranks of one host")
        except Failed as failed:
            why = str(failed)
    if why is not None:
        table.add(reason=why)
    table.chart = Chart("Bandwidth over RDMA, 4 queue pairs", "message", "Gb/s", y_from_zero=True)
    table.chart.add("libpickle", [(row["bytes"], row["pickle_gbit"]) for row in table.rows])
    return table


def tcp_sizes(machine):
    return compared(machine, "02-tcp-sizes", "2. Between two hosts over TCP, both here, on the loopback interface: half a round trip (Gb/s)",
                    ["--net"], ("pickle", "ompi-tcp", "gloo", "gloo-poll"))


NCCL_BY_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
SOCKETS = ((2, 2), (4, 4), (1, 4), (8, 2))  # threads of NCCL, and sockets of each: which is best differs by machine and size


def best_of_nccl(machine, *sizes):
    """Rows with the settings of NCCL's sockets tried in turn: {bytes: [Gb/s of libpickle, Gb/s of NCCL's best, its setting]}."""
    best = {}
    for threads, sockets in machine.pick(SOCKETS[:1], SOCKETS[:2], SOCKETS):
        environment = {**NCCL_BY_SOCKETS, "NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(sockets)}
        for row in one_way(machine, *sizes, "--nccl", environment=environment):
            rate, peer = row["algbw_gbps"] * GBIT, row["algbw_gbps"] * GBIT / row["nccl_ratio"]
            known = best.setdefault(row["bytes"], [[], 0, ""])
            known[0].append(rate)
            if peer > known[1]:
                known[1:] = [peer, "%d threads of %d" % (threads, sockets)]
    return {bytes_: [statistics.median(rates), peer, setting] for bytes_, (rates, peer, setting) in best.items()}


def tcp_sizes_gpu(machine):
    """Between GPUs through sockets: ranks that are taken for hosts of their own, NCCL without its ways inside a host."""
    table = Table("02-tcp-gpu-sizes", "2. Between two GPUs over TCP on the loopback interface, one way (Gb/s)",
                  [("bytes", "bytes"), ("pickle_gbit", "libpickle"), ("peer_gbit", "NCCL"), ("ratio", "libpickle / NCCL"), ("setting", "NCCL's sockets")],
                  [" ".join("%s=%s" % pair for pair in NCCL_BY_SOCKETS.items()) + ", its best of several numbers of sockets"])
    table.chart = Chart("Between two GPUs over TCP, loopback", "message", "Gb/s", log_y=True)
    why = machine.no_gpus()
    sizes = ("64K", machine.pick("64K", "64M", "1G"), "-d", "cuda")
    if why is None:
        try:
            try:
                for bytes_, (rate, peer, setting) in best_of_nccl(machine, *sizes).items():
                    table.add(bytes=bytes_, pickle_gbit=rate, peer_gbit=peer, ratio=ratio(rate, peer), setting=setting)
            except Failed as failed:
                for bytes_, rate in perf_gbit(one_way(machine, *sizes)).items():
                    table.add(reason=str(failed), bytes=bytes_, pickle_gbit=rate)
        except Failed as failed:
            why = str(failed)
    if not table.rows:
        table.add(reason=why)
    for key, heading in table.columns[1:3]:
        table.chart.add(heading, [(row["bytes"], row[key]) for row in table.rows])
    return table


def tcp_unpack(machine):
    """How what has arrived in pinned memory gets to the GPU, turn by turn."""
    table = Table("09-tcp-unpack", "9. Between two GPUs over TCP on the loopback interface, one way: copies by engines, or one kernel for all that has arrived (Gb/s)",
                  [("bytes", "bytes"), ("copy_gbit", "PK_UNPACK=copy"), ("kernel_gbit", "PK_UNPACK=kernel"), ("ratio", "kernel / copy")])
    table.chart = Chart("Over TCP to a GPU", "message", "Gb/s", log_y=True)
    why = machine.no_gpus()
    rates = {}
    try:
        for _ in range(machine.pick(1, 2, 3) if why is None else 0):
            for how in ("copy", "kernel"):
                measured = one_way(machine, "256K", machine.pick("256K", "64M", "1G"), "-d", "cuda", environment={"PK_UNPACK": how})
                for bytes_, rate in perf_gbit(measured).items():
                    rates.setdefault(bytes_, {}).setdefault(how, []).append(rate)
    except Failed as failed:
        why = str(failed)
    for bytes_, by in rates.items():
        copy, kernel = (statistics.median(by[how]) if how in by else None for how in ("copy", "kernel"))
        table.add(reason=why or "", bytes=bytes_, copy_gbit=copy, kernel_gbit=kernel, ratio=ratio(kernel, copy))
    if not table.rows:
        table.add(reason=why)
    for key, heading in table.columns[1:3]:
        table.chart.add(heading, [(row["bytes"], row[key]) for row in table.rows])
    return table


NAMES = {"pickle": "libpickle", "ompi-cma": "Open MPI, CMA", "ompi-copy": "Open MPI, copies", "ompi-ucx": "Open MPI, UCX",
         "ompi-tcp": "Open MPI, TCP", "gloo": "Gloo", "gloo-poll": "Gloo, polling", "pickle:PICKLE_TEST_TUNING=shm.cma=0": "libpickle, two copies"}


def absences(text):
    """World: why pickle-compare could not measure it."""
    lines = [line[len("# ABSENT: "):] for line in text.splitlines() if line.startswith("# ABSENT: ")]
    return dict(line.split(": ", 1) for line in lines)


def compared(machine, name, title, arguments, worlds, operation="pingpong", sizes=None):
    """A row a size: what pickle-compare measured, all libraries turn by turn. Rates are of what one rank has."""
    keys = [world.replace("-", "_").replace(":", "_").replace("=", "_").lower() + "_gbit" for world in worlds]
    table = Table(name, title, [("bytes", "bytes")] + [(key, NAMES[world]) for key, world in zip(keys, worlds)])
    table.chart = Chart(title.split(". ", 1)[1].replace(" (Gb/s)", ""), "message", "Gb/s", log_y=True)
    try:
        begin, end = sizes or ("4096", machine.pick("65536", "16M", "256M"))
        rows, text = machine.compare("-o", operation, "-b", begin, "-e", end, "-f", "4", "-k", machine.pick("1", "3", "5"), "-t",
                                     machine.pick("1", "8", "20"), "-w", ",".join(worlds), *arguments)
    except Failed as why:
        table.add(reason=str(why))
        return table
    absent = absences(text)
    for bytes_ in sorted({row["bytes"] for row in rows}):
        us = {row["world"]: row["median_us"] for row in rows if row["bytes"] == bytes_}
        cells = {key: bytes_ * 8e-3 / us[world] for key, world in zip(keys, worlds) if world in us}
        missing = ["%s: %s" % (NAMES[world], absent.get(world, "not measured")) for world in worlds if world not in us]
        table.add(reason="; ".join(missing), bytes=bytes_, **cells)
    if len(table.rows) == 1:
        table.chart = Chart(table.chart.title, "", "Gb/s", bars=True)
        table.chart.add("Gb/s", [(NAMES[world], table.rows[0][key]) for key, world in zip(keys, worlds)])
        return table
    for key, world in zip(keys, worlds):
        table.chart.add(NAMES[world], [(row["bytes"], row[key]) for row in table.rows])
    return table


def nvlink_sizes(machine):
    """NCCL and a bare copy beside it."""
    table = Table("03-nvlink-sizes", "3. Bandwidth between two GPUs by size, one way (Gb/s)",
                  [("bytes", "bytes"), ("pickle_gbit", "libpickle"), ("peer_gbit", "NCCL"), ("bare_gbit", "bare copy"),
                   ("ratio", "libpickle / NCCL")])
    why = machine.no_gpus()
    if why is None:
        try:
            sizes = ("4K", machine.pick("64K", "256M", "16G"), "-d", "cuda")
            rows = one_way(machine, *sizes, "--bare", hosts=False)
            rates, nccl, missing = perf_gbit(rows), {}, ""
            bare = {row["bytes"]: row["bare_gbps"] * GBIT for row in rows}
            try:
                rows = one_way(machine, *sizes, "--nccl", hosts=False)
                rates = perf_gbit(rows)
                nccl = {row["bytes"]: rates[row["bytes"]] / row["nccl_ratio"] for row in rows}
            except Failed as failed:
                missing = str(failed)
            for bytes_, rate in rates.items():
                table.add(bytes=bytes_, pickle_gbit=rate, peer_gbit=nccl.get(bytes_), bare_gbit=bare.get(bytes_),
                          ratio=ratio(rate, nccl.get(bytes_)), reason=missing)
        except Failed as failed:
            why = str(failed)
    if why is not None:
        table.add(reason=why)
    table.chart = Chart("Bandwidth between two GPUs", "message", "Gb/s", log_y=True)
    for key, heading in table.columns[1:4]:
        table.chart.add(heading, [(row["bytes"], row[key]) for row in table.rows])
    return table


def host_sizes(machine):
    return compared(machine, "03-host-sizes", "3. Between two processes of a host: half a round trip (Gb/s)", [],
                    ("pickle", "ompi-cma", "ompi-copy", "ompi-ucx", "gloo"))


COPIES = [("bytes", "bytes"), ("asynchronous_us", "asynchronous (us)"), ("synchronous_us", "synchronous (us)"),
          ("open_each_time_us", "open each time (us)"), ("kernel_copy_us", "copy by the kernel (us)"), ("open_us", "open (us)"),
          ("close_us", "close (us)"), ("gbit_per_s", "Gb/s")]


def copies_of(machine, memory):
    handle = "cuIpcOpenMemHandle" if memory == "cuda" else "mmap of the other's memory file"
    table = Table("07-copies-%s" % memory, "7. The copy itself and the cost of handles (%s), %s memory" % (handle, memory),
                  [column for column in COPIES if column[0] != ("kernel_copy_us" if memory == "cuda" else "asynchronous_us")])
    why = machine.no_gpus() if memory == "cuda" else None
    if why is None:
        try:
            for row in machine.rows(machine.launch, 2, "pickle-perf-jobs",
                                    ["copies", "--device", memory, "--begin", "4K", "--end", machine.pick("64K", "64M", "1G"), "--factor",
                                     "4", "--jobs", machine.pick("2", "7", "15")]):
                missing = row["reason"] or ""
                table.add(reason="" if missing.startswith(("asynchronous:", "copy by")) else missing,
                          **{key: row[key] for key, _ in table.columns})
        except Failed as failed:
            why = str(failed)
    if why is not None:
        table.add(reason=why)
    table.chart = Chart("A copy into another process's %s memory" % memory, "size", "µs", log_y=True)
    for key, heading in table.columns[1:-1]:
        table.chart.add(heading.replace(" (us)", ""), [(row["bytes"], row[key]) for row in table.rows])
    return table


def gpu_copies(machine):
    return copies_of(machine, "cuda")


def host_copies(machine):
    return copies_of(machine, "host")


def peer_to_peer(machine):
    """GPUs that reach one another, against host memory between them."""
    ranks = max(2, min(len(machine.gpus), 8))
    table = Table("08-peer-to-peer", "8. allreduce of %d GPUs: directly, and through host memory (bus bandwidth, GB/s)" % ranks,
                  [("bytes", "bytes"), ("direct_gbps", "direct"), ("staged_gbps", "through host memory"), ("ratio", "direct / staged")],
                  ["direct: PK_P2P_LEVEL=SYS; through host memory: PK_P2P_LEVEL=LOC"])
    why = machine.no_gpus()
    if why is None:
        try:
            rates = []
            for level in ("SYS", "LOC"):
                rows = machine.perf(ranks, "allreduce", "-d", "cuda", "-b", machine.pick("256K", "32M", "32M"), "-e",
                                    machine.pick("256K", "512M", "8G"), "-f", "4", "-n", machine.pick("2", "5", "10"), "-w", "1",
                                    environment={"PK_P2P_LEVEL": level})
                rates.append({row["bytes"]: row["busbw_gbps"] for row in rows})
            for bytes_, rate in rates[0].items():
                staged = rates[1].get(bytes_)
                table.add(bytes=bytes_, direct_gbps=rate, staged_gbps=staged, ratio=ratio(rate, staged), reason="" if staged else "cut off")
        except Failed as failed:
            why = str(failed)
    if why is not None:
        table.add(reason=why)
    table.chart = Chart("allreduce of %d GPUs" % ranks, "size", "GB/s", y_from_zero=True)
    for key, heading in table.columns[1:3]:
        table.chart.add(heading, [(row["bytes"], row[key]) for row in table.rows])
    return table


def one_copy_or_two(machine):
    return compared(machine, "08-host-copies",
                    "8. On the host: one copy by the kernel, or two through shared memory, half a round trip (Gb/s)", [],
                    ("pickle", "pickle:PICKLE_TEST_TUNING=shm.cma=0", "ompi-cma", "ompi-copy"))
