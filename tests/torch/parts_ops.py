# SPDX-License-Identifier: Apache-2.0
"""Parts of nccl_programs.py about operations and their values."""
import struct
import time

import torch
import torch.distributed as dist

SIZES = (4 << 10, 1 << 20, 64 << 20)


def late(b, names):
    """One rank is late; the other launches kernels that have never run behind and beside the operation, frees and allocates."""
    b.start()
    b.short_round()
    side = b.stream()
    sizes = SIZES if b.cuda else SIZES[:2]
    for turn, (name, size) in enumerate((name, size) for name in names for size in sizes):
        last = 1 if turn % 4 else 0
        b.synchronize()
        b.meet()
        if b.rank == last:
            time.sleep(0.3 + 0.1 * (turn % 3))
        work, check = getattr(b, name)(size // 4, turn, b.cuda and turn % 2 == 0)
        kernels = []
        if b.rank != last:
            with b.within(side):
                kernels.append(b.new_kernel())
            kernels.append(b.new_kernel())
            b.allocate_anew()
        b.wait(work)
        kernels.append(b.new_kernel())
        b.synchronize()
        for one in (check, *kernels):
            one()


def late_first(b):
    late(b, [name for name in b.operations() if name in b.OPERATIONS[:5]])


def late_second(b):
    late(b, [name for name in b.operations() if name in b.OPERATIONS[5:10]])


def late_third(b):
    late(b, [name for name in b.operations() if name in b.OPERATIONS[10:]])


def late_compile(b):
    """torch.compile, which starts compilers, behind an operation whose other rank is late."""
    b.start()
    b.short_round()
    for turn, name in enumerate(("all_reduce", "all_gather_into_tensor", "send_recv", "broadcast")):
        values = torch.rand(1000 + turn, device=b.device)

        def scaled(x, by=turn + 2.0):
            return torch.tanh(x * by).sum() + x.square().mean()

        expected = scaled(values)
        b.synchronize()
        b.meet()
        if b.rank == turn % 2:
            time.sleep(0.4)
        work, check = getattr(b, name)(1 << 20, turn, True)
        got = torch.compile(scaled)(values)
        b.wait(work)
        b.synchronize()
        check()
        b.check(torch.allclose(got, expected), "what torch.compile made beside %s" % name)


def uneven(b):
    """all_to_all with parts of any length, none and all to one's own rank among them."""
    b.start()
    splits = (
        [[3, 5], [7, 1]],
        [[0, 5], [7, 0]],
        [[4, 0], [0, 9]],
        [[0, 0], [6, 2]],
        [[0, 0], [0, 0]],
        [[100003, 1], [0, 65537]],
        [[0, 1], [0, 0]],
        [[1 << 20, 3 << 20], [5, (2 << 20) + 1]],
    )
    for turn, matrix in enumerate(splits):
        send, receive = matrix[b.rank], [matrix[0][b.rank], matrix[1][b.rank]]
        own = b.data(sum(send), turn)
        parts = [b.data(sum(matrix[r]), turn, r).split(matrix[r])[b.rank] for r in range(2)]
        out = torch.full((sum(receive),), -1.0, device=b.device)
        dist.all_to_all_single(out, own, receive, send)
        b.synchronize()
        b.equal(out, torch.cat(parts), "all_to_all_single with %s" % matrix)
        if b.arguments.backend == "gloo":
            continue
        outs = [torch.full((count,), -1.0, device=b.device) for count in receive]
        dist.all_to_all(outs, [part.clone() for part in own.split(send)])
        b.synchronize()
        for r in range(2):
            b.equal(outs[r], parts[r], "all_to_all with %s" % matrix)


# ---- types and reductions ----


def types():
    names = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "float8_e4m3fn", "float8_e5m2")
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def plain(dtype, rank, device):
    """1, 2, 1, ... on rank 0 and 2, 3, 2, ... on rank 1: exact in every type under every reduction."""
    return (torch.arange(4099, device=device) % 2 + 1 + rank).to(torch.float32).to(dtype)


def compare(b, got, expected, text):
    b.equal(got.to(torch.float64), expected, text)


def reductions(b):
    b.start()
    first, second = (plain(torch.float64, r, b.device) for r in range(2))
    expected = {
        "SUM": first + second,
        "PRODUCT": first * second,
        "MIN": torch.minimum(first, second),
        "MAX": torch.maximum(first, second),
        "AVG": (first + second) / 2,
    }
    for dtype in types():
        for name, values in expected.items():
            if b.arguments.backend == "gloo" and (name == "AVG" or dtype in (torch.bfloat16,)):
                continue
            if name == "AVG" and not dtype.is_floating_point:
                values = values.floor()
            own = plain(dtype, b.rank, b.device)
            try:
                dist.all_reduce(own, getattr(dist.ReduceOp, name))
            except (RuntimeError, TypeError, ValueError) as error:
                text = "all_reduce %s of %s: %s" % (name, dtype, str(error).splitlines()[0])
                (b.info if "Float8" in str(error) else b.bad)(text)
                continue
            b.synchronize()
            compare(b, own, values, "all_reduce %s of %s" % (name, dtype))
    booleans(b)
    moved(b)


