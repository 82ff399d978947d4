# SPDX-License-Identifier: Apache-2.0
"""What there is on this machine, and starting programs on it: one process a rank."""
import csv
import datetime
import glob
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

REST_SECONDS = 5  # that the other ranks have to end when one has failed
END_SECONDS = 3   # that a process has to end when it is told to
SHOW_SECONDS = 0.5


class Failed(Exception):
    """A program did not run to its end: its last line; `text`: all that its first process said."""

    def __init__(self, why, text=""):
        super().__init__(why)
        self.text = text


def first_line(path, key):
    try:
        with open(path, encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)
    except OSError:
        return None


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def free_port():
    """Not one of those that the kernel hands out to whoever connects meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def ratio(one, other):
    return one / other if one is not None and other else None


class Machine:
    def __init__(self, folders, size, seconds=None):
        self.folders = folders
        self.size = size  # "tiny", "quick" or "full"
        self.seconds = seconds  # of the whole run, from now on; None: as long as it takes
        self.began = time.monotonic()
        self.limit = self.table_began = None  # of the table that is being made
        self.stopped = None      # why everything is to end
        self.cut = []            # why rows of the table that is being made are missing behind those that are there
        self.cpus = len(os.sched_getaffinity(0))
        if os.environ.get("PICKLE_BENCH_GPUS"):  # a driver that nvidia-smi does not know
            self.gpus = ["GPU %d" % i for i in range(int(os.environ["PICKLE_BENCH_GPUS"]))]
        else:
            self.gpus = [line for line in output_of("nvidia-smi", "-L").splitlines() if line.startswith("GPU ")]
        self.rdma = sorted(os.path.basename(path) for path in glob.glob("/sys/class/infiniband/*"))
        self.mpirun = shutil.which("mpirun")
        self.failures = []       # of programs of libpickle, that ran and should not have failed
        nccl = [path for folder in sys.path for path in glob.glob(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2"))]
        if nccl:
            os.environ.setdefault("PERF_NCCL_LIBRARY", nccl[0])
        self.beside_rows = None  # of pickle-perf-jobs beside, which two experiments show
        self.gpu_rows = None     # of pickle-perf-overlap, likewise; or why there are none

    def pick(self, tiny, quick, full):
        """What suits the size of the run."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.size]

    def about(self):
        cpu = first_line("/proc/cpuinfo", "model name") or platform.machine()
        memory = int((first_line("/proc/meminfo", "MemTotal") or "0").split()[0]) >> 20
        load = os.getloadavg()[0]
        gpus = "%d x %s" % (len(self.gpus), self.gpus[0].split(": ", 1)[-1].split(" (")[0]) if self.gpus else "no GPU"
        return ["%s, %s, %d CPUs, %d GiB, Linux %s" % (datetime.datetime.now().strftime("%Y-%m-%d %H:%M"), cpu, self.cpus, memory,
                                                      platform.release()),
                "%s; RDMA: %s; load before: %.1f" % (gpus, ", ".join(self.rdma) or "no device", load)]

    def no_gpus(self, wanted=2):
        """Why nothing can be measured on GPUs, or None."""
        if not self.gpus:
            return "no GPU"
        return None if len(self.gpus) >= wanted else "needs %d GPUs, here: %d" % (wanted, len(self.gpus))

    def no_rdma(self):
        return None if self.rdma else "no RDMA device here (/sys/class/infiniband is empty)"

    def program(self, name):
        """Its path, or None."""
        for folder in self.folders:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return shutil.which(name)

    def need(self, name):
        path = self.program(name)
        if path is None:
            raise Failed("%s was not built or not found" % name)
        return path

    def begin_table(self, limit):
        """The table has this number of seconds, from now on."""
        self.limit, self.table_began = limit, time.monotonic()
        self.cut = []

    def left(self):
        """Seconds, and whose they are: the least of the run's and the table's."""
        now = time.monotonic()
        if self.stopped is not None:
            return 0, self.stopped
        of_run = float("inf") if self.seconds is None else self.seconds - (now - self.began)
        of_table = float("inf") if self.limit is None else self.limit - (now - self.table_began)
        if of_run <= of_table:
            return of_run, "the %g s of this run are over" % (self.seconds or 0)
        return of_table, "the %g s of this table are over" % self.limit

    def run(self, command, environments):
        """One process an environment; the output of the first. Raises Failed."""
        left, whose = self.left()
        if left < 1:
            raise Failed("not run: out of time: %s" % whose)
        end = time.monotonic() + left
        logs = [tempfile.TemporaryFile("w+") for _ in environments]  # pylint: disable=consider-using-with
        processes = [subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      start_new_session=True)
                     for environment, log in zip(environments, logs)]
        late = False
        try:
            while any(process.poll() is None for process in processes):
                if time.monotonic() >= end or self.stopped is not None:
                    late = not any(process.poll() for process in processes)
                    break
                if any(process.poll() for process in processes):
                    end = min(end, time.monotonic() + REST_SECONDS)
                show_last(logs[0])
                time.sleep(0.02)
        finally:
            end_all(processes)
        texts = []
        for log in logs:
            log.seek(0)
            texts.append(log.read())
            log.close()
        if late or any(process.returncode != 0 for process in processes):
            raise Failed(self.reason(command, processes, texts, late), texts[0])
        return texts[0]

    def reason(self, command, processes, texts, late):
        """Why it failed, in its own words. Codes 2 and 77 are a program's refusal of what cannot be done here; the rest are failures."""
        words = [text.splitlines() for process, text in zip(processes, texts) if late or process.returncode != 0]
        last = [line.strip() for lines in words for line in lines[-3:] if line.strip() and not line.startswith("--")]
        name = " ".join([os.path.basename(command[0])] + [word for word in command[1:2] if not word.startswith("-")])
        left, whose = self.left()
        when = "cut off: %s; its last words: " % whose if left <= 0 else "did not end in time; "
        said = "%s: %s%s" % (name, when if late else "", last[-1] if last else "nothing" if late else "failed without a word")
        ours = late and (self.stopped is not None or whose.endswith("run are over") and left <= 0)
        if not ours and (late or any(process.returncode not in (0, 2, 77) for process in processes)):
            if command[0] != self.mpirun and "NCCL says" not in said:
                self.failures.append(said)
        return said

    def launch(self, ranks, command, environment=None, hosts=False):
        """Ranks of libpickle by PK_RANK, PK_SIZE and PK_ROOT; `hosts`: each is a host of its own."""
        root = "127.0.0.1:%d" % free_port()
        return self.run(command, [{"PK_RANK": str(rank), "PK_SIZE": str(ranks), "PK_ROOT": root,
                                   **({"PK_HOST_ID": "bench%d" % rank} if hosts else {}), **(environment or {})}
                                  for rank in range(ranks)])

    def launch_mpi(self, ranks, command):
        if self.mpirun is None:
            raise Failed("no mpirun")
        start = [self.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        if ranks > self.cpus:
            start += ["--mca", "mpi_yield_when_idle", "1"]
        return self.run(start + command, [{}])

    def rows(self, launch, ranks, program, arguments, **how):
        """Rows of the CSV that a program writes; where it did not come to its end those that it wrote before."""
        return self.rows_and_text(lambda command: launch(ranks, command, **how), self.need(program), arguments)[0]

    def rows_and_text(self, launch, program, arguments):
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            try:
                text, why = launch([program] + list(arguments) + ["--csv", file.name]), None
            except Failed as failed:
                text, why = failed.text, failed
            with open(file.name, encoding="utf-8", newline="") as lines:
                rows = [{key: number(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        if why is not None:
            if not rows:
                raise why
            self.cut.append(str(why))
        return rows, text

    def perf(self, ranks, *arguments, **how):
        return self.rows(self.launch, ranks, "pickle-perf", list(arguments), **how)

    def compare(self, *arguments):
        """Rows of pickle-compare, and why libraries are absent."""
        return self.rows_and_text(lambda command: self.run(command, [{}]), self.need("pickle-compare"), arguments)

    def jobs(self, ranks, *arguments, rounds=1, devices="host"):
        """Rows of pickle-perf-jobs and of its peer (jobs-mpi, on GPUs jobs-nccl), whose turns alternate: medians over the rounds. {library: rows or a reason}."""
        ways = [("libpickle", self.launch, "pickle-perf-jobs"), ("NCCL", self.launch, "jobs-nccl") if devices == "cuda" else
                ("Open MPI", self.launch_mpi, "jobs-mpi")]
        heaps = {library: [] for library, _, _ in ways}
        reasons = {}
        for _ in range(rounds):
            for library, launch, program in ways:
                try:
                    heaps[library].append(self.rows(launch, ranks, program, list(arguments) + ["--device", devices]))
                except Failed as why:
                    reasons[library] = str(why)
        self.cut += ["%s: %s" % (library, why) for library, why in reasons.items() if heaps[library]]  # of a later round
        return {library: merged(heap) if heap else reasons[library] for library, heap in heaps.items()}


def end_all(processes):
    """Those that are still there: asked first, for mpirun ends its ranks then. Never waits for ever: a driver may hold a process."""
    running = [process for process in processes if process.poll() is None]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, sign)  # with what it started
        end = time.monotonic() + END_SECONDS
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            time.sleep(0.02)
    for process in running:
        if process.poll() is None:
            print("process %d does not end" % process.pid, file=sys.stderr)


def show_last(log, shown=[0.0]):  # pylint: disable=dangerous-default-value
    """What the first process said last, where somebody looks on: one line, rewritten occasionally."""
    if not sys.stderr.isatty() or time.monotonic() - shown[0] < SHOW_SECONDS:
        return
    shown[0] = time.monotonic()
    size = os.fstat(log.fileno()).st_size
    words = os.pread(log.fileno(), 400, max(0, size - 400)).decode(errors="replace").split("\n")
    last = next((line for line in reversed(words) if line.strip()), "")
    sys.stderr.write("\r\033[K%s\r" % last.split("\r")[-1].strip()[:shutil.get_terminal_size().columns - 1])
    sys.stderr.flush()


def number(text):
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text if text else None


def merged(heap):
    """The same rows of several runs: the median of each number; wrong elements are added up."""
    rows = []
    for same in zip(*heap):
        row = dict(same[0])
        for key, value in row.items():
            if isinstance(value, (int, float)) and all(isinstance(other[key], (int, float)) for other in same):
                row[key] = sum(other[key] for other in same) if key == "wrong" else statistics.median(other[key] for other in same)
        rows.append(row)
    return rows
