# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks, one a library, that stay alive and take turns: starting them, asking them, ending them."""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START_SECONDS = 180
END_SECONDS = 10


class SetFailed(Exception):
    """A rank said an error, ended, or did not answer in time; the set is to be ended."""


class Set:
    """`command`: before the interpreter; `backend`: torch's name; `environment`: beside this process's own."""

    def __init__(self, name, backend, device, ranks, port, log, command=(), environment=None):
        self.name, self.log = name, log
        pairs = [socket.socketpair() for _ in range(ranks)]
        self.ends, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.pending = [b""] * ranks
        descriptors = [end.fileno() for end in theirs]
        arguments = [*command, sys.executable, os.path.join(HERE, "rank.py"), backend, device, str(port), *map(str, descriptors)]
        with open(log, "ab") as out:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=descriptors,
                                            env={**os.environ, **(environment or {})}, start_new_session=True)
        for end in theirs:
            end.close()
        try:
            self.about = self.ask("about", START_SECONDS)[0]
        except SetFailed:
            self.end()
            raise

    def ask(self, do, seconds, **arguments):
        """The same of all ranks at once; their answers. Raises SetFailed."""
        line = (json.dumps({"do": do, **arguments}) + "\n").encode()
        try:
            for end in self.ends:
                end.sendall(line)
        except OSError as error:
            raise SetFailed("%s: a rank has ended before %s: %s; see %s" % (self.name, do, error, self.log)) from error
        return self.answers(do, time.monotonic() + seconds)

    def answers(self, do, end):
        found = {}
        while len(found) < len(self.ends):
            waiting = {self.ends[rank]: rank for rank in range(len(self.ends)) if rank not in found}
            left = end - time.monotonic()
            ready = select.select(list(waiting), [], [], max(0, left))[0] if left > 0 else []
            if not ready:
                raise SetFailed("%s: %s: rank %s did not answer in time; see %s"
                                % (self.name, do, ", ".join(map(str, sorted(waiting.values()))), self.log))
            for one in ready:
                said = self.line(waiting[one])
                if said is None:
                    continue
                if "error" in said:
                    raise SetFailed("%s: %s: rank %d: %s" % (self.name, do, waiting[one], said["error"]))
                found[waiting[one]] = said["result"]
        return [found[rank] for rank in range(len(self.ends))]

    def line(self, rank):
        """What this rank has said, or None while its line is not whole."""
        try:
            more = self.ends[rank].recv(1 << 16)
        except OSError:
            more = b""
        if not more:
            raise SetFailed("%s: rank %d has ended; see %s" % (self.name, rank, self.log))
        self.pending[rank] += more
        if not self.pending[rank].endswith(b"\n"):
            return None
        text, self.pending[rank] = self.pending[rank], b""
        return json.loads(text)

    def end(self):
        """Told by the end of its sockets; what is left after that is killed, its whole session."""
        for end in self.ends:
            end.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
