#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs that run unchanged over NCCL, or over libpickle under `pickle-nccl --`: two processes, one GPU each.

usage: nccl_programs.py [--only PART,...] [--jobs N] [--expect pickle|nccl] [--pickle PATH/libpickle.so] [--out FOLDER]
       nccl_programs.py --backend gloo --device cpu      what can run without a GPU: tests of the programs themselves

Each part has processes of its own, so that a hang or a crash costs that part alone, and parts run side by side. A line PASS, FAIL
or SKIP for each, INFO for what was seen. Exit code 1 if one failed, 77 where there are not two GPUs.
"""
import argparse
import concurrent.futures
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import nccl_ctypes

HERE = os.path.dirname(os.path.abspath(__file__))
CRASHES = {-signal.SIGSEGV: "SIGSEGV", -signal.SIGBUS: "SIGBUS", -signal.SIGABRT: "SIGABRT", -signal.SIGILL: "SIGILL"}


def all_good(codes, outputs, _seconds):
    """The reason why a part failed, or None: every rank said DONE and ended with 0."""
    # A rank that was ended because another had failed comes last.
    for rank in sorted(range(len(codes)), key=lambda rank: codes[rank] == -signal.SIGKILL):
        code, output = codes[rank], outputs[rank]
        if code != 0 or "DONE" not in output.splitlines():
            wrong = re.findall(r"^(?:BAD|\w*Error|RuntimeError|torch\.distributed\.\w+).*", output, re.M)
            return "rank %d ended with %s: %s" % (rank, CRASHES.get(code, code), "; ".join(wrong[:3]) or "see its output")
    return None


def watchdog_ended(codes, outputs, seconds):
    """PyTorch's watchdog may end the process by SIGABRT, then its own text must say why."""
    code, output = codes[0], outputs[0]
    why = re.search(r".*(Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out).*", output)
    print(
        "INFO the watchdog: rank 0 ended with %s, rank 1 with %s, after %.0f s: %s"
        % (
            CRASHES.get(code, code),
            CRASHES.get(codes[1], codes[1]),
            seconds[0],
            why.group(0)[:200] if why else "no text of the watchdog",
        )
    )
    if re.search("^BAD", output, re.M):
        return re.search("^BAD.*", output, re.M).group(0)
    if seconds[0] > 40 or "began" not in output:
        return "rank 0 did not end in time, or had not begun"
    if code in (0, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGKILL):
        return "rank 0 ended with %s" % CRASHES.get(code, code)
    return None if why else "rank 0 ended with %s without a text of PyTorch's watchdog" % CRASHES.get(code, code)


def one_library(codes, outputs, seconds):
    expect = re.search(r"^INFO rank 0: expects (\w*)", outputs[0], re.M)
    return all_good(codes, outputs, seconds) or nccl_ctypes.says_wrong("\n".join(outputs), expect.group(1) if expect else "")


def survivor_good(codes, outputs, seconds):
    if codes[1] != -signal.SIGKILL:
        return "rank 1 ended with %s before it was killed" % codes[1]
    return all_good(codes[:1], outputs[:1], seconds)


