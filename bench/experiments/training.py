# SPDX-License-Identifier: Apache-2.0
"""Experiments 4 to 6, 9, 10 and 11: computing beside communication, the sweep over TCP, allreduce as jobs, patterns of training."""
import csv
import os

from machine import Failed, number, ratio
from results import Chart, Table
from transfers import compared
from words import sentences

BESIDE = [("library", "library"), ("bytes", "bytes"), ("alone_ms", "alone (ms)"), ("beside_ms", "beside (ms)"), ("ratio", "alone / beside"),
          ("rate_alone_gbps", "rate alone (GB/s)"), ("rate_beside_gbps", "beside (GB/s)"), ("lost_ms_per_gb", "lost (ms/GB)"),
          ("covered", "covered")]


def beside_queue_pairs(machine):
    """What messages over RDMA cost computing."""
    table = Table("04-beside-queue-pairs", "4. Computing alone / beside messages over RDMA, by queue pairs",
                  [("qps", "QPs"), ("pickle_ratio", "libpickle"), ("peer_ratio", "NCCL")])
    for qps in (1, 2, 3, 4):
        why = machine.no_rdma()
        row = {}
        if why is None:
            try:
                end = machine.pick("64K", "1M", "16M")
                rows = machine.rows(machine.launch, 2, "pickle-perf-jobs", ["beside", "--begin", end, "--end", end, "--jobs",
                                                                       machine.pick("1", "5", "9")],
                                    environment={"PK_QPS": str(qps)}, hosts=True)
                row = {"pickle_ratio": rows[0]["ratio"]}
                why = "computing on the CPU; NCCL: needs a GPU"
            except Failed as failed:
                why = str(failed)
        table.add(reason=why, qps=qps, **row)
    table.chart = Chart("Computing beside messages over RDMA", "queue pairs", "time alone / time beside", y_from_zero=True, bytes_x=False)
    table.chart.add("libpickle", [(row["qps"], row["pickle_ratio"]) for row in table.rows])
    return table


def beside(machine, operation, name, title):
    table = Table(name, title, BESIDE, ["a ratio of 1: free. Each rank has a thread that computes and one that communicates; "
                                        "this machine has %d CPUs for 4 threads" % machine.cpus])
    table.chart = Chart("Computing beside %s, 2 ranks on %d CPUs (1: it costs nothing)" % (operation, machine.cpus), "message",
                        "time alone / time beside",
                        y_from_zero=True)
    results = machine.beside_rows
    if results is None:
        results = machine.jobs(2, "beside", "--begin", "4K", "--end", machine.pick("4K", "16M", "64M"), "--factor", "16", "--jobs",
                               machine.pick("1", "3", "7"))
        machine.beside_rows = results
    for library, rows in results.items():
        if isinstance(rows, str):
            table.add(library=library, reason=rows)
            continue
        mine = [row for row in rows if row["operation"] == operation]
        for row in mine:
            table.add(**{"library": library, **{key: row[key] for key, _ in BESIDE if key != "library"}},
                      reason="" if row["lost_ms_per_gb"] is not None else "no message ended meanwhile")
        table.chart.add(library, [(row["bytes"], row["ratio"]) for row in mine])
    return table


ON_GPUS = [("compute", "compute"), ("bytes", "bytes"), ("library", "library"), ("alone_ms", "alone (ms)"), ("beside_ms", "beside (ms)"),
           ("ratio", "raw ratio"), ("ratio_per_clock", "ratio per clock"), ("mhz_alone", "MHz alone"), ("mhz_beside", "MHz beside"),
           ("watts_alone", "W alone"), ("watts_beside", "W beside"), ("rate_alone_gbps", "GB/s alone"), ("rate_beside_gbps", "GB/s beside"),
           ("lost_ms_per_gb", "lost (ms/GB)"), ("covered", "covered"), ("free_ms", "one, free (ms)"), ("held_ms", "one, all SMs held (ms)")]


