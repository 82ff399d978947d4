#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training and inference by torch over libpickle and over another library, turn by turn: NCCL and libpickle's libnccl.so.2 on
GPUs, Gloo and the back end "pickle" in host memory. A table a study, with CSV, JSON and a chart (by gnuplot), written as rows
come.

README.md beside this file says what each column means. Exit 1: a row is missing, values differ between the libraries, or a
set of ranks failed; 77: there is no torch, or nothing of libpickle to run it over."""
import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "experiments"))

# pylint: disable=wrong-import-position
from machine import Machine, free_port
from measure import Meter
from predict import TREE, Simulator
from results import Table
from sets import Set, SetFailed
import studies
import tables

SIM_MACHINES = os.path.join(TREE, "tools", "pickle-sim", "machines")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", action="append", choices=list(studies.ROWS),
                        help="this one; may stand several times (default: all)")
    parser.add_argument("--row", action="append", help="only rows whose name has this in it; may stand several times")
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand weights: whether it works")
    parser.add_argument("--turns", type=int, default=9, help="of each library in a row (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10,
                        help="of the whole run; what is not done by then has rows that say so (default: %(default)g)")
    parser.add_argument("--ranks", type=int, help="default: as many as GPUs; 2 in host memory")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda where there are two GPUs")
    parser.add_argument("--out", default="results", help="folder of the results (default: %(default)s)")
    parser.add_argument("--pickle-nccl", help="the program pickle-nccl (default: in PATH)")
    parser.add_argument("--sim", help="pickle-sim (default: in build/, in PATH)")
    parser.add_argument("--sim-machine", help="JSON of a machine for pickle-sim (default: one of tools/pickle-sim/machines)")
    return parser.parse_args()


class Pool:
    """The sets that are alive: those of one way for GPUs to reach one another."""

    def __init__(self, options):
        self.options, self.alive, self.p2p, self.started = options, {}, None, []

    def plan(self, name):
        """(back end, command before the interpreter, environment)"""
        shared = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"), "OMP_NUM_THREADS": "1",
                  "PYTHONDONTWRITEBYTECODE": "1"}
        if not self.options.cuda:
            return ("gloo" if name == "reference" else "pickle"), [], shared
        if not self.p2p:
            shared["NCCL_P2P_DISABLE"] = "1"
        if name == "none":
            shared["PK_SM_POLICY"] = "none"
        return "nccl", [] if name == "reference" else [self.options.pickle_nccl, "--"], shared

    def get(self, row):
        """{name: set}, those that are missing started one after the other, so that each sees what GPU memory it takes."""
        if self.p2p is not row.p2p:
            self.end()
            self.p2p = row.p2p
        wanted = ["reference", "pickle"] + (["none"] if row.third else [])
        for name in wanted:
            if name not in self.alive:
                self.start(name)
        return {name: self.alive[name] for name in wanted}

    def start(self, name):
        backend, command, environment = self.plan(name)
        log = os.path.join(self.options.out, "%s%s.log" % (name, "" if self.p2p else "-no-p2p"))
        made = Set(name, backend, self.options.device, self.options.ranks, free_port(), log, command, environment)
        self.alive[name] = made
        files = " ".join(made.about["files"])
        ours = any(os.path.basename(path).startswith("libpickle.so") for path in made.about["files"])
        if ours != (name != "reference"):
            raise SetFailed("%s: the wrong library is loaded: %s" % (name, files))
        memory = made.ask("first_use", 120, sums=name != "none")
        self.started.append((name, self.p2p, made.about, memory))
        print("# %s%s: torch %s, %s %s, %s" % (name, "" if self.p2p else " without peer-to-peer", made.about["torch"], backend,
                                               made.about["version"],
                                             files or "no library of its own"), flush=True)

    def end(self):
        for one in self.alive.values():
            one.end()
        self.alive = {}


class Run:
    def __init__(self, options):
        self.options, self.end = options, time.monotonic() + 60 * options.minutes
        self.pool, self.faults, self.stopped = Pool(options), [], None
        machine = options.sim_machine or os.path.join(SIM_MACHINES, "h200-nvlink.json" if options.cuda else "host-2-cores.json")
        self.meter = Meter(options, Simulator(options.sim, machine, options.ranks))
        self.tables, self.memory = {}, None

    def budget(self, row, later):
        """Seconds for this row, of what is left for it and those behind it."""
        left = self.end - time.monotonic()
        return left * row.weight / sum(one.weight for one in [row] + later)

    def table(self, row):
        if row.study not in self.tables:
            self.tables[row.study] = tables.of_study(row.study, studies.TITLES[row.study], self.options)
        return self.tables[row.study]

    def one(self, row, later):
        table, seconds = self.table(row), self.budget(row, later)
        if self.stopped or seconds < 1:
            table.add(reason="not run: %s" % (self.stopped or "out of time"), row=row.name)
            self.faults.append("%s: %s was not run" % (row.study, row.name))
            return
        try:
            found = self.meter.measure(row, self.pool.get(row), seconds)
        except (SetFailed, ValueError, OSError, subprocess.SubprocessError) as error:
            self.pool.end()  # the other set may wait for nothing, but its ranks have another number of steps behind them
            table.add(reason=str(error), row=row.name)
            self.faults.append("%s: %s: %s" % (row.study, row.name, error))
            return
        tables.add(table, row, found, self.options)
        self.faults += ["%s: %s: %s" % (row.study, row.name, fault) for fault in found.faults]
        print(tables.line(table, table.rows[-1]), flush=True)

    def all(self):
        wanted = self.options.study or list(studies.ROWS)
        rows = [row for row in studies.rows(wanted, self.options.tiny, self.options.ranks, self.options.cuda)
                if not self.options.row or any(one in row.name for one in self.options.row)]
        try:
            for number, row in enumerate(rows):
                self.one(row, rows[number + 1:])
                if self.options.cuda:
                    self.memory = tables.memory(self.pool.started)
        finally:
            self.pool.end()
        for table in list(self.tables.values()) + ([self.memory] if self.memory is not None else []):
            tables.chart(table)
            table.write()
            print("\n" + table.text(), flush=True)
        print("\n".join(tables.summary(self.tables.values())))


def prepared(options):
    """What there is here; or the reason why nothing can be run."""
    if importlib.util.find_spec("torch") is None:
        return "%s has no torch" % sys.executable
    gpus = len(Machine([], "tiny").gpus)
    options.device = options.device or ("cuda" if gpus >= 2 else "cpu")
    options.cuda = options.device == "cuda"
    options.ranks = options.ranks or (gpus if options.cuda else 2)
    options.pickle_nccl = options.pickle_nccl or shutil.which("pickle-nccl")
    if options.cuda and options.pickle_nccl is None:
        return "pickle-nccl is not in PATH; --pickle-nccl names it"
    if not options.cuda and importlib.util.find_spec("libpickle") is None:
        return "PYTHONPATH names no folder with the package libpickle"
    return None


def main():
    options = arguments()
    for name in ("PK_RANK", "PK_SIZE", "PK_ROOT"):
        os.environ.pop(name, None)
    why = prepared(options)
    if why is not None:
        print("SKIPPED: " + why)
        sys.exit(77)
    os.makedirs(options.out, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(options.out, tables.KEPT))
    Table.folder, Table.about = options.out, Machine([], "tiny").about()
    print("\n".join("# " + line for line in Table.about), flush=True)
    run = Run(options)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda got, _: setattr(run, "stopped", "told to end by %s" % signal.Signals(got).name))
    run.all()
    for fault in run.faults:
        print("MISSING: " + fault)
    print("%s; results in %s" % ("not all is well" if run.faults else "every row is there, and the libraries agree", options.out))
    sys.exit(1 if run.faults else 0)


if __name__ == "__main__":
    main()
