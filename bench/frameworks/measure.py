# SPDX-License-Identifier: Apache-2.0
"""A row: what its case takes on each set of ranks, the sets turn by turn."""
import math
import os
import shutil
import statistics
import subprocess
import sys
import time

from intervals import interval
from predict import predicted
from sets import SetFailed

BUILD_SECONDS, LEAST_BUILD_SECONDS, TURN_SECONDS = 150, 60, 60
SAME = {"cpu": 1e-5, "cuda": 2e-2}  # how far losses may be apart, relative: float32 in host memory, bfloat16 on GPUs
LEAST_TURNS = 3


class Found:
    """Of a row. `times`, `clocks`: {set: [of a turn]}; `built`: {set: [what each rank said]}."""

    def __init__(self):
        self.times, self.clocks, self.built, self.values = {}, {}, {}, {}
        self.refused = self.predicted = self.copied = self.copies = None
        self.notes, self.faults, self.last = [], [], {}
        self.peak = None  # operations a second that a device can do

    def median(self, name):
        return statistics.median(self.times[name])

    def ratio(self, name, other="reference"):
        """Time of one to the other's in the same turn: (geometric mean, low, high of its 95 % interval)."""
        return interval([one / two for one, two in zip(self.times[name], self.times[other])])

    def part(self, name, key):
        """The slowest rank's."""
        return max(said["parts"][key] for said in self.built[name])

    def difference(self):
        """The largest difference of losses or outputs, step by step and rank by rank, beside the largest loss: one that has
        fallen to nearly nothing is noise. Infinite where one is no number."""
        most, whole = 0.0, max([abs(value) for value in self.values["reference"]] + [1e-12])
        for theirs in self.values.values():
            for one, two in zip(theirs, self.values["reference"]):
                apart = abs(one - two) / whole
                most = max(most, apart if math.isfinite(apart) else math.inf)
        return most


class Clock:
    """The clocks of the GPUs' multiprocessors, as nvidia-smi prints them every tenth of a second."""

    def __init__(self, on):
        self.process = None
        if on and shutil.which("nvidia-smi"):
            self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-lms",
                                             "100"],
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            os.set_blocking(self.process.stdout.fileno(), False)

    def seen(self):
        """The mean of what was printed since the last call; None: nothing."""
        if self.process is None:
            return None
        try:
            text = os.read(self.process.stdout.fileno(), 1 << 20).decode()
        except BlockingIOError:
            text = ""
        values = [float(word) for word in text.split() if word.isdigit() and len(word) >= 3]
        return statistics.fmean(values) if values else None

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


class Meter:
    def __init__(self, options, simulator):
        self.options, self.simulator = options, simulator

    def progress(self, row, turn, turns):
        if sys.stderr.isatty():
            full = 20 * turn // turns
            sys.stderr.write("\r\033[K%s: %s [%s%s] %d/%d\r" % (row.study, row.name, "#" * full, "." * (20 - full), turn, turns))
            sys.stderr.flush()

    def measure(self, row, sets, seconds):
        """Raises SetFailed."""
        found, end = Found(), time.monotonic() + seconds
        found.peak = sets["reference"].about["peak"]
        limit = min(BUILD_SECONDS, max(LEAST_BUILD_SECONDS, 3 * seconds))
        for name, one in sets.items():
            found.built[name] = one.ask("build", limit, study=row.module, arguments=row.arguments,
                                        times=1 if self.options.tiny else 3)
            refused = next((said["refused"] for said in found.built[name] if "refused" in said), None)
            if refused is not None:
                found.refused = refused
                return found
        self.predict(row, found)
        self.take_turns(row, sets, found, max(1.0, end - time.monotonic()), end)
        self.compare(found)
        if self.options.cuda and not row.third:
            self.look_at_copies(sets["pickle"], found)
        for one in sets.values():
            one.ask("drop", TURN_SECONDS)
        return found

    def predict(self, row, found):
        if self.simulator.why is not None:
            found.notes.append(self.simulator.why)
            return
        built = found.built["pickle"]
        # One rank's messages and the slowest one's computing: the others wait for it.
        recipe = dict(built[0]["recipe"], seconds=found.part("pickle", "alone"), each=[said["parts"]["alone"] for said in built])
        found.predicted = predicted(recipe, self.simulator)
        print("%s, %s: predicted %.3f ms a step over libpickle" % (row.study, row.name, found.predicted * 1e3), flush=True)

    def take_turns(self, row, sets, found, seconds, end):
        turns = self.options.turns
        slowest = max(said["seconds"] for built in found.built.values() for said in built)
        of_turn = min(1.0, 0.7 * seconds / (turns * len(sets)))
        steps = 1 if self.options.tiny else max(1, min(50, int(of_turn / slowest) - 1))
        for name in sets:
            found.times[name], found.clocks[name], found.values[name] = [], [], []
        clock = Clock(row.third)
        try:
            for turn in range(turns):
                if turn >= LEAST_TURNS and time.monotonic() >= end:
                    found.notes.append("%d turns, for lack of time" % turn)
                    break
                self.progress(row, turn, turns)
                for name in list(sets)[::1 if turn % 2 else -1]:
                    clock.seen()
                    said = sets[name].ask("turn", TURN_SECONDS, steps=steps)
                    found.clocks[name].append(clock.seen())
                    found.times[name].append(max(one["seconds"] for one in said))
                    found.values[name] += [value for one in said for value in one["values"]]
                    found.last[name] = said
        finally:
            clock.end()

    def compare(self, found):
        exact = any(said["exact"] for built in found.built.values() for said in built)
        different, bound = found.difference(), 0 if exact else SAME[self.options.device]
        if any(len(values) != len(found.values["reference"]) for values in found.values.values()):
            found.faults.append("the libraries gave different numbers of losses")
        elif different > bound:
            found.faults.append("losses or outputs differ by %.3g, more than %g" % (different, bound))

    def look_at_copies(self, pickle, found):
        """The share of bytes in messages of 1 MiB and more, of operations without sums, that copies between GPUs moved."""
        wanted = sum(said["unsummed"] for said in found.built["pickle"])
        try:
            found.copies = pickle.ask("copies", TURN_SECONDS)
        except SetFailed as error:
            found.notes.append("the profiler: %s" % error)
            return
        moved = sum(row[2] for said in found.copies for name, row in said.items() if "PtoP" in name)
        if moved == 0 and wanted:
            found.notes.append("the profiler saw no copy between GPUs")
        if wanted:
            found.copied = moved / wanted
        else:
            found.notes.append("no message of 1 MiB without a sum")