def gpu_cases(machine):
    """One run of pickle-perf-overlap serves both experiments."""
    if machine.size == "quick":  # what is said of it all first, should time not suffice
        return "sendrecv:1G,allgather:1G,allreduce:1G,sendrecv:64M,allgather:64M,sendrecv:1M"
    sizes = machine.pick(("64K",), (), ("4K", "64K", "1M", "16M", "64M", "256M", "1G", "4G"))
    gathers = machine.pick(("64K",), (), ("1M", "16M", "64M", "256M", "1G"))
    return ",".join(["sendrecv:" + size for size in sizes] + ["allgather:" + size for size in gathers] + ["allreduce:" + gathers[-1]])


def gpu_rows(machine):
    """Rows of pickle-perf-overlap, and why there are no more: NCCL in turns with libpickle, cuBLAS and cuDNN beside them. Raises Failed."""
    if machine.gpu_rows is None:
        ranks = min(len(machine.gpus), 4)
        arguments = machine.pick(["--compute", "burn", "--turns", "1", "--interval", "5", "--warm", "1"],
                                 ["--compute", "attention", "--turns", "1", "--limit", "30"], ["--compute", "matmul,attention", "--turns", "3"])
        try:
            rows = machine.rows(machine.launch, ranks, "pickle-perf-overlap", arguments + ["--nccl", "--bare", "--cases", gpu_cases(machine)])
            machine.gpu_rows = sorted(rows, key=lambda row: row["bytes"] or 0), machine.cut
        except Failed as why:
            machine.gpu_rows = why
    if isinstance(machine.gpu_rows, Failed):
        raise machine.gpu_rows
    rows, machine.cut = machine.gpu_rows
    return rows


def beside_on_gpus(machine, operation, name, title):
    table = Table(name, title, ON_GPUS, ["ratios: alone / beside, of time and of the multiprocessors' cycles; lost: longer computing per GB that left "
                                         "meanwhile", "covered: messages went all the time; held: while a kernel holds every multiprocessor"])
    table.chart = Chart("Computing on a GPU beside %s, per clock (1: it costs nothing)" % operation, "message", "cycles alone / beside", y_from_zero=True)
    why = machine.no_gpus()
    try:
        rows = gpu_rows(machine) if why is None else []
    except Failed as failed:
        why, rows = str(failed), []
    for row in rows:
        if row["operation"] not in (operation, "-") or (row["operation"] == "-" and not row["reason"]):
            continue
        missing = [heading for key, heading in ON_GPUS if row[key] is None]
        reason = row["reason"] or (", ".join(missing) + ": not measured; an operation that needs multiprocessors waits for one" if missing else "")
        table.add(reason=reason, **{key: row[key] for key, _ in ON_GPUS})
    if why is not None or not table.rows:
        table.add(reason=why or "nothing was measured")
    if why is None and machine.no_gpus(4) is not None:
        table.add(compute="on 4 GPUs", reason=machine.no_gpus(4))
    table.notes += sentences([row for row in rows if row["operation"] == operation], 64 << 20)
    for compute in dict.fromkeys(row["compute"] for row in table.rows if row["ratio_per_clock"] is not None):
        for library in dict.fromkeys(row["library"] for row in table.rows if row["ratio_per_clock"] is not None):
            table.chart.add("%s, %s" % (library, compute), [(row["bytes"], row["ratio_per_clock"]) for row in table.rows
                                                            if (row["library"], row["compute"]) == (library, compute)])
    return table


def messages_on_cpus(machine):
    return beside(machine, "sendrecv", "05-beside-messages", "5. Computing beside messages between two ranks, on the CPU")


def messages_on_gpus(machine):
    return beside_on_gpus(machine, "sendrecv", "05-beside-messages-gpu", "5. Computing beside messages both ways, on GPUs")


def allgather_on_cpus(machine):
    return beside(machine, "allgather", "06-beside-allgather", "6. Computing beside allgather of two ranks, on the CPU")


def allgather_on_gpus(machine):
    return beside_on_gpus(machine, "allgather", "06-beside-allgather-gpu", "6. Computing beside allgather, bytes a rank, on GPUs")


def allreduce_on_gpus(machine):
    return beside_on_gpus(machine, "allreduce", "06-beside-allreduce-gpu", "6. Computing beside allreduce, on GPUs")


