#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The in-network allreduce once more: an aggregator and a worker, written from the description of packets and rules alone
(docs/switchml.md), with no line of the library's. Each meets the other side's real program in tests.

usage: switchml_twin.py aggregator [--port P] [--secret FILE] [--loss PPM] [--mix PPM] [--seconds S] [--drop-after PACKETS]
                                   [--slow MS]
       switchml_twin.py worker --port P --rank R --workers N --id HEX [--secret FILE] [--elements 64|256] [--window W]
                               [--threads T] [--type int32|float] [--numel N] [--jobs J] [--loss PPM] [--mix PPM]
"""
import argparse
import array
import hashlib
import hmac
import math
import os
import random
import selectors
import signal
import socket
import struct
import sys
import threading
import time

MAGIC = b"PKSW"
VERSION = 2
HEADER = struct.Struct(">BB4sHbb")
GREETING, HELLO, ANSWER = 40, 108, 140
INT32_MAX = 2147483647


def key_of(path):
    if path is None:
        return bytes(16)
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()[:16]


def proof(key, label, *parts):
    return hmac.new(key, label + b"\0" + b"".join(parts), hashlib.sha256).digest()


def words(data):
    """Values of a packet as unsigned integers."""
    values = array.array("I", data)
    if sys.byteorder == "little":
        values.byteswap()
    return values


def unwords(values):
    data = array.array("I", values)
    if sys.byteorder == "little":
        data.byteswap()
    return data.tobytes()


class Lossy:
    """A datagram socket that loses some of what it sends and receives; of what it sends it holds some back until more has gone,
    and sends some twice."""

    def __init__(self, sock, ppm, mix):
        self.sock, self.ppm, self.mix, self.lost, self.mixed = sock, ppm, mix, 0, 0
        self.held = []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.random = random.Random(os.getpid())

    def loses(self):
        lost = self.ppm > 0 and self.random.random() * 1e6 < self.ppm
        self.lost += lost
        return lost

    def send(self, data, to):
        if self.loses():
            return
        chance = self.random.random() * 1e6
        self.mixed += chance < 2 * self.mix
        if chance < self.mix:
            self.held.append((self.random.randrange(1, 40), data, to))
            return
        for _ in range(2 if chance < 2 * self.mix else 1):
            self.sock.sendto(data, to)
        for later, *packet in self.held:
            if later == 1:
                self.sock.sendto(*packet)
        self.held = [(later - 1, *packet) for later, *packet in self.held if later > 1]

    def receive(self):
        data, sender = self.sock.recvfrom(65536)
        return (None, sender) if self.loses() else (data, sender)


# ---- the aggregator ----

class Set:
    """One of the two sets of a slot."""

    def __init__(self):
        self.bitmap = self.count = 0
        self.exponents = (0, 0)
        self.values = None


class Job:
    def __init__(self, workers, elements, threads, window):
        self.workers, self.elements, self.threads = workers, elements, threads
        self.window = window // threads
        self.address = {} # (worker, thread): of its packets
        self.here = 0
        self.sets = [[Set(), Set()] for _ in range(2 * self.window * (threads - 1) + self.window)]

    def packet(self, worker, thread, data):
        """(addresses, reply) of a packet."""
        size, job, identity, index, e0, e1 = HEADER.unpack_from(data)
        slot, which = index & 0x3fff, index >> 15
        if size != (0x11 if self.elements == 64 else 0x13) or len(data) != 10 + 4 * self.elements or slot >= len(self.sets):
            return [], None
        mine, other = self.sets[slot][which], self.sets[slot][1 - which]
        bit = 1 << worker
        before = mine.bitmap
        mine.bitmap |= bit
        other.bitmap &= ~bit
        seen = before & bit
        if before == 0:
            mine.values = words(data[10:])
            mine.exponents = (e0, e1)
        elif not seen:
            mine.values = array.array("I", [(a + b) & 0xffffffff for a, b in zip(mine.values, words(data[10:]))])
            mine.exponents = (max(mine.exponents[0], e0), max(mine.exponents[1], e1))
        if self.workers == 1:
            last = not seen
        else:
            last = mine.count == 1
            if not seen:
                mine.count = mine.count - 1 if mine.count else self.workers - 1
        if not seen and last:
            to = [address for (_, t), address in self.address.items() if t == thread]
        elif seen and mine.count == 0:
            to = [self.address[worker, thread]] if (worker, thread) in self.address else []
        else:
            return [], None
        return to, HEADER.pack(size, job, identity, index, *mine.exponents) + unwords(mine.values)


class Aggregator:
    def __init__(self, options):
        self.key = key_of(options.secret)
        self.selector = selectors.DefaultSelector()
        self.udp = Lossy(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), options.loss, options.mix)
        self.udp.sock.bind(("127.0.0.1", options.port))
        self.port = self.udp.sock.getsockname()[1]
        self.listener = socket.create_server(("127.0.0.1", options.port)) # with port 0 another one
        self.jobs, self.senders, self.packets, self.drop_after, self.slow = {}, {}, 0, options.drop_after, options.slow / 1e3
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(self.udp.sock, selectors.EVENT_READ, self.take)

    def accept(self, _):
        connection, peer = self.listener.accept()
        nonce = os.urandom(32)
        connection.sendall(MAGIC + struct.pack(">I", VERSION) + nonce)
        state = {"nonce": nonce, "peer": peer, "have": b"", "worker": None}
        self.selector.register(connection, selectors.EVENT_READ, lambda c: self.hear(c, state))

    def hear(self, connection, state):
        try:
            data = connection.recv(HELLO - len(state["have"]) if state["worker"] is None else 1)
        except ConnectionError:
            data = b""
        state["have"] += data
        if not data or state["worker"] is not None:
            self.leave(connection, state)
        elif len(state["have"]) == HELLO and not self.join(connection, state):
            self.leave(connection, state)

    def leave(self, connection, state):
        self.selector.unregister(connection)
        connection.close()
        if state["worker"] is not None:
            identity, rank = state["worker"]
            job = self.jobs[identity]
            for thread in range(job.threads):
                del self.senders[job.address.pop((rank, thread))]
            job.here -= 1
            if job.here == 0:
                del self.jobs[identity]

    def join(self, connection, state):
        hello = state["have"]
        right = proof(self.key, b"pickle switchml hello", state["nonce"], hello[:76])
        if hello[:4] != MAGIC or not hmac.compare_digest(right, hello[76:]):
            return False
        version, identity, rank, workers, elements, window, port, threads = struct.unpack_from(">I16sIIIIHH", hello, 4)
        if version != VERSION:
            return False
        job = self.jobs.setdefault(identity, Job(workers, elements, threads, window))
        for thread in range(job.threads):
            job.address[rank, thread] = (state["peer"][0], port + thread)
            self.senders[job.address[rank, thread]] = (job, rank, thread)
        job.here += 1
        state["worker"] = (identity, rank)
        self.newest = (connection, state)
        answer = MAGIC + struct.pack(">IIHH92s", 0, job.window * job.threads, self.port, 0, b"")
        connection.sendall(answer + proof(self.key, b"pickle switchml answer", state["nonce"], hello[44:76], answer))
        return True

    def take(self, _):
        data, sender = self.udp.receive()
        if data is None or sender not in self.senders or len(data) < 10:
            return
        self.packets += 1
        time.sleep(self.slow)
        if self.packets == self.drop_after: # one rank alone loses its aggregator
            self.leave(*self.newest)
            return
        job, *who = self.senders[sender]
        to, reply = job.packet(*who, data)
        for address in to:
            self.udp.send(reply, address)

    def serve(self, seconds):
        print("switchml_twin at 127.0.0.1:%d" % self.listener.getsockname()[1], flush=True)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not stopped:
            for entry, _ in self.selector.select(0.2):
                entry.data(entry.fileobj)
        print("twin: packets %d, lost by test %d, mixed by test %d" % (self.packets, self.udp.lost, self.udp.mixed), flush=True)


# ---- the worker ----

def receive_all(connection, count):
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise SystemExit("twin worker: the aggregator has closed the connection")
        data += more
    return data


def as_float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def exponent_of(unit):
    bits = max(struct.unpack("I", struct.pack("f", x))[0] & 0x7fffffff for x in unit)
    return (((bits & 0x7f800000) >> 23) - 126 + 128) % 256 - 128


def scale_of(exponent, workers):
    exponent = max(exponent, -96)
    return as_float32(float(INT32_MAX) / as_float32(workers * as_float32(2.0 ** exponent)))


def ports_in_a_row(count):
    """That many sockets."""
    while True:
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        port = 0
        try:
            for s in sockets:
                s.bind(("127.0.0.1", port))
                port = s.getsockname()[1] + 1
            return sockets
        except (OSError, OverflowError): # in use, or beyond the last one
            for s in sockets:
                s.close()


class Worker:
    """Its threads share the connection, and the jobs: each has a part of its own of the elements and of the slots."""

    def __init__(self, options):
        self.o = options
        key = key_of(options.secret)
        self.connection = socket.create_connection(("127.0.0.1", options.port))
        sockets = ports_in_a_row(options.threads)
        greeting = receive_all(self.connection, GREETING)
        nonce = os.urandom(32)
        if greeting[:8] != MAGIC + struct.pack(">I", VERSION):
            raise SystemExit("twin worker: no aggregator of this version")
        hello = MAGIC + struct.pack(">I16sIIIIHH32s", VERSION, bytes.fromhex(options.id), options.rank, options.workers,
                                    options.elements, options.window, sockets[0].getsockname()[1], options.threads, nonce)
        self.connection.sendall(hello + proof(key, b"pickle switchml hello", greeting[8:], hello))
        answer = receive_all(self.connection, ANSWER)
        if not hmac.compare_digest(proof(key, b"pickle switchml answer", greeting[8:], nonce, answer[:108]), answer[108:]):
            raise SystemExit("twin worker: the aggregator does not know the secret")
        status, window, port = struct.unpack_from(">IIH", answer, 4)
        if status != 0:
            raise SystemExit("twin worker: refused: %s" % answer[16:108].split(b"\0")[0].decode())
        self.threads = [Thread(options, Lossy(s, options.loss, options.mix), ("127.0.0.1", port), t, window // options.threads)
                        for t, s in enumerate(sockets)]

    def reduce(self, data, floats):
        """A list of elements in, one of sums out. The first threads have one element more than the others."""
        each, rest = divmod(len(data), len(self.threads))
        cuts = [each * t + min(t, rest) for t in range(len(self.threads) + 1)]
        parts = [data[a:b] for a, b in zip(cuts, cuts[1:])]
        running = [threading.Thread(target=t.reduce, args=(part, floats)) for t, part in zip(self.threads[1:], parts[1:])]
        for r in running:
            r.start()
        self.threads[0].reduce(parts[0], floats)
        for r in running:
            r.join()
        return [x for t in self.threads for x in t.sums]


class Thread:
    """Slot and set of packet p are those of place p + shift; behind the slots of a thread are as many unused ones."""

    def __init__(self, options, udp, to, number, window):
        self.o, self.udp, self.to, self.number, self.window = options, udp, to, number, window
        self.shift = self.job = self.resends = 0
        self.sums = []

    def index(self, p):
        place = (p + self.shift) % (2 * self.window)
        return 2 * self.window * self.number + place % self.window | (0x8000 if place >= self.window else 0)

    def reduce(self, data, floats):
        padded = data + [0] * (-len(data) % self.o.elements)
        units = [padded[i:i + self.o.elements] for i in range(0, len(padded), self.o.elements)]
        self.sums = [x for unit in self.reduce_units(units, floats) for x in unit][:len(data)]

    def reduce_units(self, units, floats):
        """Lists of elements in, lists of sums out."""
        n, count = len(units), self.o.elements
        ahead = min(self.window, n)
        total = n + ahead if floats else n
        exponents, sums = [0] * n, [None] * n
        first = 0x11 if count == 64 else 0x13

        def send(p):
            e = exponent_of(units[p]) if floats and p < n else 0
            u = p - ahead if floats else p
            if u < 0:
                values = [0] * count
            elif floats:
                scale = scale_of(exponents[u], self.o.workers)
                values = [round(as_float32(x * scale)) & 0xffffffff for x in units[u]]
            else:
                values = units[u]
            header = HEADER.pack(first, self.job & 255, struct.pack("<I", p), self.index(p), e, 0)
            self.udp.send(header + unwords(values), self.to)

        waiting, held = {}, set()
        for p in range(ahead):
            send(p)
            waiting[p] = time.monotonic()
        while waiting:
            oldest = min(waiting.values())
            self.udp.sock.settimeout(max(0.001, oldest + 0.02 - time.monotonic()))
            try:
                data, _ = self.udp.receive()
            except TimeoutError:
                data = None
            now = time.monotonic()
            if data is None:
                for p in [p for p, sent in waiting.items() if now - sent >= 0.02]:
                    send(p)
                    waiting[p] = now
                    self.resends += 1
                continue
            size, job, identity, index, e, _ = HEADER.unpack_from(data)
            p = struct.unpack("<I", identity)[0]
            if size != first or job != self.job & 255 or p not in waiting or index != self.index(p):
                continue
            del waiting[p]
            if floats and p < n:
                exponents[p] = e
            u = p - ahead if floats else p
            if u >= 0:
                sums[u] = words(data[10:])
                if floats:
                    scale = scale_of(exponents[u], self.o.workers)
                    sums[u] = [as_float32((v - (1 << 32) if v >> 31 else v) / scale) for v in sums[u]]
            turn = [p + self.window] if p + self.window in held else []
            held -= set(turn)
            if p + ahead < total:
                turn.append(p + ahead)
            for q in turn:
                if q - self.window in waiting: # its slot is not free
                    held.add(q)
                else:
                    send(q)
                    waiting[q] = now
        self.shift = (self.shift + total) % (2 * self.window)
        self.job += 1
        return sums


def element(rank, i, floats):
    x = (i * 2654435761 + rank * 40503 + 12345) & 0xffffffff
    x ^= x >> 13
    x = x * 2246822519 & 0xffffffff
    return as_float32((x - (1 << 31)) / (1 << 31) * 2.0 ** (i // 300 % 20 - 10)) if floats else x


def work(options):
    floats = options.type == "float"
    worker = Worker(options)
    wrong = 0
    for job in range(options.jobs):
        count = options.numel + job
        sums = worker.reduce([element(options.rank, i, floats) for i in range(count)], floats)
        for i in range(count):
            right = sum(element(r, i, floats) for r in range(options.workers))
            if floats:
                # No element is larger than `most`. Each worker rounds it to 24 bits when it scales it, and then to a 2^31st of all workers' most.
                most, n = 2.0 ** 10, options.workers
                wrong += not math.isclose(sums[i], right, rel_tol=1e-6, abs_tol=n * (most / 2 ** 24 + n * 2 * most / 2 ** 31))
            else:
                wrong += sums[i] != right & 0xffffffff
    said = (options.rank, options.jobs, wrong, sum(t.resends for t in worker.threads), sum(t.udp.mixed for t in worker.threads))
    print("twin worker %d: %d jobs, %d wrong, %d packets sent again, %d mixed by test" % said, flush=True)
    return wrong > 0


stopped = False


def on_signal(*_):
    global stopped
    stopped = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--port", type=int, default=48864)
    both.add_argument("--secret")
    both.add_argument("--loss", type=int, default=0)
    both.add_argument("--mix", type=int, default=0)
    aggregator = commands.add_parser("aggregator", parents=[both])
    aggregator.add_argument("--seconds", type=float, default=600)
    aggregator.add_argument("--drop-after", type=int, default=0)
    aggregator.add_argument("--slow", type=float, default=0)
    worker = commands.add_parser("worker", parents=[both])
    worker.add_argument("--rank", type=int, required=True)
    worker.add_argument("--workers", type=int, required=True)
    worker.add_argument("--id", required=True)
    worker.add_argument("--elements", type=int, default=256)
    worker.add_argument("--window", type=int, default=16)
    worker.add_argument("--threads", type=int, default=1)
    worker.add_argument("--type", choices=["int32", "float"], default="int32")
    worker.add_argument("--numel", type=int, default=5000)
    worker.add_argument("--jobs", type=int, default=3)
    options = parser.parse_args()
    if options.command == "worker":
        return work(options)
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    Aggregator(options).serve(options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