def booleans(b):
    pattern = [(torch.arange(1001, device=b.device) // (1 + r)) % 2 == 0 for r in range(2)]
    either, both = pattern[0] | pattern[1], pattern[0] & pattern[1]
    cases = {"SUM": either, "MAX": either, "MIN": both, "PRODUCT": both} if b.cuda else {}
    for name, expected in cases.items():
        own = pattern[b.rank].clone()
        dist.all_reduce(own, getattr(dist.ReduceOp, name))
        b.synchronize()
        b.equal(own, expected, "all_reduce %s of bool" % name)


def moved(b):
    """Every type, complex numbers too, through what only moves them."""
    more = [torch.complex64, torch.complex128, torch.bool] if b.cuda else []
    for dtype in types() + more:
        if not b.cuda and dtype == torch.bfloat16:
            continue
        own = plain(torch.float32, b.rank, b.device).to(dtype)
        parts = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(parts, own)
        dist.broadcast(own, 1)
        b.synchronize()
        for r in range(2):
            good = plain(torch.float32, r, b.device).to(dtype)
            b.check(torch.equal(parts[r].view(torch.uint8), good.view(torch.uint8)), "all_gather of %s" % dtype)
        b.check(torch.equal(own.view(torch.uint8), good.view(torch.uint8)), "broadcast of %s" % dtype)


def premul(b):
    """PREMUL_SUM: the factor on the host, and in GPU memory that the stream writes just before."""
    b.start()
    total = plain(torch.float64, 0, b.device) + plain(torch.float64, 1, b.device)
    # PyTorch hands NCCL a float where it wants a bfloat16 and so shows it the lower half alone: this float's halves are both 3.0.
    twice_three = struct.unpack("<f", struct.pack("<I", 0x40404040))[0]
    for dtype in (torch.float32, torch.float16, torch.float64, torch.bfloat16):
        for kind in ("host", "device"):
            if dtype == torch.bfloat16:
                factor = twice_three if kind == "host" else torch.tensor([twice_three], device=b.device, dtype=torch.float32)
            else:
                factor = 3.0 if kind == "host" else torch.full((1,), 3.0, device=b.device, dtype=dtype)
            for count in (7, 4099):
                own = plain(dtype, b.rank, b.device)[:count].clone()
                dist.all_reduce(own, dist._make_nccl_premul_sum(factor))
                b.synchronize()
                compare(b, own, 3 * total[:count], "all_reduce PREMUL_SUM of %d %s, factor of the %s" % (count, dtype, kind))
            own, out = plain(dtype, b.rank, b.device)[:4098], torch.empty(2049, device=b.device, dtype=dtype)
            dist.reduce_scatter_tensor(out, own, dist._make_nccl_premul_sum(factor))
            b.synchronize()
            compare(
                b,
                out,
                3 * total[:4098].chunk(2)[b.rank],
                "reduce_scatter_tensor PREMUL_SUM of %s, factor of the %s" % (dtype, kind),
            )


# ---- random ----


def mixed(b):
    """300 operations of any kind and size on three streams, checked when all are queued."""
    b.start()
    streams = [b.stream() for _ in range(3)]
    names = [name for name in b.operations() if name != "barrier"]
    checks = []
    for turn in range(300):
        name = b.common.choice(names)
        count = b.common.choice((1, 2, 3, 17, 1000, 4096, 70001, 1 << 20 if b.cuda else 5))
        stream, later = b.common.choice(streams), b.common.random() < 0.5
        with b.within(stream):
            work, check = getattr(b, name)(count, turn, later)
            b.wait(work)
        checks.append(check)
        if turn % 50 == 49:
            b.synchronize()
            for one in checks:
                one()
            checks = []


def coalesced(b, turn):
    """Several operations of one kind in a coalescing manager."""
    kind, async_ops = (
        b.common.choice(("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")),
        turn % 2 == 0,
    )
    counts = [b.common.randrange(1, 5000) for _ in range(b.common.randrange(1, 4))]
    checks = []
    with dist._coalescing_manager(device=b.device, async_ops=async_ops) as manager:
        for number, count in enumerate(counts):
            checks.append(getattr(b, kind)(count, turn + number, async_ops)[1])
    if async_ops:
        manager.wait()
    return checks


def several_messages(b, turn):
    """A batch of messages both ways, of any size."""
    counts = [b.common.randrange(1, 100000) for _ in range(b.common.randrange(1, 6))]
    directions = [b.common.randrange(2) for _ in counts]
    operations, checks = [], []
    for number, (count, source) in enumerate(zip(counts, directions)):
        tensor = b.data(count, turn + number)
        operations.append(dist.P2POp(dist.isend if b.rank == source else dist.irecv, tensor, b.other))

        def check(tensor=tensor, count=count, seed=turn + number, source=source):
            b.equal(tensor, b.data(count, seed, source), "a batch of messages")

        checks.append(check)
    b.wait(dist.batch_isend_irecv(operations))
    return checks


def programs(b):
    """200 short programs: operations, batches and coalesced ones on streams of their own, a rank late, new kernels."""
    b.start()
    b.short_round()
    names = [name for name in b.operations() if name != "barrier"]
    coalescing = b.cuda
    for program in range(200):
        streams, checks = [b.stream() for _ in range(b.common.randrange(1, 4))], []
        last, pause, anew = b.common.randrange(3), b.common.random() * 0.02, b.common.random() < 0.3
        if b.rank == last:
            time.sleep(pause)
        for step in range(b.common.randrange(1, 6)):
            turn = 7 * program + step
            kind, count = b.common.random(), b.common.randrange(1, 1 << b.common.randrange(1, 20))
            name, stream, later = b.common.choice(names), b.common.choice(streams), b.common.random() < 0.5
            with b.within(stream):
                if kind < 0.2:
                    checks += several_messages(b, turn)
                elif kind < 0.4 and coalescing:
                    checks += coalesced(b, turn)
                else:
                    work, check = getattr(b, name)(count, turn, later)
                    b.wait(work)
                    checks.append(check)
                if anew and step == 0 and b.rank != last:
                    checks.append(b.new_kernel())
        b.synchronize()
        for check in checks:
            check()
        if b.failures:
            b.bad("program %d was wrong" % program)
            break
