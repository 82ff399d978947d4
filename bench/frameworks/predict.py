# SPDX-License-Identifier: Apache-2.0
"""What a step should take, before it is measured: its computing, measured alone, and its messages, by pickle-sim on a machine
that was fitted to measurements. What goes on beside what is each case's recipe."""
import os
import re
import shutil
import subprocess

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
ALGORITHMS = {"allreduce": ("direct", "ring"), "allgather": ("direct", "ring"), "reduce_scatter": ("direct", "ring"),
              "alltoall": ("direct",),
              "broadcast": ("flat",)}
FORWARD = 1 / 3  # of the time of a step's computing: a backward pass computes twice as much


class Simulator:
    """pickle-sim, each question asked once. `why`: it cannot be asked."""

    def __init__(self, program, machine, ranks):
        self.machine, self.ranks, self.known = machine, ranks, {}
        self.program = program or next((path for path in (os.path.join(TREE, "build", "dev", "tools", "pickle-sim", "pickle-sim"),
                                                          os.path.join(TREE, "build", "gpu", "tools", "pickle-sim", "pickle-sim"))
                                        if os.access(path, os.X_OK)), shutil.which("pickle-sim"))
        self.why = None if self.program else "pickle-sim was not found"

    def seconds(self, operation, size):
        if (operation, size) not in self.known:
            # One way: a broadcast between two ranks is a send and a receive.
            name, ranks = ("broadcast", 2) if operation == "sendrecv" else (operation, self.ranks)
            times = [self.ask(name, algorithm, ranks, max(4, size)) for algorithm in ALGORITHMS[name]]
            self.known[operation, size] = min(times)
        return self.known[operation, size]

    def ask(self, operation, algorithm, ranks, size):
        done = subprocess.run([self.program, "run", self.machine, operation, algorithm, str(ranks), str(int(size))],
                              capture_output=True, text=True,
                              timeout=60, check=False)
        row = re.search(r"^\s+\d+\s+([0-9.]+)\s", done.stdout, re.M)
        if done.returncode != 0 or row is None:
            raise ValueError("pickle-sim run %s %s %d %d: %s" % (operation, algorithm, ranks, size,
                                                                 done.stderr.strip() or done.stdout.strip()))
        return float(row.group(1)) / 1e6


def predicted(recipe, simulator):
    """Seconds of a step."""
    times = [(simulator.seconds(operation, size), count) for operation, size, count in recipe["messages"]]
    return KINDS[recipe["kind"]](recipe, times, simulator)


def serial(recipe, times, _):
    return recipe["seconds"] + sum(seconds * count for seconds, count in times)


def behind(recipe, times, _):
    """Operations that become ready evenly over the backward pass, and go one after the other beside it."""
    each = [seconds for seconds, count in times for _ in range(count)]
    end = begun = recipe["seconds"] * FORWARD
    for number, seconds in enumerate(each, 1):
        ready = begun + recipe["seconds"] * (1 - FORWARD) * number / len(each)
        end = max(end, ready) + seconds
    return max(recipe["seconds"], end)


def ring(recipe, times, simulator):
    """What goes beside the computing of a block shows where it takes longer than that; the rest is added."""
    total = serial(recipe, times, simulator)
    for share, (operation, size, count) in zip((FORWARD, 1 - FORWARD), recipe["hidden"]):
        block = recipe["seconds"] * share / recipe["blocks"]
        total += count * max(0.0, simulator.seconds(operation, size) - block)
    return total


def order(schedule, stages, micro, stage):
    """What a stage does, in turn: (forward?, micro-batch)."""
    ahead = micro if schedule == "gpipe" else min(stages - 1 - stage, micro)
    found = [(True, number) for number in range(ahead)]
    for number in range(ahead, micro):
        found += [(True, number), (False, number - ahead)]
    return found + [(False, number) for number in range(micro - ahead, micro)]


def pipeline(recipe, times, _):
    """A stage begins with a micro-batch when what it needs has come and it is free. `each`: seconds of the stages."""
    stages, micro, message = recipe["stages"], recipe["micro"], times[0][0]
    each = [seconds / micro for seconds in recipe.get("each", [recipe["seconds"]] * stages)]
    plans = [order(recipe["schedule"], stages, micro, stage) for stage in range(stages)]
    done, free, places = {}, [0.0] * stages, [0] * stages
    while any(places[stage] < len(plans[stage]) for stage in range(stages)):
        for stage in range(stages):
            while places[stage] < len(plans[stage]):
                forward, number = plans[stage][places[stage]]
                source = stage - 1 if forward else stage + 1
                needs = (forward, number, source) if 0 <= source < stages else (True, number, stage) if not forward else None
                if needs is not None and needs not in done:
                    break
                came = 0.0 if needs is None else done[needs] + (message if needs[2] != stage else 0.0)
                free[stage] = done[forward, number, stage] = max(free[stage],
                                                                 came) + each[stage] * (FORWARD if forward else 1 - FORWARD)
                places[stage] += 1
    return max(free)


KINDS = {"serial": serial, "behind": behind, "ring": ring, "pipeline": pipeline}
