#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the CPU's reductions vector code? Looks at the loops of every type and operation in a library that still has its symbols.

usage: vectors.py LIBRARY [OBJDUMP]
       vectors.py --self-test
Exit code 77 where the library is for a machine that this does not know, or nothing can take it apart.
"""
import re
import shutil
import subprocess
import sys

INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
FLOATS = ("f32", "f64")
SMALL = ("f16", "bf16", "f8e4m3", "f8e5m2")

X86 = {
    "store": r"v?(movdq[au]|mov[au]p[sd])\s+%(xmm|ymm)\d+,.*\(",
    "scalar": r"cmov|v?(add|sub|mul|min|max|u?comi)s[sd]\b|imul|set[a-z]+\b",
    "sum": {"8": r"v?paddb", "32": r"v?paddd", "64": r"v?paddq", "f32": r"v?addps", "f64": r"v?addpd"},
    "prod": {"8": r"v?pmul(lw|hw)|v?pmaddubsw", "32": r"v?pmul(ld|udq)", "64": r"v?pmuludq", "f32": r"v?mulps", "f64": r"v?mulpd"},
    "pick": {"8": r"v?p(cmpgtb|m(in|ax)[su]b|subusb)", "32": r"v?p(cmpgtd|m(in|ax)[su]d)", "64": r"v?pcmpgtq",
             "f32": r"v?(cmp\w*|min|max)ps", "f64": r"v?(cmp\w*|min|max)pd"},
    "load": r"v?p(sll|srl|mull|or|unpck)[a-z]*|vcvtph2ps",
    "narrow": r"v?p(sr[la]|and|add)[a-z]*|vcvtps2ph|vandps",
    "sum_lanes": r"vaddps",
}

ARM = {
    "store": r"st[pr]\s+q\d+|st1\s+\{v",
    "scalar": r"f?csel|cset|madd|mul\s+[wx]\d|f(add|mul|cmpe?)\s+[hsd]\d",
    "sum": {"8": r"add\s+v\d+\.16b", "32": r"add\s+v\d+\.4s", "64": r"add\s+v\d+\.2d", "f32": r"fadd\s+v\d+\.4s", "f64": r"fadd\s+v\d+\.2d"},
    "prod": {"8": r"mul\s+v\d+\.16b", "32": r"mul\s+v\d+\.4s", "64": r"mul\s+v\d+\.2d", "f32": r"fmul\s+v\d+\.4s", "f64": r"fmul\s+v\d+\.2d"},
    "pick": {"8": r"(cm(gt|hi|ge|hs)|[su](min|max))\s+v\d+\.16b", "32": r"(cm(gt|hi|ge|hs)|[su](min|max))\s+v\d+\.4s",
             "64": r"cm(gt|hi|ge|hs)\s+v\d+\.2d", "f32": r"fcm(gt|ge)\s+v\d+\.4s", "f64": r"fcm(gt|ge)\s+v\d+\.2d"},
    "load": r"(u?shll?2?|sli|u?shr)\s+v\d",
    "narrow": r"(u?shrn?2?|u?sra|add|bic|orr)\s+v\d",
}

# What the instruction set has no instruction for: min and max of 64 bits came with SSE4.2 (f64 is compared there, but gcc then picks
# halves by moves), a product of 64-bit integers has never come to NEON. gcc at -O2 leaves the rounding to f8 scalar on aarch64.
X86_WITHOUT = {"%s_%s_base" % (op, kind) for op in ("min", "max") for kind in ("int64", "uint64", "f64")}
ARM_WITHOUT = {"prod_int64_base", "prod_uint64_base", "store_f8e4m3_base", "store_f8e5m2_base"}


def functions(text):
    """name -> [(address, instruction)] of what objdump printed."""
    found, current = {}, None
    for line in text.splitlines():
        head = re.match(r"^[0-9a-f]+ <(\w+)>:", line)
        if head:
            current = found.setdefault(head.group(1), [])
            continue
        body = re.match(r"^\s*([0-9a-f]+):\s+(.*)$", line)
        if body and current is not None:
            current.append((int(body.group(1), 16), body.group(2)))
    return found


def loops(code):
    """The innermost stretches between a jump back and where it goes."""
    found = []
    for address, instruction in code:
        jump = re.match(r"(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s+(?:.*\s)?(?:0x)?([0-9a-f]+) <", instruction)
        if jump and code[0][0] <= int(jump.group(1), 16) <= address:
            found.append((int(jump.group(1), 16), address))
    inner = [x for x in found if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in found)]
    return [[instruction for address, instruction in code if first <= address <= last] for first, last in inner]


def has(loop, pattern):
    return any(re.match("(?:%s)" % pattern, instruction) for instruction in loop)


def is_vector(code, wanted, machine, stores=True):
    return any(has(loop, wanted) and not has(loop, machine["scalar"]) and (not stores or has(loop, machine["store"])) for loop in loops(code))


def combinations(machine, isas):
    """(function, pattern) of every type and operation."""
    for isa in isas:
        for kind in INTEGERS + FLOATS:
            width = kind if kind in FLOATS else re.sub(r"\D", "", kind)
            for op in ("sum", "prod", "min", "max"):
                yield "%s_%s_%s" % (op, kind, isa), machine[op if op in machine else "pick"][width]
        for kind in SMALL:
            yield "load_%s_%s" % (kind, isa), machine["load"]
            yield "store_%s_%s" % (kind, isa), machine["narrow"]


def check(code, machine, isas, without):
    """Lines about what is wrong, and how many loops were looked at."""
    wrong, looked = [], 0
    for name, wanted in combinations(machine, isas):
        if name in without:
            continue
        looked += 1
        if name not in code:
            wrong.append("%s: there is no such function in the library" % name)
        elif not is_vector(code[name], wanted, machine):
            wrong.append("%s: no loop of vectors with /%s/" % (name, wanted))
        # The 16 elements that are converted at a time are 16 bytes of f8.
        elif name.endswith("_avx2") and "_f8" not in name and not any("%ymm" in i for loop in loops(code[name]) for i in loop):
            wrong.append("%s: its vectors are not of 32 bytes" % name)
    for name in ("sum_lanes_f16", "sum_lanes_bf16") if "avx2" in isas else ():
        looked += 1
        if name not in code or not is_vector(code[name], machine["sum_lanes"], machine, stores=False):
            wrong.append("%s: no loop of vectors" % name)
    return wrong, looked


def disassemble(library, objdump):
    """(text, machine), or exit."""
    header = subprocess.run([objdump, "-f", library], capture_output=True, text=True, check=False).stdout
    machine = "x86_64" if "x86-64" in header else "aarch64" if "aarch64" in header else None
    if machine is None:
        print("SKIPPED: %s is for a machine that is not known here" % library)
        sys.exit(77)
    out = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True)
    return out.stdout, machine


VECTOR_LOOP = """
0000000000001000 <sum_f32_base>:
    1000:\tmov    $0x10,%eax
    1008:\tmovups -0x10(%rdx,%rax,1),%xmm0
    100d:\taddps  %xmm1,%xmm0
    1010:\tmovups %xmm0,-0x10(%rdi,%rax,1)
    1018:\tjae    1008 <sum_f32_base+0x8>
    1020:\tret
