# SPDX-License-Identifier: Apache-2.0
"""Parts of nccl_programs.py about groups, their beginning and their end, memory, and models."""
import copy
import ctypes
import datetime
import os
import signal
import time

import torch
import torch.distributed as dist

import nccl_ctypes
import torch_ctypes


# ---- the end ----


def leave(b):
    """Return with the group as it is: no destroy_process_group."""
    b.start()
    b.short_round()


def leave_pending(b):
    """The same with operations in flight that both ranks have called."""
    b.start()
    b.short_round()
    tensors = [b.data(1 << 20, turn) for turn in range(8)]
    b.works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]


def destroy_order(b):
    """Groups destroyed in another order on each rank."""
    b.start()
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    for group in groups:
        own = b.data(1000, 1)
        dist.all_reduce(own, group=group)
        b.synchronize()
        b.equal(own, b.data(1000, 1, 0) + b.data(1000, 1, 1), "all_reduce in a group")
    b.meet()
    for group in groups if b.rank == 0 else groups[::-1]:
        dist.destroy_process_group(group)
    b.short_round()


def watchdog(b):
    """The other rank never calls: PyTorch's own watchdog ends the process after the group's timeout."""
    b.start(timeout=5)
    b.all_reduce(1000, 0, False)[1]()
    b.synchronize()
    b.meet()
    if b.rank == 1:
        time.sleep(50)
        os._exit(0)
    print("INFO began %.1f" % time.monotonic(), flush=True)
    try:
        dist.all_reduce(b.data(1 << 20, 0))
        b.synchronize()
    except Exception as error:  # pylint: disable=broad-except
        print("ENDED by an exception: %s" % str(error).splitlines()[0], flush=True)
        os._exit(3)
    time.sleep(35)  # an abort lets the stream go on, and the watchdog ends the process then
    b.bad("the watchdog did not end the process")


def killed(b):
    """The other rank is killed: with blocking waits the operation raises before the group's timeout of 30 s."""
    b.start(timeout=30)
    b.short_round()
    b.meet()
    if b.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        own = b.data(1 << 20, 0)
        b.wait(dist.all_reduce(own, async_op=True))
        b.synchronize()
        b.bad("an all_reduce with a dead rank was done")
    except Exception as error:  # pylint: disable=broad-except
        seconds = time.monotonic() - begin
        b.info("exception after %.2f s: %s" % (seconds, " ".join(str(error).split())[:300]))
        b.check(seconds < 25, "the exception came after %.1f s, with the group's timeout" % seconds)
    print("DONE" if b.failures == 0 else "failed", flush=True)
    os._exit(1 if b.failures else 0)


# ---- groups ----


def groups(b):
    """new_group, of one rank as well, and split_group; traffic in all of them by turns."""
    b.start(bound=True)
    b.short_round()
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1], timeout=datetime.timedelta(seconds=30))]
    alone = [dist.new_group([rank]) for rank in range(2)]
    if hasattr(dist, "split_group") and b.cuda:
        pairs.append(dist.split_group(split_ranks=[[0, 1]]))
        single = dist.split_group(split_ranks=[[0], [1]])
        b.check(dist.get_world_size(single) == 1, "a group of one that was split off")
        own = b.data(100, 0)
        dist.all_reduce(own, group=single)
        b.synchronize()
        b.equal(own, b.data(100, 0), "all_reduce in a group of one that was split off")
    for turn in range(20):
        for group in pairs:
            own = b.data(100 + turn, turn)
            dist.all_reduce(own, group=group)
            b.equal(own, b.data(100 + turn, turn, 0) + b.data(100 + turn, turn, 1), "all_reduce in a group")
        own = b.data(10, turn)
        dist.all_reduce(own, group=alone[b.rank])
        b.equal(own, b.data(10, turn), "all_reduce in a group of one")
    b.short_round()


def nonblocking(b):
    """TORCH_NCCL_USE_COMM_NONBLOCKING=1, set by the parent: every operation, other groups, messages first."""
    b.start()
    work, check = b.send_recv(5000, 0, False)
    b.wait(work)
    b.synchronize()
    check()
    groups_of_two = [dist.new_group([0, 1]) for _ in range(2)]
    b.short_round()
    for group in groups_of_two:
        own = b.data(777, 3)
        dist.all_reduce(own, group=group)
        b.synchronize()
        b.equal(own, b.data(777, 3, 0) + b.data(777, 3, 1), "all_reduce in a group")