def attention(machine):
    """The demonstration for people, where it was built: its own words, and its picture."""
    table = Table("05-attention-overlap", "4-6. examples/attention_overlap, 2 ranks", [("said", "what it said")])
    program = machine.program("attention_overlap")
    if program is None:
        table.add(reason="examples/attention_overlap was not built or not found")
        return table
    arguments = machine.pick(["--rounds", "1", "--warmup", "1", "--layers", "2", "--keys", "128", "--alone"],
                             ["--rounds", "5", "--warmup", "1"] + ([] if machine.no_gpus() else ["--layers", "4"]), [])
    try:
        launch = machine.launch if machine.mpirun is None else machine.launch_mpi
        lines = launch(2, [program] + arguments).strip().splitlines()
        for line in lines[-machine.pick(3, 12, 12):]:
            table.add(said=line.split("\r")[-1].strip() or "-")
    except Failed as why:
        table.add(reason=str(why))
    return table


SETTINGS = {"windows": (("4", "16"), ("4", "16"), ("1", "2", "4", "8", "16", "32")),
            "chunks": (("65536",), ("65536", "524288", "2097152"), tuple(str(1 << n) for n in range(16, 23))),
            "sockets": (("1",), ("1", "4"), ("1", "2", "4", "8"))}


def tcp_sweep(machine, fabric):
    """bench/tcp-sweep measures, in an order of no meaning, so that a mood of the machine falls on all."""
    size = machine.pick("1M", "16M", "16M")
    where = {"loopback": "on the loopback interface", "veth": "of a network namespace each, by a pair of virtual cards"}[fabric]
    table = Table("09-tcp-sweep-%s" % fabric, "9. TCP by sockets, chunk and window, two hosts %s, %s there and back" % (where, size),
                  [("sockets", "sockets"), ("chunk", "chunk (bytes)"), ("window", "window (chunks)"), ("gbps", "GB/s")])
    wanted = {name: machine.pick(*values) for name, values in SETTINGS.items()}
    why = None
    try:
        text = machine.run([machine.need("tcp-sweep"), "-b", os.path.dirname(machine.need("pickle-perf")), "-s", size, "-n",
                            machine.pick("2", "5", "8"), "-w", " ".join(wanted["windows"]), "-c", " ".join(wanted["chunks"]), "-k",
                            " ".join(wanted["sockets"]), fabric], [{}])
    except Failed as failed:
        text, why = failed.text, str(failed)
    rows = csv.DictReader(line for line in text.splitlines() if "," in line and not line.startswith("#"))
    for row in sorted(rows, key=lambda row: [int(row[key]) for key in ("sockets", "chunk_bytes", "window")]):
        table.add(reason="" if row["gb_per_s"] else "pickle-perf failed with these", sockets=int(row["sockets"]),
                  chunk=int(row["chunk_bytes"]), window=int(row["window"]), gbps=number(row["gb_per_s"]))
    if why is not None:
        table.add(reason=why)
    table.chart = Chart("TCP, %s: bandwidth by chunk" % fabric, "chunk", "GB/s", y_from_zero=True)
    for sockets in machine.pick((1,), (1, 4), (1, 4)):
        for window in map(int, machine.pick(("16",), ("4", "16"), ("1", "4", "16", "32"))):
            table.chart.add("%d sockets, window %d" % (sockets, window) if sockets > 1 else "1 socket, window %d" % window,
                            [(row["chunk"], row["gbps"]) for row in table.rows if (row["sockets"], row["window"]) == (sockets, window)])
    return table


def tcp_sweep_loopback(machine):
    return tcp_sweep(machine, "loopback")


def tcp_sweep_veth(machine):
    return tcp_sweep(machine, "veth")


def jobs_numel(machine):
    return machine.pick("4096", "1048576", "1048576")


def jobs_table(machine, table, workers, devices):
    """Each job of each library, and the statistics of all."""
    numel = jobs_numel(machine)
    results = machine.jobs(workers, "allreduce", "--numel", numel, "--dtype", "int32", "--warmup", machine.pick("1", "5", "5"), "--jobs", "10",
                           devices=devices)
    table.chart = Chart("allreduce of %s int32, %d workers" % (numel, workers), "job", "Gb/s", y_from_zero=True, bytes_x=False)
    for library, rows in results.items():
        if isinstance(rows, str):
            table.add(library=library, job="-", reason=rows)
            continue
        for row in rows:
            table.add(library=library, **{key: row[key] for key, _ in table.columns[1:]})
        table.chart.add(library, [(row["job"], row["goodput_gbit_per_s"]) for row in rows if isinstance(row["job"], int)])
    return table