class Part:
    def __init__(
        self, name, module="parts_ops", env=None, judge=all_good, ranks=2, destroy=True, gloo=True, seconds=60, function=None
    ):
        self.name, self.module, self.function = name, module, function or name
        self.env, self.judge, self.ranks, self.destroy, self.gloo, self.seconds = env or {}, judge, ranks, destroy, gloo, seconds


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
# The watchdog waits four times this long for dumps before it ends the process: a minute as it is set.
AT_ONCE = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}
LIFE = "parts_life"
PARTS = [
    Part("late_first", seconds=90),
    Part("late_second", seconds=90),
    Part("late_third", seconds=90),
    Part("late_compile", gloo=False, seconds=120),
    Part("late_expandable", function="late_first", env=EXPANDABLE, seconds=90),
    Part("uneven"),
    Part("reductions"),
    Part("premul", gloo=False),
    Part("mixed"),
    Part("mixed_expandable", function="mixed", env=EXPANDABLE),
    Part("programs", seconds=90),
    Part("programs_expandable", function="programs", env=EXPANDABLE, seconds=90),
    Part("leave", LIFE, destroy=False),
    Part("leave_pending", LIFE, destroy=False),
    Part("destroy_order", LIFE),
    Part("watchdog", LIFE, judge=watchdog_ended, gloo=False, env=AT_ONCE, seconds=75),
    Part(
        "watchdog_abort",
        LIFE,
        judge=watchdog_ended,
        gloo=False,
        function="watchdog",
        env=dict(AT_ONCE, TORCH_NCCL_ASYNC_ERROR_HANDLING="1"),
        seconds=75,
    ),
    Part("killed", LIFE, judge=survivor_good, env={"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    Part("groups", LIFE),
    Part("nonblocking", LIFE, env={"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}),
    Part("coalescing", LIFE, gloo=False),
    Part("mempool", LIFE, gloo=False),
    Part("mempool_symmetric", LIFE, gloo=False),
    Part("window", LIFE, gloo=False),
    Part("both", LIFE, gloo=False),
    Part("maps", LIFE, judge=one_library, env={"NCCL_DEBUG": "VERSION"}, gloo=False),
    Part("ddp", LIFE),
    Part("fsdp", LIFE, gloo=False),
    Part("data_parallel", LIFE, ranks=1, gloo=False),
    Part("graphs", "parts_graph", gloo=False),
    Part("compiled", "parts_graph", gloo=False, seconds=150),
]


def free_ports(count):
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def rank_main(arguments):
    """What a rank's process does."""
    sys.path.insert(0, HERE)
    import program_rank

    part = next(part for part in PARTS if part.name == arguments.part)
    rank = program_rank.Rank(arguments)
    try:
        getattr(importlib.import_module(part.module), part.function)(rank)
    except ImportError as error:
        print("SKIP %s" % error, flush=True)
        os._exit(77)
    rank.finish(part.destroy)


def command(arguments, part, rank, port):
    return [
        sys.executable,
        os.path.abspath(__file__),
        "--part",
        part.name,
        "--rank",
        str(rank),
        "--ranks",
        str(part.ranks),
        "--port",
        str(port),
        "--seconds",
        str(part.seconds),
        "--seed",
        str(arguments.seed),
        "--backend",
        arguments.backend,
        "--device",
        arguments.device,
        "--expect",
        arguments.expect,
        "--pickle",
        arguments.pickle,
    ]


def environment(part, rank, ports):
    own = dict(
        os.environ,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(part.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(ports[1]),
        PYTHONUNBUFFERED="1",
        OMP_NUM_THREADS="1",
        USE_PYTORCH_KERNEL_CACHE="0",
    )
    for name in ("PK_RANK", "PK_SIZE", "PK_ROOT"):
        own.pop(name, None)
    if part.name == "both":
        own.update(PK_RANK=str(rank), PK_SIZE="2", PK_ROOT="127.0.0.1:%d" % ports[2])
    # NVLink multicast is left out: shared machines do not offer it.
    own.setdefault("NCCL_NVLS_ENABLE", "0")
    own.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    own.update(part.env)
    return own


def start(words, own, folder):
    """(process, file of what it prints), in a process group of its own."""
    file = tempfile.TemporaryFile("w+", errors="replace")
    return (
        subprocess.Popen(
            words, env=own, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, cwd=folder
        ),
        file,
    )


def wait_all(processes, began, limit, grace=None):
    """The seconds each took; what is not done at the limit, or `grace` after one that failed, is killed with its children."""
    seconds = [None] * len(processes)
    while None in seconds:
        for rank, process in enumerate(processes):
            if seconds[rank] is None and process.poll() is not None:
                seconds[rank] = time.monotonic() - began
            if grace is not None and seconds[rank] is not None and process.returncode:
                limit = min(limit, seconds[rank] + grace)
        if time.monotonic() - began > limit:
            break
        time.sleep(0.05)
    for rank, process in enumerate(processes):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        if seconds[rank] is None:
            seconds[rank] = limit
    return seconds


def run(arguments, part):
    """(word, reason, output) of a part."""
    if arguments.backend == "gloo" and not part.gloo:
        return "SKIP", "it needs NCCL", ""
    if part.name == "both" and not arguments.pickle:
        return "SKIP", "it needs --pickle", ""
    if part.name == "both" and arguments.expect == "pickle":
        return "SKIP", "it is for NCCL and libpickle in one process", ""
    ports, began = free_ports(3), time.monotonic()
    started = [
        start(command(arguments, part, rank, ports[0]), environment(part, rank, ports), arguments.out)
        for rank in range(part.ranks)
    ]
    processes = [process for process, _ in started]
    seconds = wait_all(processes, began, part.seconds + 15, 10 if part.judge is all_good else None)
    outputs = []
    for _, file in started:
        file.seek(0)
        outputs.append(file.read())
        file.close()
    codes = [process.returncode for process in processes]
    text = "".join("---- rank %d, exit code %s, %.1f s\n%s\n" % (r, codes[r], seconds[r], outputs[r]) for r in range(part.ranks))
    if 77 in codes:
        return "SKIP", re.search(r"^SKIP (.*)", "".join(outputs), re.M).group(1), text
    if max(seconds) > part.seconds + 14:
        return "FAIL", "it did not end in %d s" % (part.seconds + 15), text
    reason = part.judge(codes, outputs, seconds)
    return ("FAIL", reason, text) if reason else ("PASS", "%.1f s" % max(seconds), text)


def report(part, word, reason, text, folder):
    for line in re.findall(r"^INFO rank .*", text, re.M):
        print("%s: %s" % (part.name, line))
    print("%s %s: %s" % (word, part.name, reason), flush=True)
    with open(os.path.join(folder, part.name + ".txt"), "w", encoding="utf-8") as file:
        file.write(text)
    if word == "FAIL":
        print("\n".join("    " + line for line in text.splitlines()[-25:]), flush=True)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--expect", default="")
    parser.add_argument("--pickle", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="", help="a folder for what each part printed")
    for name, kind in (("part", str), ("rank", int), ("ranks", int), ("port", int), ("seconds", int)):
        parser.add_argument("--" + name, type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.part:
        rank_main(arguments)
        return
    if arguments.device == "cuda":
        # In a process of its own: this one must not hold a CUDA context.
        count = subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True, check=False
        )
        if count.stdout.strip() in ("", "0", "1"):
            print("SKIP torch sees %s GPUs, two are needed %s" % (count.stdout.strip() or "no", count.stderr[-300:]))
            sys.exit(77)
    arguments.out = os.path.abspath(arguments.out or tempfile.mkdtemp(prefix="nccl-programs-"))
    os.makedirs(arguments.out, exist_ok=True)
    arguments.pickle = os.path.abspath(arguments.pickle) if arguments.pickle else ""
    only, skip = (set(filter(None, names.split(","))) for names in (arguments.only, arguments.skip))
    unknown = (only | skip) - {part.name for part in PARTS}
    if unknown:
        sys.exit("there is no part %s; there are %s" % (", ".join(unknown), " ".join(part.name for part in PARTS)))
    chosen = [part for part in PARTS if (not only or part.name in only) and part.name not in skip]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {pool.submit(run, arguments, part): part for part in chosen}
        for done in concurrent.futures.as_completed(runs):
            word, reason, text = done.result()
            failed += word == "FAIL"
            report(runs[done], word, reason, text, arguments.out)
    print("%d of %d parts failed; what they printed is in %s" % (failed, len(chosen), arguments.out))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