def coalescing(b):
    """Operations of one kind in a coalescing manager, asynchronous and not."""
    b.start(bound=True)
    for kind in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce"):
        for async_ops in (False, True):
            with dist._coalescing_manager(device=b.device, async_ops=async_ops) as manager:
                checks = [getattr(b, kind)(count, count, async_ops)[1] for count in (1, 1000, 300001)]
            if async_ops:
                manager.wait()
            b.synchronize()
            for check in checks:
                check()


# ---- memory ----


def pool_rounds(b, symmetric):
    b.start(bound=True)
    b.short_round()
    backend = dist.group.WORLD._get_backend(b.device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        own = b.data(5 << 20, 1)
        out = torch.full((10 << 20,), -1.0, device=b.device)
    if symmetric:
        backend.register_mem_pool(pool, symm=True)
    else:
        backend.register_mem_pool(pool)
    dist.all_gather_into_tensor(out, own)
    b.synchronize()
    b.equal(out, torch.cat([b.data(5 << 20, 1, r) for r in range(2)]), "all_gather in a pool")
    dist.all_reduce(own)
    b.synchronize()
    b.equal(own, b.data(5 << 20, 1, 0) + b.data(5 << 20, 1, 1), "all_reduce in a pool")
    with torch.cuda.use_mem_pool(pool):
        more = b.data(3 << 20, 2)
    work = dist.broadcast(more, 1, async_op=True)
    work.wait()
    b.synchronize()
    b.equal(more, b.data(3 << 20, 2, 1), "broadcast of memory that came to the pool later")
    backend.deregister_mem_pool(pool)
    dist.broadcast(more, 0)
    b.synchronize()
    del own, out, more, pool


def mempool(b):
    pool_rounds(b, False)


def mempool_symmetric(b):
    pool_rounds(b, True)


def loaded_nccl():
    """The one that PyTorch's own calls reach: the loader knows it by its name."""
    return nccl_ctypes.Nccl("libnccl.so.2")


def shared_id(b, nccl):
    if b.rank == 0:
        b.store.set("own id", nccl.unique_id().hex())
    return bytes.fromhex(b.store.get("own id").decode())


def window(b):
    """A symmetric window, registered through NCCL's interface: a handle, or success without one and a text that says so."""
    b.start()
    b.short_round()
    nccl = loaded_nccl()
    comm = nccl.init(2, shared_id(b, nccl), b.rank)
    memory, handle = ctypes.c_void_p(), ctypes.c_void_p()
    nccl.call("ncclMemAlloc", ctypes.byref(memory), 4 << 20)
    nccl.call("ncclCommWindowRegister", comm, memory, 4 << 20, ctypes.byref(handle), nccl_ctypes.WIN_COLL_SYMMETRIC)
    text = nccl.last_error(comm)
    if handle.value:
        b.info("there is a symmetric window")
        b.check(b.arguments.expect != "pickle", "libpickle has no symmetric windows, and gave one")
        nccl.call("ncclCommWindowDeregister", comm, handle)
    else:
        b.info("no window: %s" % text)
        b.check(
            b.arguments.expect != "pickle" or "symmetric" in text.lower(),
            "the text does not say that there are no symmetric windows: %s" % text,
        )
    own = b.data(1000, 1)
    stream = torch.cuda.current_stream().cuda_stream
    out = torch.empty_like(own)
    nccl.call("ncclAllReduce", own.data_ptr(), out.data_ptr(), 1000, nccl_ctypes.FLOAT32, nccl_ctypes.SUM, comm, stream)
    b.synchronize()
    b.equal(out, b.data(1000, 1, 0) + b.data(1000, 1, 1), "all-reduce of a communicator with a window")
    b.meet()
    nccl.call("ncclMemFree", memory)
    nccl.call("ncclCommDestroy", comm)


def both(b):
    """NCCL under PyTorch and libpickle by itself in one process, their operations by turns on two streams."""
    b.start()
    pickle = torch_ctypes.Pickle(os.path.abspath(b.arguments.pickle))
    comm = pickle.init(b.rank)
    streams = b.stream(), b.stream()

    def add(own, out):
        stream = torch_ctypes.Stream(2, streams[1].cuda_stream)
        pickle.call(
            "pk_allreduce", own.data_ptr(), out.data_ptr(), own.numel(), torch_ctypes.F32, torch_ctypes.SUM, comm, stream
        )

    for turn in range(30):
        count = (1000, 1 << 18, 4 << 20)[turn % 3]
        with b.within(streams[1]):
            own = b.data(count, turn)
            out = torch.full((count,), -1.0, device=b.device)
        if turn % 2:
            add(own, out)
        with b.within(streams[0]):
            work, check = b.all_reduce(count, turn + 1, False)
        if not turn % 2:
            add(own, out)
        b.wait(work)
        b.synchronize()
        check()
        b.equal(out, b.data(count, turn, 0) + b.data(count, turn, 1), "pk_allreduce beside NCCL")
    b.meet()
    pickle.call("pk_comm_destroy", comm)


def maps(b):
    """Which libnccl.so.2 is used, as it says itself, and which are mapped."""
    b.info("expects %s" % b.arguments.expect)
    b.start()
    b.short_round()
    b.info("mapped: %s" % " ".join(nccl_ctypes.mapped()))


# ---- models ----


def model(b):
    torch.manual_seed(7)
    layers = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)]
    return torch.nn.Sequential(*layers).to(b.device)