"""


def self_test():
    scalar = VECTOR_LOOP.replace("addps", "addss")
    outside = VECTOR_LOOP.replace("jae    1008", "jae    1020")
    unstored = VECTOR_LOOP.replace("movups %xmm0,-0x10(%rdi,%rax,1)", "nop")
    wanted = X86["sum"]["f32"]
    results = [is_vector(functions(text)["sum_f32_base"], wanted, X86) for text in (VECTOR_LOOP, scalar, outside, unstored)]
    wrong, looked = check(functions(VECTOR_LOOP), X86, ["base"], X86_WITHOUT)
    assert results == [True, False, False, False], results
    assert looked == 34 and len(wrong) == 33 and not any("sum_f32" in line for line in wrong), (looked, wrong)
    print("ok")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    objdump = sys.argv[2] if len(sys.argv) > 2 else "objdump"
    if shutil.which(objdump) is None:
        print("SKIPPED: there is no %s here (Debian: binutils)" % objdump)
        sys.exit(77)
    text, machine = disassemble(sys.argv[1], objdump)
    if machine == "x86_64":
        wrong, looked = check(functions(text), X86, ["base", "avx2"], X86_WITHOUT)
    else:
        wrong, looked = check(functions(text), ARM, ["base"], ARM_WITHOUT)
    for line in wrong:
        print("FAIL " + line)
    print("%d of %d loops for %s are vector code" % (looked - len(wrong), looked, machine))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
