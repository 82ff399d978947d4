# SPDX-License-Identifier: Apache-2.0
"""Runs inside gdb, in rank 0 of ways.program: for each system call, or launch of a kernel, that takes an address in a buffer, a line of JSON with the
call stack, innermost first: {"call": "pk_send", "by": "process_vm_writev", "frames": [[function, file], ...]}. Not more than MOST lines for one call of
the API."""
import json

import gdb

MOST = 40
# The first arguments of a function, when it is entered.
REGISTERS = {"i386:x86-64": ("$rdi", "$rsi", "$rdx", "$rcx"), "aarch64": ("$x0", "$x1", "$x2", "$x3")}
WORDS = 4 # so many of the structure that a kernel takes may be addresses of buffers


def number(text):
    return int(gdb.parse_and_eval(text).cast(gdb.lookup_type("unsigned long")))


def word(address):
    """By a cast, for where only lines are kept (-g1) a debugger does not know what type a variable has."""
    return number("*(unsigned long *)%d" % address)


def of_vectors(arguments):
    """Of process_vm_*: where the first piece of each of its two lists begins."""
    return [word(number(arguments[1])), word(number(arguments[3]))]


def of_kernel(arguments):
    """Of cuLaunchKernelEx: the first words of what the kernel's first parameter holds."""
    parameter = word(number(arguments[2]))
    return [word(parameter + 8 * i) for i in range(WORDS)]


CALLS = {"process_vm_readv": of_vectors, "process_vm_writev": of_vectors, "cuLaunchKernelEx": of_kernel}


def ranges():
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
        addresses = CALLS[self.name](REGISTERS[gdb.selected_frame().architecture().name()])
        if any(first <= address < first + whole for address in addresses for first, whole in ranges()):
            seen[call] = seen.get(call, 0) + 1
            if seen[call] <= MOST:
                print("WAY " + json.dumps({"call": call, "by": self.name, "frames": frames()}))
        return False


seen = {}
gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set debuginfod enabled off")
gdb.execute("set breakpoint pending on") # where no driver is loaded
gdb.execute("break way_begin")
gdb.execute("run")
for name in CALLS:
    Call(name)
gdb.execute("tbreak exit")
gdb.execute("delete 1")
gdb.execute("continue")
gdb.execute("continue")