def batch(b, step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(32, 64, generator=generator).to(b.device), torch.randn(32, 8, generator=generator).to(b.device)


def train(b, trained, steps, half):
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for step in range(steps):
        inputs, targets = batch(b, step)
        if half:
            inputs, targets = inputs.chunk(2)[b.rank], targets.chunk(2)[b.rank]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(trained(inputs), targets).backward()
        optimizer.step()
    return trained


def ddp(b):
    """Five steps of DistributedDataParallel beside one process with the whole batch."""
    b.start()
    own = model(b)
    reference = train(b, copy.deepcopy(own), 5, False)
    wrapped = torch.nn.parallel.DistributedDataParallel(own, device_ids=[b.rank] if b.cuda else None, bucket_cap_mb=0.1)
    train(b, wrapped, 5, True)
    for one, other in zip(own.parameters(), reference.parameters()):
        b.check(
            torch.allclose(one, other, rtol=1e-4, atol=1e-5),
            "a parameter after 5 steps differs by %g" % (one - other).abs().max(),
        )


def fsdp(b):
    """Three steps of fully_shard beside one process with the whole batch."""
    from torch.distributed.fsdp import fully_shard

    b.start(bound=True)
    own = model(b)
    reference = train(b, copy.deepcopy(own), 3, False)
    for layer in own:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(own)
    train(b, own, 3, True)
    for one, other in zip(own.parameters(), reference.parameters()):
        whole = one.full_tensor()
        b.check(
            torch.allclose(whole, other, rtol=1e-4, atol=1e-5),
            "a parameter after 3 steps differs by %g" % (whole - other).abs().max(),
        )


def data_parallel(b):
    """One process, two GPUs: torch.cuda.nccl's functions, and DataParallel."""
    nccl = torch.cuda.nccl

    def fresh(count=1000):
        return [torch.arange(count, device="cuda:%d" % r, dtype=torch.float32) + 10 * r for r in range(2)]

    def same(tensors, expected, text):
        for tensor, values in zip(tensors, expected):
            b.check(torch.equal(tensor.cpu(), values.cpu()), text)

    for _ in range(3):
        first, second = (tensor.cpu() for tensor in fresh())
        own = fresh()
        nccl.all_reduce(own)
        same(own, [first + second] * 2, "torch.cuda.nccl.all_reduce")
        own = fresh()
        nccl.broadcast(own)  # always of the first, whatever its `root` says
        same(own, [first] * 2, "torch.cuda.nccl.broadcast")
        own = fresh()
        nccl.reduce(own, root=0)
        same(own[:1], [first + second], "torch.cuda.nccl.reduce")
        out = [torch.empty(2000, device="cuda:%d" % r) for r in range(2)]
        nccl.all_gather(fresh(), out)
        same(out, [torch.cat([first, second])] * 2, "torch.cuda.nccl.all_gather")
        out = [torch.empty(500, device="cuda:%d" % r) for r in range(2)]
        nccl.reduce_scatter(fresh(), out)
        same(out, (first + second).chunk(2), "torch.cuda.nccl.reduce_scatter")
    own = model(b)
    reference = train(b, copy.deepcopy(own), 3, False)
    train(b, torch.nn.DataParallel(own, device_ids=[0, 1]), 3, False)
    for one, other in zip(own.parameters(), reference.parameters()):
        b.check(
            torch.allclose(one, other, rtol=1e-4, atol=1e-5),
            "a parameter under DataParallel differs by %g" % (one - other).abs().max(),
        )