JOBS = [("library", "library"), ("job", "job"), ("duration_ns", "duration (ns)"), ("goodput_gbit_per_s", "goodput (Gb/s)")]


def jobs_on_cpus(machine):
    table = Table("10-allreduce-jobs", "10. allreduce --numel %s --dtype int32, 4 workers: each job, and the statistics of all" % jobs_numel(machine),
                  JOBS, ["4 workers on %d CPUs%s" % (machine.cpus, ": they take turns" if machine.cpus < 4 else "")])
    return jobs_table(machine, table, 4, "host")


def jobs_compared(machine):
    bytes_ = str(4 * int(jobs_numel(machine)))
    return compared(machine, "10-allreduce-compared", "10. allreduce of %s bytes (f32), 4 workers, turn by turn (Gb/s)" % bytes_,
                    ["-r", "4"], ("pickle", "ompi-cma", "ompi-copy", "ompi-ucx", "gloo"), "allreduce", (bytes_, bytes_))


def jobs_on_gpus(machine):
    """4 workers, or as many as there are GPUs."""
    workers = max(2, min(4, len(machine.gpus)))
    table = Table("10-allreduce-jobs-gpu", "10. The same on %d GPUs" % workers, JOBS)
    if machine.no_gpus() is None:
        jobs_table(machine, table, workers, "cuda")
    if machine.no_gpus(4) is not None:
        table.add(library="4 workers", job="-", reason=machine.no_gpus(4))
    return table


PATTERNS = ("data", "sharded", "tensor", "sequence", "pipeline", "expert", "product")
PATTERN_COLUMNS = [("pattern", "pattern"), ("ranks", "ranks"), ("library", "library"), ("compute_ms", "compute (ms)"),
                   ("communicate_ms", "communicate (ms)"), ("step_ms", "step (ms)"), ("share_percent", "share of comm. (%)"),
                   ("hidden_percent", "hidden (%)"), ("efficiency", "efficiency"), ("mb_per_step", "sent (MB)"), ("note", "note")]


def add_pattern(table, machine, pattern, ranks, devices, *arguments):
    results = machine.jobs(ranks, pattern, "--steps", machine.pick("2", "8", "25"), "--warmup", machine.pick("0", "2", "5"), *arguments,
                           rounds=machine.pick(1, 1 if ranks > machine.cpus or devices == "cuda" else 2, 4), devices=devices)
    for library, rows in results.items():
        if isinstance(rows, str):
            table.add(pattern=pattern, ranks=ranks, library=library, reason=rows)
            continue
        for row in rows:
            cells = {key: row[key] for key, _ in PATTERN_COLUMNS if key not in ("note", "library")}
            table.add(library=library, note=row["note"] or "", reason=row["reason"] or "", **cells)


def share_chart(table, title):
    """The share of communication, a bar a library for each pattern and number of ranks."""
    chart = Chart(title, "", "share of the step in communication (%)", bars=True)
    for library in dict.fromkeys(row["library"] for row in table.filled()):
        rows = [row for row in table.filled() if row["library"] == library]
        chart.add(library, [("%s, %d ranks" % (row["pattern"], row["ranks"]), row["share_percent"]) for row in rows])
    return chart


def patterns_on(machine, devices, counts):
    name = "11-patterns" if devices == "host" else "11-patterns-gpu"
    # On GPUs the larger model's gradients alone are 3 GB a rank, which the host fills and looks at.
    model = machine.pick(("2", "16", "16"), *((("4", "128", "64"),) * 2 if devices == "host" else (("4", "1024", "4096"), ("4", "4096", "4096"))))
    arguments = ["--layers", model[0], "--hidden", model[1], "--tokens", model[2]]
    table = Table(name, "11. Patterns of training, %s memory: %s layers, hidden %s, %s tokens a rank" % ((devices,) + model), PATTERN_COLUMNS,
                  ["share: of the step by which it is longer than one that only computes; hidden: of communicating alone; "
                   "efficiency: compute / step", "%d CPUs: where ranks are more they take turns, and figures say less" % machine.cpus])
    for ranks in counts:
        for pattern in PATTERNS:
            if ranks >= 4 if pattern == "product" else ranks == 2 or machine.size != "tiny":
                add_pattern(table, machine, pattern, ranks, devices, *arguments)
    table.chart = share_chart(table, "Share of communication by pattern and ranks, %s memory" % devices)
    return table


