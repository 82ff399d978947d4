# SPDX-License-Identifier: Apache-2.0
"""Runs inside gdb, in rank 0 of ways.program: for each system call that takes an address in a buffer, a line of JSON with the call stack, innermost
first: {"call": "pk_send", "by": "process_vm_writev", "frames": [[function, file], ...]}. Not more than MOST lines for one call of the API."""
import json

import gdb

MOST = 40
# Where the two lists of addresses are when one of these is entered: its second and fourth argument.
REGISTERS = {"i386:x86-64": ("$rsi", "$rcx"), "aarch64": ("$x1", "$x3")}
CALLS = ("process_vm_readv", "process_vm_writev")


def number(text):
    return int(gdb.parse_and_eval(text).cast(gdb.lookup_type("unsigned long")))


def begins(vector):
    """The first address of a struct iovec."""
    return number("*(unsigned long *)%d" % number(vector))


def ranges():
    """By casts, for where only lines are kept (-g1) a debugger does not know what type a variable has."""
    whole = number("*(unsigned long *)&way_bytes")
    return [(number("((unsigned long *)&%s)[%d]" % (name, rank)), whole) for name in ("way_from", "way_to") for rank in (0, 1)]


def frames():
    frame, found = gdb.newest_frame(), []
    while frame is not None:
        table = frame.find_sal().symtab
        found.append([frame.name(), table.fullname() if table is not None else None])
        frame = frame.older()
    return found


class Call(gdb.Breakpoint):
    def __init__(self, name):
        super().__init__(name)
        self.name = name

    def stop(self):
        call = gdb.parse_and_eval("*(char **)&way_call").string()
        names = REGISTERS[gdb.selected_frame().architecture().name()]
        if any(first <= begins(vector) < first + whole for vector in names for first, whole in ranges()):
            seen[call] = seen.get(call, 0) + 1
            if seen[call] <= MOST:
                print("WAY " + json.dumps({"call": call, "by": self.name, "frames": frames()}))
        return False


seen = {}
gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set debuginfod enabled off")
gdb.execute("break way_begin")
gdb.execute("run")
for name in CALLS:
    Call(name)
gdb.execute("tbreak exit")
gdb.execute("delete 1")
gdb.execute("continue")
gdb.execute("continue")
