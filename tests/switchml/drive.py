#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs through an aggregator, each side with the other's twin: the library's ranks with pickle-aggregator and with
tools/switchml_twin.py, and the twin's workers with pickle-aggregator; 2 to 32 ranks, packets of 64 and 256 values, loss; and what
goes wrong: no aggregator, another secret, an aggregator that is killed, one that stops, a rank that is killed, garbage.

usage: drive.py TESTS_FOLDER AGGREGATOR SOURCE jobs|twins|faults|threads|gpu|long|long_twins|long_faults [RANKS...] [threads=T]
  threads=T  ranks and the twin's workers have so many threads (num_worker_threads); the part `threads` says itself
"""
import fcntl
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

TESTS, AGGREGATOR, SOURCE, PART = sys.argv[1:5]
RANKS = os.path.join(TESTS, "switchml-ranks")
TWIN = [sys.executable, os.path.join(SOURCE, "tools/switchml_twin.py")]
LIMIT_S = 600 if PART.startswith("long") else 120
failures = []
threads = 1 # of each rank
folder_of_all = tempfile.TemporaryDirectory()
directory = folder_of_all.name


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PK_")}
    return dict(clean, **{k: str(v) for k, v in more.items() if v is not None})


def losing(per_million):
    """The variable by which the library and pickle-aggregator lose so many packets."""
    return "switchml.lost_per_million=%d" % per_million if per_million else None


class Aggregator:
    """One that runs, ours or the twin's; `port` is what its first line says."""

    def __init__(self, twin=False, loss=0, arguments=(), mix=0, **env):
        if twin:
            command = TWIN + ["aggregator", "--port", "0", "--loss", str(loss), "--mix", str(mix)]
        else:
            command = [AGGREGATOR, "--port", "0"]
        self.process = subprocess.Popen(command + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=environment(PICKLE_TEST_TUNING=None if twin else losing(loss), **env))
        self.first = self.process.stdout.readline()
        found = re.search(r"at (?:127\.0\.0\.1|\[::1\]):(\d+)(?:, packets at port (\d+))?$", self.first.strip())
        self.port, self.packets = [int(n or 0) for n in found.groups()] if found else (0, 0)

    def wait_for(self, *texts):
        """Until it has said each of them, in any order."""
        while not all(t in self.first for t in texts):
            line = self.process.stdout.readline()
            if line == "":
                return
            self.first += line

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(timeout=LIMIT_S) # it never waits for who reads what it says
        return self.first + self.process.stdout.read() # communicate() would leave out what came along with the lines before


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def start(n, arguments=(), program=RANKS, **env):
    common = {"PK_SIZE": n, "PK_ROOT": "127.0.0.1:%d" % free_port(), "PK_ALGORITHM": "allreduce=switchml",
              "PK_TIMEOUT_MS": 500 * LIMIT_S}
    env = dict(common, SWITCHML_RANKS_THREADS=threads, **env)
    return [subprocess.Popen([program] + [str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=environment(PK_RANK=r, **env)) for r in range(n)]


def finish(processes):
    """(exit codes, all that they said)"""
    until = time.monotonic() + LIMIT_S
    said = ""
    for p in processes:
        try:
            out, err = p.communicate(timeout=max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            err += "KILLED after %d s\n" % LIMIT_S
        said += out + err
    return [p.returncode for p in processes], said


def check(name, good, said):
    print("%s: %s" % ("ok" if good else "WRONG", name), flush=True)
    if not good:
        failures.append(name)
        print(said, flush=True)


def config(port, elements, host="127.0.0.1", **more):
    path = os.path.join(directory, "switchml-%d.cfg" % port)
    with open(path, "w", encoding="utf-8") as file:
        file.write("[general]\nrank = 0\nnum_workers = 2 # the communicator knows\ncontroller_ip = %s\n"
                   "controller_port = %d\npacket_numel = %d\nnum_worker_threads = %d\n" % (host, port, elements, threads))
        file.writelines("%s = %s\n" % pair for pair in more.items())
        file.write("[backend.dpdk]\ncores = 1\n")
    return path


def where(port, host="127.0.0.1"):
    """What ranks get that differ from the defaults in nothing but the number of threads, if in that."""
    return "%s:%d" % ("[%s]" % host if ":" in host else host, port) if threads == 1 else config(port, 256, host)


def with_threads():
    return "" if threads == 1 else ", %d threads" % threads


def job(n, elements, loss, twin=False, arguments=("short",), window=256, mix=0):
    """The library's ranks with an aggregator. mix: of a million packets of the twin's so many come twice, and as many late.
    Python takes long for the packets of many ranks: these wait until they send them again, and have few on their way. The lists
    spare it sooner, as on a crowded machine it would get little but what is sent again."""
    aggregator = Aggregator(twin, loss, mix=mix)
    spare = twin and n > (2 if PART.startswith("long") else 8)
    path = config(aggregator.port, elements, max_outstanding_packets=min(window, 4 * threads) if spare else window,
                  timeout=200 if spare else 10)
    codes, said = finish(start(n, arguments, PK_SWITCHML=path, PICKLE_TEST_TUNING=losing(loss)))
    end = aggregator.stop()
    lost = " lost by test 0," not in end or loss < (10000 if arguments else 1000) # of few packets a thousandth may be none
    good = codes == [0] * n and "algorithm switchml" in said and lost and (mix == 0 or " mixed by test 0" not in end)
    good = good and (twin or re.search(r"packets, %d threads?$" % threads, end, re.M) is not None)
    other = "twin" if twin else "pickle-aggregator"
    name = "%d ranks, %d values, loss %g %%, %s%s%s" % (n, elements, loss / 1e4, other, ", mixed" if mix else "", with_threads())
    check(name, good, said + end)


def twin_workers(n, elements, loss, kind, mix=0):
    aggregator = Aggregator(False, loss)
    identity = os.urandom(16).hex()
    command = TWIN + ["worker", "--port", str(aggregator.port), "--workers", str(n), "--id", identity,
                      "--elements", str(elements), "--type", kind, "--loss", str(loss), "--mix", str(mix),
                      "--threads", str(threads),
                      "--numel", str((2500 if n <= 8 else 300) * (10 if mix else 1)), "--rank"]
    workers = [subprocess.Popen(command + [str(r)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
               for r in range(n)]
    codes, said = finish(workers)
    end = aggregator.stop()
    good = codes == [0] * n and (mix == 0 or sum(map(int, re.findall(r"(\d+) mixed by test", said))) > 0)
    said_so = ", mixed" if mix else ""
    name = "%d twin workers, %d values, loss %g %%, %s%s%s" % (n, elements, loss / 1e4, kind, said_so, with_threads())
    check(name, good, said + end)


def jobs():
    job(2, 256, 0, arguments=())
    job(4, 64, 10000)
    job(8, 256, 1000, arguments=(), window=32) # so many packets that some are lost: e^-30 is the chance that none is
    job(3, 64, 50000, window=5)


def twins():
    job(2, 64, 10000, twin=True, window=32)
    job(4, 256, 0, twin=True, window=32)
    twin_workers(2, 64, 0, "float")
    twin_workers(4, 256, 10000, "int32")
    job(3, 64, 0, twin=True, window=32, mix=150000)
    twin_workers(3, 64, 0, "float", mix=150000)
    job(32, 64, 1000, twin=True, arguments=("few",))


NUMBERS = [int(n) for n in sys.argv[5:] if n.isdigit()] or [2, 4, 8, 32]


def long():
    for n in NUMBERS:
        for elements in (64, 256):
            for loss in (0, 1000, 10000, 50000):
                job(n, elements, loss, arguments=() if n < 32 else ("short",))


def long_faults():
    for n in NUMBERS:
        for loss in (0, 10000, 50000):
            name = "%d ranks, loss %g %%, the aggregator is killed" % (n, loss / 1e4)
            survived(name, n, signal.SIGKILL, PICKLE_TEST_TUNING=losing(loss))


def long_twins():
    for n in NUMBERS:
        for elements in (64, 256):
            for loss in (0, 1000, 10000, 50000):
                job(n, elements, loss, twin=True, arguments=("short",) if n <= 8 else ("few",))
                for kind in ("int32", "float"):
                    twin_workers(n, elements, loss, kind)
            job(n, elements, 10000, twin=True, arguments=("short",) if n <= 8 else ("few",), mix=50000)
            for kind in ("int32", "float"):
                twin_workers(n, elements, 10000, kind, mix=50000)


# ---- what goes wrong ----

def refused(name, wanted, n=2, fallback=None, **env):
    """Init fails, and says `wanted`; or with fallback it goes without an aggregator."""
    began = time.monotonic()
    codes, said = finish(start(n, ("short",), PK_SWITCHML_FALLBACK=fallback, **env))
    took = time.monotonic() - began
    if fallback:
        good = codes == [0] * n and "algorithm switchml" not in said and wanted in said
    else:
        good = all(c == 3 for c in codes) and wanted in said
    check("%s%s (%.1f s)" % (name, ", with fallback" if fallback else "", took), good and took < 50, "%s\n%s" % (codes, said))


def silent():
    """Somebody listens and says nothing: there is time left to go on without an aggregator."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = "127.0.0.1:%d" % listener.getsockname()[1]
        refused("nobody answers", "aggregator %s: no answer before the deadline" % at, PK_SWITCHML=at, fallback=1)


def no_descriptors():
    """An aggregator without a descriptor for who comes next: he waits, and it does not try all the time."""
    aggregator = Aggregator()
    ranks = endless(aggregator, 3)
    pid = aggregator.process.pid
    full = 1 + max(int(fd) for fd in os.listdir("/proc/%d/fd" % pid))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (full, full))
    waiting = [socket.create_connection(("127.0.0.1", aggregator.port)) for _ in range(3)]
    time.sleep(1)
    for r in ranks:
        r.kill()
    finish(ranks)
    codes, said = finish(start(2, ("short",), PK_SWITCHML=where(aggregator.port)))
    end = aggregator.stop()
    for s in waiting:
        s.close()
    tries = int(re.search(r"no descriptor (\d+)", end).group(1))
    check("no descriptor for one more, %d tries" % tries, codes == [0, 0] and 0 < tries < 1000, said + end)


def secrets():
    paths = []
    for name in ("one", "other"):
        paths.append(os.path.join(directory, name))
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(name * 16)
        os.chmod(paths[-1], 0o600)
    aggregator = Aggregator(PK_SECRET_FILE=paths[0])
    codes, said = finish(start(2, ("short",), PK_SWITCHML=where(aggregator.port), PK_SECRET_FILE=paths[0]))
    check("one secret", codes == [0, 0], said)
    refused("another secret", "another PK_SECRET_FILE", PK_SWITCHML=where(aggregator.port), PK_SECRET_FILE=paths[1])
    refused("no secret", "another PK_SECRET_FILE", PK_SWITCHML=where(aggregator.port))
    end = aggregator.stop()
    check("the aggregator says so", "does not know the secret" in end, end)


def endless(aggregator, n=2, what="endless", **env):
    """Ranks that reduce until something happens; returns when they have begun."""
    ranks = start(n, (what,), PK_SWITCHML=where(aggregator.port), **env)
    line = ranks[0].stdout.readline() + ranks[0].stdout.readline()
    if "begun" not in line:
        check("begin", False, line)
    return ranks


def killed():
    aggregator = Aggregator()
    ranks = endless(aggregator)
    aggregator.stop(signal.SIGKILL)
    codes, said = finish(ranks)
    good = all(c == 4 for c in codes) and "aggregator 127.0.0.1:%d" % aggregator.port in said
    check("the aggregator is killed", good, "%s\n%s" % (codes, said))


def survived(name, n, how, twin=(), **env):
    """The job goes on by the ordinary algorithm, all sums right. how: a signal to the aggregator; None: the twin does as told."""
    aggregator = Aggregator() if how is not None else Aggregator(True, arguments=twin)
    ranks = endless(aggregator, n, "survive", PK_SWITCHML_FALLBACK=1, **env)
    time.sleep(random.random() / 5)
    if how is not None:
        aggregator.process.send_signal(how)
    codes, said = finish(ranks)
    aggregator.stop(signal.SIGKILL)
    good = codes == [0] * n and "PK_SWITCHML_FALLBACK: this and later allreduces go without it" in said
    check("%s, with fallback" % name, good, "%s\n%s" % (codes, said))


def stopped():
    aggregator = Aggregator()
    ranks = endless(aggregator, PK_TIMEOUT_MS=2000)
    aggregator.process.send_signal(signal.SIGSTOP)
    codes, said = finish(ranks)
    aggregator.process.send_signal(signal.SIGCONT)
    aggregator.stop()
    named = "packets to or from aggregator 127.0.0.1:%d" % aggregator.port
    good = all(c == 4 for c in codes) and named in said and "waiting for rank 0" not in said
    check("the aggregator stands still", good, "%s\n%s" % (codes, said))


def slow():
    aggregator = Aggregator(True, arguments=("--slow", "10"))
    codes, said = finish(start(2, ("endless",), PK_SWITCHML=where(aggregator.port), PK_TIMEOUT_MS=4000))
    aggregator.stop(signal.SIGKILL)
    named = "packets to or from aggregator 127.0.0.1:%d" % aggregator.port
    check("the aggregator is slow", all(c == 4 for c in codes) and named in said, "%s\n%s" % (codes, said))


def rank_killed():
    aggregator = Aggregator()
    for what, fallback in (("endless", 0), ("unfit", 0), ("endless", 1)):
        ranks = endless(aggregator, 3, what, PK_SWITCHML_FALLBACK=fallback)
        ranks[2].kill()
        codes, said = finish(ranks)
        name = "a rank is killed, %s%s" % (what, ", with fallback" if fallback else "")
        check(name, codes[:2] == [4, 4] and "peer 2" in said, "%s\n%s" % (codes, said))
    codes, said = finish(start(3, ("short",), PK_SWITCHML=where(aggregator.port)))
    end = aggregator.stop()
    check("the aggregator goes on", codes == [0] * 3 and end.count("all have left") == 4, said + end)


def restarted():
    """A worker that comes again while the others still take part is told so; all of them again are a new job."""
    aggregator = Aggregator()
    command = TWIN + ["worker", "--port", str(aggregator.port), "--workers", "2", "--threads", str(threads)]

    def worker(rank, identity, *more):
        return subprocess.Popen(command + ["--rank", str(rank), "--id", identity * 32, *more], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=environment())

    workers = [worker(r, "1", "--numel", "200000", "--jobs", "1000") for r in (0, 1)]
    aggregator.wait_for("rank 0 of 2 has come", "rank 1 of 2 has come")
    workers[0].kill()
    refusal = finish([worker(0, "1")])
    workers[1].kill()
    finish(workers)
    codes, said = finish([worker(r, "2") for r in (0, 1)])
    end = aggregator.stop()
    good = refusal[0] != [0] and "refused: another one has come with its rank" in refusal[1] and codes == [0, 0]
    check("a worker restarts", good, refusal[1] + said + end)


def rank_late():
    aggregator = Aggregator()
    ranks = endless(aggregator, 3, PK_TIMEOUT_MS=2000)
    ranks[1].send_signal(signal.SIGSTOP)
    codes, said = finish([ranks[0], ranks[2]])
    ranks[1].send_signal(signal.SIGCONT)
    finish([ranks[1]])
    aggregator.stop()
    check("a rank stands still", codes == [4, 4] and "waiting for rank 1" in said, "%s\n%s" % (codes, said))


def garbage():
    aggregator = Aggregator()
    idle = [socket.create_connection(("127.0.0.1", aggregator.port)) for _ in range(50)]
    for s in idle[:25]:
        s.sendall(os.urandom(108))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for size in (0, 1, 9, 10, 274, 275, 1042, 2000):
        udp.sendto(os.urandom(size), ("127.0.0.1", aggregator.packets))
    codes, said = finish(start(2, ("short",), PK_SWITCHML=where(aggregator.port)))
    end = aggregator.stop()
    for s in idle:
        s.close()
    check("garbage", codes == [0, 0] and "strangers 0" not in end, said + end)


def addresses():
    """IPv6; an address that stands for all of this machine; a port that another one has, of connections and of packets; an address that is
    not this machine's."""
    aggregator = Aggregator(arguments=("--address", "::1"))
    if "Cannot assign requested address" not in aggregator.first: # there is IPv6
        codes, said = finish(start(2, ("short",), PK_SWITCHML=where(aggregator.port, "::1")))
        check("IPv6", codes == [0, 0] and "algorithm switchml" in said, "%s\n%s" % (codes, said))
    aggregator.stop()
    aggregator = Aggregator()
    codes, said = finish(start(2, ("short",), PK_SWITCHML=where(aggregator.port, "0.0.0.0")))
    check("0.0.0.0", codes == [0, 0] and "algorithm switchml" in said, "%s\n%s" % (codes, said))
    in_use = "127.0.0.1:%d: Address already in use"
    for arguments, wanted in ((("--port", str(aggregator.port)), "cannot listen at " + in_use % aggregator.port),
                              (("--port", str(aggregator.packets)),
                               "bind of a datagram socket to " + in_use % aggregator.packets),
                              (("--address", "192.0.2.1"), "192.0.2.1:0: Cannot assign requested address")):
        second = Aggregator(arguments=arguments, PK_INSECURE=1)
        said = second.stop()
        check("the aggregator cannot be at %s %s" % arguments, second.process.returncode == 1 and wanted in said, said)
    aggregator.stop()


def strangers(port, count):
    """Each is worth a line of the aggregator's; returns when it has dropped them."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.recv(40, socket.MSG_WAITALL)
            s.sendall(os.urandom(108))
            s.settimeout(LIMIT_S)
            s.recv(1)


def unread():
    """Nobody reads what the aggregator says, or its standard descriptors are closed: jobs are served."""
    aggregator = Aggregator()
    fcntl.fcntl(aggregator.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    for what in ("now", "any more"):
        strangers(aggregator.port, 80)
        codes, said = finish(start(2, ("short",), PK_SWITCHML=where(aggregator.port)))
        check("nobody reads its lines %s" % what, codes == [0, 0], "%s\n%s" % (codes, said))
        if what == "now":
            aggregator.process.stdout.close()
    aggregator.process.kill()
    aggregator.process.wait()
    port = free_port()
    closed = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', AGGREGATOR, "--port", str(port)], env=environment())
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            strangers(port, 3)
            break
        except ConnectionError:
            time.sleep(0.1)
    codes, said = finish(start(2, ("short",), PK_SWITCHML=where(port)))
    closed.kill()
    closed.wait()
    check("its standard descriptors are closed", codes == [0, 0], "%s\n%s" % (codes, said))


def other_calls():
    aggregator = Aggregator()
    at = where(aggregator.port)
    codes, said = finish(start(2, ("mismatch",), PK_SWITCHML=at, PK_TIMEOUT_MS=20000))
    good = all(c == 4 for c in codes) and "packets of another operation" in said
    check("ranks disagree on the count", good, "%s\n%s" % (codes, said))
    twin = Aggregator(True) # it makes the largest marks, as a switch does
    for port, fallback in ((aggregator.port, None), (aggregator.port, 1), (twin.port, None)):
        codes, said = finish(start(2, ("empty",), PK_SWITCHML=where(port), PK_SWITCHML_FALLBACK=fallback, PK_TIMEOUT_MS=20000))
        good = 4 in codes and all(c in (4, 5) for c in codes) and "packets of another operation" in said
        how = ", twin" if port == twin.port else ", with fallback" if fallback else ""
        check("one rank's call has no elements" + how, good, "%s\n%s" % (codes, said))
    twin.stop()
    codes, said = finish(start(2, ("double",), PK_SWITCHML=at))
    check("another type", all(c == 4 for c in codes) and "sums of f32 and int32" in said, "%s\n%s" % (codes, said))
    codes, said = finish(start(2, ("double",), PK_SWITCHML=at, PK_SWITCHML_FALLBACK=1))
    check("another type, with fallback", codes == [0, 0], "%s\n%s" % (codes, said))
    aggregator.stop()


def gpu():
    aggregator = Aggregator()
    env = environment(PK_SWITCHML=where(aggregator.port), PK_ALGORITHM="allreduce=switchml")
    done = subprocess.run([os.path.join(TESTS, "switchml-gpu")], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_S, check=False)
    end = aggregator.stop()
    if done.returncode == 77:
        print(done.stdout)
        sys.exit(77)
    check("GPU memory", done.returncode == 0 and "packets 0," not in end, done.stdout + end)


def faults():
    refused("no PK_SWITCHML", "PK_SWITCHML has to name the aggregator")
    refused("no host:port", "host:port, or a file", PK_SWITCHML="localhost")
    nobody = "127.0.0.1:%d" % free_port()
    for fallback in (None, 1):
        refused("nobody listens", "aggregator %s cannot be reached: Connection refused" % nobody, PK_SWITCHML=nobody,
                fallback=fallback)
    with open(os.path.join(directory, "bad.cfg"), "w", encoding="utf-8") as file:
        file.write("[general]\ncontroller_ip = 127.0.0.1\npacket_numel = 128\n")
    refused("a file with a wrong line", "bad.cfg, line 3: packet_numel is '128': 64 or 256",
            PK_SWITCHML=os.path.join(directory, "bad.cfg"))
    silent()
    secrets()
    no_descriptors()
    killed()
    stopped()
    slow()
    survived("the aggregator is killed", 4, signal.SIGKILL)
    survived("the aggregator is killed where packets are lost", 3, signal.SIGKILL, PICKLE_TEST_TUNING=losing(30000))
    survived("one rank loses the aggregator", 3, None, ("--drop-after", "3000"))
    survived("the aggregator is slow", 2, None, ("--slow", "10"), PK_TIMEOUT_MS=6000)
    survived("the aggregator stands still", 3, signal.SIGSTOP, PK_TIMEOUT_MS=8000)
    rank_killed()
    restarted()
    rank_late()
    garbage()
    addresses()
    unread()
    other_calls()


def another_number():
    """A rank with another number of threads than the others of its job."""
    aggregator = Aggregator()
    command = TWIN + ["worker", "--port", str(aggregator.port), "--workers", "2", "--id", os.urandom(16).hex(), "--rank"]

    def worker(*more):
        return subprocess.Popen(command + list(more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment())

    first = worker("0", "--threads", "2")
    aggregator.wait_for("rank 0 of 2 has come")
    second = worker("1", "--threads", "3")
    codes, said = finish([second])
    first.kill()
    finish([first])
    end = aggregator.stop()
    check("another number of threads", codes != [0] and "another number of threads" in said, said + end)


def several():
    """What threads add: ports, slots and parts of their own on both sides, and an end that all of them come to."""
    global threads
    for threads in (2, 4):
        job(2, 64, 10000, window=20)
        job(3, 256, 0, arguments=("few",), window=4)
    # of 200 packets: e^-20 is the chance that none is lost
    job(2, 64, 100000, twin=True, arguments=("few",), window=32, mix=100000)
    twin_workers(2, 64, 10000, "float", mix=50000)
    killed()
    survived("the aggregator is killed", 2, signal.SIGKILL)
    survived("one rank loses the aggregator", 2, None, ("--drop-after", "3000"))
    stopped()
    aggregator = Aggregator()
    codes, said = finish(start(2, ("mismatch",), PK_SWITCHML=where(aggregator.port), PK_TIMEOUT_MS=20000))
    aggregator.stop()
    check("ranks disagree on the count", codes == [4, 4] and "packets of another operation" in said, "%s\n%s" % (codes, said))
    aggregator = Aggregator()
    codes, said = finish(start(2, ("abort",), PK_SWITCHML=where(aggregator.port)))
    aggregator.stop()
    check("nothing is written after an abort", codes == [4, 4], "%s\n%s" % (codes, said))
    another_number()


with folder_of_all:
    for argument in sys.argv[5:]:
        threads = int(argument[8:]) if argument.startswith("threads=") else threads
    {"jobs": jobs, "twins": twins, "faults": faults, "threads": several, "gpu": gpu, "long": long, "long_twins": long_twins,
     "long_faults": long_faults}[PART]()
sys.exit(1 if failures else 0)