def experts(machine):
    table = Table("11-expert-tokens", "11. Experts: 32 to 256 tokens a batch, 2 ranks", [("tokens", "tokens")] + PATTERN_COLUMNS)
    hidden = machine.pick("16", "128", "128")
    for tokens in machine.pick(("32",), ("32", "64", "128", "256"), ("32", "64", "128", "256")):
        before = len(table.rows)
        add_pattern(table, machine, "expert", 2, "host", "--tokens", tokens, "--hidden", hidden)
        for row in table.rows[before:]:
            row["tokens"] = int(tokens)
    table.chart = Chart("Experts, 2 ranks: share of communication", "tokens a batch", "share of the step (%)", y_from_zero=True, bytes_x=False)
    for library in dict.fromkeys(row["library"] for row in table.filled()):
        table.chart.add(library, [(row["tokens"], row["share_percent"]) for row in table.filled() if row["library"] == library])
    return table


def scaling(machine):
    """What was measured here; far beyond it the simulator predicts, in tools/pickle-sim."""
    table = Table("11-scaling", "11. Data parallel on 1 to 8 ranks: weak scaling (the same work a rank) and strong (divided)",
                  [("scaling", "scaling"), ("ranks", "ranks"), ("compute_ms", "compute (ms)"), ("step_ms", "step (ms)"), ("efficiency", "efficiency"),
                   ("share_percent", "share of comm. (%)")],
                  ["efficiency: of one rank's step, by the ranks where the work is divided; %d CPUs" % machine.cpus])
    alone = {}
    for kind, tokens_of in (("weak", lambda ranks: 64), ("strong", lambda ranks: 64 // ranks)):
        for ranks in machine.pick((1, 2), (1, 2, 4), (1, 2, 4, 8)):
            if ranks > machine.cpus:
                table.add(scaling=kind, ranks=ranks, reason="%d CPUs: ranks would wait for one another's time" % machine.cpus)
                continue
            try:
                row = machine.rows(machine.launch, ranks, "pickle-perf-jobs", ["data", "--tokens", str(tokens_of(ranks)), "--steps",
                                                                          machine.pick("2", "12", "25"), "--hidden",
                                                                          machine.pick("16", "128", "128")])[0]
            except Failed as why:
                table.add(scaling=kind, ranks=ranks, reason=str(why))
                continue
            alone.setdefault(kind, row["step_ms"])
            table.add(scaling=kind, ranks=ranks, compute_ms=row["compute_ms"], step_ms=row["step_ms"], share_percent=row["share_percent"],
                      efficiency=ratio(alone[kind], row["step_ms"] * (ranks if kind == "strong" else 1)))
    table.add(scaling="to 1,024", reason="beyond this machine: tools/pickle-sim predicts it")
    table.chart = Chart("Data parallel: efficiency", "ranks", "efficiency", y_from_zero=True, bytes_x=False)
    for kind in ("weak", "strong"):
        table.chart.add(kind, [(row["ranks"], row["efficiency"]) for row in table.rows if row["scaling"] == kind])
    return table


def patterns_on_cpus(machine):
    return patterns_on(machine, "host", machine.pick((2, 4), (2, 4), (2, 4, 8)))


def patterns_on_gpus(machine):
    """On 2, 4 and 8 GPUs, where there are enough."""
    table = patterns_on(machine, "cuda", [ranks for ranks in (2, 4, 8) if machine.no_gpus(ranks) is None])
    for ranks in (2, 4):
        if machine.no_gpus(ranks) is not None:
            table.add(pattern="all", ranks=ranks, reason=machine.no_gpus(ranks))
    return table
