# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed over the backend "pickle", on 3 ranks, and a network whose losses must be those of
Gloo.

usage: torch_operations.py [CELL...]      and then these cells of torch_faults.py, so that torch is imported once
       torch_operations.py --cuda         tensors of GPUs; 77: there is none"""
import datetime
import gc
import sys
import time
import warnings
import weakref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import libpickle
import libpickle.torch
from checks import equal, forked, raises, run, statuses
from torch_store import Store

RANK, SIZE = 0, 3
NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
CUDA = False # then tensors are on the GPU unless a test says otherwise: see body
MINUTE = datetime.timedelta(seconds=60)


def data(rank, *shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + rank * 3) % 11 + 1).to(dtype).reshape(shape)


def everybodys(*shape, dtype=torch.float32):
    return torch.stack([data(rank, *shape, dtype=dtype) for rank in range(SIZE)])


def same(have, wanted, what):
    if not torch.equal(have, wanted):
        raise AssertionError("%s: %s instead of %s" % (what, have, wanted))


def reductions():
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16):
        every = everybodys(2, 3, dtype=dtype)
        for op, wanted in ((dist.ReduceOp.SUM, every.sum(0).to(dtype)), (dist.ReduceOp.MAX, every.amax(0)),
                           (dist.ReduceOp.MIN, every.amin(0)), (dist.ReduceOp.PRODUCT, every.double().prod(0).to(dtype))):
            got = data(RANK, 2, 3, dtype=dtype)
            dist.all_reduce(got, op)
            same(got, wanted, "all_reduce of %s" % dtype)
    got = data(RANK, 4, 4).t() # not contiguous
    dist.all_reduce(got)
    same(got, everybodys(4, 4).sum(0).t(), "all_reduce of a transposed tensor")
    got = data(RANK, 5)
    dist.reduce(got, 1)
    if RANK == 1:
        same(got, everybodys(5).sum(0), "reduce")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced([])
    both = [data(RANK, 2), data(RANK, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore") # it is deprecated
        dist.all_reduce_coalesced(both)
    same(both[1], everybodys(3).sum(0), "all_reduce_coalesced")
    out = torch.zeros(RANK + 1)
    dist.reduce_scatter(out, [data(RANK, rank + 1) for rank in range(SIZE)])
    same(out, everybodys(RANK + 1).sum(0), "reduce_scatter of blocks of different lengths")
    out = torch.zeros(2)
    dist.reduce_scatter(out, list(data(RANK, SIZE, 2)))
    same(out, everybodys(SIZE, 2).sum(0)[RANK], "reduce_scatter")
    out.zero_()
    dist.reduce_scatter_tensor(out, data(RANK, SIZE * 2))
    same(out, everybodys(SIZE, 2).sum(0)[RANK], "reduce_scatter_tensor")
    bits = torch.zeros(2, dtype=torch.int32)
    raises(libpickle.UnsupportedError, lambda: dist.all_reduce(bits, dist.ReduceOp.BAND), "reduction")
    for op, wanted in ((dist.ReduceOp.SUM, any), (dist.ReduceOp.MAX, any), (dist.ReduceOp.PRODUCT, all), (dist.ReduceOp.MIN, all)):
        got = torch.tensor([True, False, RANK == 1])
        dist.all_reduce(got, op)
        same(got, torch.tensor([True, False, wanted(rank == 1 for rank in range(SIZE))]), "all_reduce of bool, %s" % op)
    raises(libpickle.UnsupportedError, lambda: dist.all_reduce(torch.zeros(2, dtype=torch.bool), dist.ReduceOp.AVG), "torch.bool")
    assert issubclass(libpickle.Error, RuntimeError) # which programs of torch expect


def in_the_profiler():
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(data(RANK, 5))
        dist.barrier()
    names = {event.name for event in profile.function_events}
    assert {"pickle:all_reduce", "pickle:barrier"} <= names, names


def sparse():
    if CUDA:
        raises(libpickle.UnsupportedError, lambda: dist.all_reduce(torch.zeros(7).to_sparse()), "of host memory")
        return

    def mine(rank):
        return torch.sparse_coo_tensor([[0, 2 + rank, 2 + rank]], torch.full((3, 2), 1.0 + rank), (8, 2))
    got = mine(RANK)
    dist.all_reduce(got)
    same(got.to_dense(), sum(mine(rank).to_dense() for rank in range(SIZE)), "all_reduce of sparse tensors")
    none = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2), (8, 2))
    got = none.clone() if RANK else mine(0)
    dist.all_reduce(got)
    same(got.to_dense(), mine(0).to_dense(), "all_reduce where a rank has no elements")
    raises(libpickle.ArgumentError, lambda: dist.all_reduce(torch.zeros(7 + RANK).to_sparse()), "differ")
    raises(libpickle.UnsupportedError, lambda: dist.all_reduce(mine(0), dist.ReduceOp.MAX), "sums alone")


def moves():
    every = everybodys(2, 2)
    got = data(RANK, 2, 2)
    dist.broadcast(got, 2)
    same(got, every[2], "broadcast")
    for dtype in (torch.float32, torch.bool, torch.int16, torch.complex64):
        mine = data(RANK, 2, 2).to(dtype)
        parts = [torch.zeros(2, 2, dtype=dtype) for _ in range(SIZE)]
        dist.all_gather(parts, mine)
        same(torch.stack(parts), every.to(dtype), "all_gather")
    parts = [torch.zeros(rank + 1) for rank in range(SIZE)]
    dist.all_gather(parts, data(RANK, RANK + 1))
    same(torch.cat(parts), torch.cat([data(rank, rank + 1) for rank in range(SIZE)]), "all_gather of different lengths")
    row = torch.zeros(SIZE * 2, 2)
    dist.all_gather(list(row.chunk(SIZE)), data(RANK, 2, 2))
    same(row, every.reshape(-1, 2), "all_gather into one tensor's parts")
    dist.all_gather_into_tensor(row.zero_(), data(RANK, 2, 2))
    same(row, every.reshape(-1, 2), "all_gather_into_tensor")
    if NEW:
        with dist._coalescing_manager(): # pylint: disable=protected-access
            dist.all_gather_into_tensor(row.zero_(), data(RANK, 2, 2))
        same(row, every.reshape(-1, 2), "all_gather_into_tensor in a batch")
        part = torch.zeros(2)
        with dist._coalescing_manager(): # pylint: disable=protected-access
            dist.reduce_scatter_tensor(part, data(RANK, SIZE * 2))
        same(part, everybodys(SIZE, 2).sum(0)[RANK], "reduce_scatter_tensor in a batch")
    parts = [torch.zeros(2, 2) for _ in range(SIZE)]
    dist.gather(data(RANK, 2, 2), parts if RANK == 1 else None, dst=1)
    if RANK == 1:
        same(torch.stack(parts), every, "gather")
    got = torch.zeros(2, 2)
    dist.scatter(got, [data(rank, 2, 2) for rank in range(SIZE)] if RANK == 0 else None)
    same(got, data(RANK, 2, 2), "scatter")
    got = torch.zeros(SIZE, 2)
    dist.all_to_all_single(got, data(RANK, SIZE, 2))
    same(got, everybodys(SIZE, 2)[:, RANK], "all_to_all_single")
    splits = [rank + 1 for rank in range(SIZE)]
    got = torch.zeros(SIZE * (RANK + 1), 2)
    dist.all_to_all_single(got, torch.full((sum(splits), 2), float(RANK)), [RANK + 1] * SIZE, splits)
    same(got[:, 0], torch.arange(SIZE, dtype=torch.float32).repeat_interleave(RANK + 1), "all_to_all_single of rows")
    outs = [torch.zeros(RANK + 1) for _ in range(SIZE)]
    dist.all_to_all(outs, [torch.full((rank + 1,), float(RANK)) for rank in range(SIZE)])
    same(torch.cat(outs), torch.arange(SIZE, dtype=torch.float32).repeat_interleave(RANK + 1), "all_to_all")
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    equal(objects, [{"rank": rank} for rank in range(SIZE)], "all_gather_object")
    dist.barrier()


def messages():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.zeros(1000)
    sent = dist.isend(data(RANK, 1000), after)
    dist.recv(got, before)
    sent.wait()
    same(got, data(before, 1000), "isend and recv")
    got.zero_()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data(RANK, 1000), after), dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    same(got, data(before, 1000), "batch_isend_irecv")
    big, got = torch.full((1 << 20,), float(RANK)), torch.zeros(1 << 20)
    begun = [dist.irecv(got, before), dist.isend(big, after)] # receives first: neither may wait behind the other
    for work in begun:
        work.wait()
    same(got, torch.full((1 << 20,), float(before)), "irecv and isend of a long message")
    both = [torch.zeros(1 << 20) for _ in range(2)]
    begun = [dist.isend(big, after), dist.isend(big, before), dist.irecv(both[0], after), dist.irecv(both[1], before)]
    for work in begun:
        work.wait()
    for got, rank in zip(both, (after, before)):
        same(got, torch.full((1 << 20,), float(rank)), "long messages with both neighbours")
    got = torch.zeros(1000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, RANK), dist.P2POp(dist.isend, data(RANK, 1000), RANK)]):
        work.wait()
    same(got, data(RANK, 1000), "a batch of messages to oneself")
    raises(libpickle.UnsupportedError, lambda: dist.send(got, after, tag=3), "tags")
    raises(libpickle.UnsupportedError, lambda: dist.recv(got), "rank")


def works():
    """Several at a time, waited for in any order; futures; a wait with a limit of its own."""
    tensors = [data(RANK, 10000) + number for number in range(8)]
    begun = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number in (5, 0, 7, 1, 2, 3, 4, 6):
        assert begun[number].wait()
        same(tensors[number], everybodys(10000).sum(0) + number * SIZE, "work %d" % number)
    assert all(work.is_completed() and work.is_success() for work in begun)
    tensor = data(RANK, 5)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    same(future.then(lambda f: f.value()[0] * 2).wait(), 2 * everybodys(5).sum(0), "future")
    if RANK == 0:
        work = dist.irecv(torch.zeros(1), 1)
        assert not work.is_completed() and not work.is_success()
        begin = time.monotonic()
        raises(TimeoutError, lambda: work.wait(datetime.timedelta(seconds=0.2)), "0.2 s")
        assert time.monotonic() - begin < 10
        dist.send(torch.zeros(1), 1)
        work.wait()
    elif RANK == 1:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.zeros(1), 0)


def dropped():
    """Tensors that nobody holds but the operation, whose memory something else would be given."""
    for number in range(10):
        out = torch.zeros(10000)
        work = dist.reduce_scatter(out, [torch.full((10000,), float(number + rank)) for rank in range(SIZE)], async_op=True)
        others = [torch.full((10000,), -1.0) for _ in range(2 * SIZE)]
        work.wait()
        same(out, torch.full((10000,), float(SIZE * (number + RANK))), "a sum of dropped tensors")
        del others


def forgotten():
    """What nobody waits for is done anyway, and its memory is kept as long as that takes."""
    for _ in range(200):
        dist.all_reduce(torch.ones(20000), async_op=True)
    last = torch.ones(3)
    dist.all_reduce(last)
    same(last, torch.full((3,), float(SIZE)), "behind the forgotten")


def part_of_the_ranks():
    group = dist.new_group([0, 2], timeout=MINUTE)
    if RANK != 1:
        got = torch.ones(3)
        dist.all_reduce(got, group=group)
        same(got, torch.full((3,), 2.0), "in a part of the ranks")
        dist.destroy_process_group(group)
    dist.barrier()


def both_kinds():
    """Host tensors and GPU tensors in one group, by turns and in one batch."""
    if not CUDA:
        return
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for _ in range(3):
        for device in ("cpu", "cuda"):
            got = data(RANK, 1000).to(device)
            dist.all_reduce(got)
            same(got, everybodys(1000).sum(0).to(device), "all_reduce of %s tensors by turns" % device)
    devices = ("cuda", "cpu")
    sent, got = ([data(RANK, 500).to(device) for device in devices] for _ in range(2))
    batch = [dist.P2POp(dist.isend, tensor, after) for tensor in sent] + [dist.P2POp(dist.irecv, tensor, before) for tensor in got]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    for tensor in got:
        same(tensor, data(before, 500).to(tensor.device), "a batch of both kinds")
    raises(libpickle.ArgumentError, lambda: dist.all_gather_into_tensor(torch.zeros(6), torch.zeros(2, device="cpu")), "is on")


def in_order():
    """What the current stream did before a call is in what is sent, and what it does after wait() sees what arrived, though the CPU waits for neither."""
    if not CUDA:
        return
    for number in range(20):
        got = torch.zeros(1 << 20)
        torch.cuda._sleep(1 << 22) # some milliseconds # pylint: disable=protected-access
        got += RANK + number
        work = dist.all_reduce(got, async_op=True)
        work.wait()
        copied = got * 2
        got.zero_()
        same(copied, torch.full((1 << 20,), 2.0 * sum(rank + number for rank in range(SIZE))), "a sum in the stream's order")


def captured():
    """A sum in a CUDA graph, which is launched with other data."""
    if not CUDA:
        return
    got, graph = torch.ones(5000), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(got)
        got += 1
    for number in range(3):
        got.fill_(RANK + number)
        graph.replay()
        same(got, torch.full((5000,), 1.0 + sum(rank + number for rank in range(SIZE))), "a graph's sum")


def mesh():
    """What newer torch builds on: meshes of groups with names, collectives that go by the name, sharded parameters."""
    if not NEW:
        return
    from torch.distributed import _functional_collectives as functional, device_mesh # pylint: disable=import-outside-toplevel
    from torch.distributed.fsdp import fully_shard # pylint: disable=import-outside-toplevel
    row = device_mesh.init_device_mesh("cuda" if CUDA else "cpu", (SIZE,))
    got = functional.all_reduce(data(RANK, 4), "sum", row)
    same(got, everybodys(4).sum(0), "a functional all_reduce")
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
    batch = data(RANK, 5, 6)
    wanted = net(batch)
    fully_shard(net, mesh=row)
    same(net(batch), wanted, "a net of sharded parameters")
    net(batch).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def losses(group):
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                              torch.nn.Linear(64, 1))
    net = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.01) # several buckets
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(RANK)
    seen = []
    for _ in range(8):
        batch = torch.randn(16, 20)
        loss = (net(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def data_parallel():
    ours, theirs = losses(None), losses(dist.new_group(backend="gloo", timeout=MINUTE))
    assert all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(ours, theirs)), (ours, theirs)
    assert ours[-1] < ours[0] # it learns


def joined():
    """Ranks with more batches than others: an operation that torch's C++ asks for its result, though Python has dropped it. In each
    batch there is one more that nobody waits for, and there are more of those than the group keeps."""
    net, least = DistributedDataParallel(torch.nn.Linear(5, 5, bias=False)), 80
    for by_all in (False, True):
        with net.join(divide_by_initial_world_size=by_all):
            for batch in range(least + 2 * (RANK > 0)):
                time.sleep(0.001 * RANK) # who comes late finds it done
                net(torch.ones(1, 5) * SIZE).sum().backward()
                there = SIZE if batch < least else SIZE - 1
                wanted = SIZE * there / (SIZE if by_all else there)
                same(next(net.parameters()).grad, torch.full((5, 5), wanted), "gradients of batch %d" % batch)
                net.zero_grad()


def kept():
    """What the group keeps of operations that are over is little, and nothing when it is gone."""
    class Big(torch.Tensor): # one that can be watched
        pass
    whole = torch.zeros(100000).as_subclass(Big)
    dist.all_reduce(whole[0])
    watched = weakref.ref(whole)
    del whole
    gc.collect()
    assert watched() is None, "a part of it was reduced"
    net = torch.nn.Linear(3, 1, device="cuda" if CUDA else "cpu")
    watched = weakref.ref(net.weight)
    loss = net(torch.ones(3)).sum()
    dist.all_reduce(loss)
    del loss, net
    gc.collect()
    assert watched() is None, "the graph of what was reduced"
    many = [torch.zeros(1000).as_subclass(Big) for _ in range(10)]
    watched = weakref.ref(many[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(many)
    del many
    gc.collect()
    assert watched() is None, "many short ones"
    group = dist.new_group(timeout=MINUTE)
    for _ in range(3):
        dist.all_reduce(torch.zeros(1), group=group)
        dist.all_reduce(torch.zeros(1), group=group, async_op=True)
    shared = group.shared
    assert shared.held and shared.recent
    dist.destroy_process_group(group)
    shared.end(abort=False)
    assert not shared.held and not shared.recent


def without_grad():
    """Parameters are written though who waits for it records gradients."""
    weight = torch.nn.Parameter(torch.full((3, 4), float(RANK), device="cuda" if CUDA else "cpu"))
    with torch.no_grad():
        work = dist.broadcast(weight.t(), 1, async_op=True)
        gathered = [torch.nn.Parameter(torch.zeros(3, device=weight.device)) for _ in range(SIZE)]
        works = [work, dist.all_gather(gathered, data(RANK, 3), async_op=True)]
    for work in works:
        work.wait()
    same(weight.detach(), torch.ones(3, 4), "broadcast into a part of a parameter")
    same(torch.stack(gathered).detach(), everybodys(3), "all_gather into parameters")


def body(rank):
    global RANK
    RANK = rank
    torch.set_num_threads(1)
    if CUDA:
        torch.cuda.set_device(RANK % torch.cuda.device_count())
        torch.set_default_device("cuda")
    dist.init_process_group("pickle", store=STORE.client(), rank=RANK, world_size=SIZE, timeout=MINUTE)
    if CUDA:
        dist.barrier(device_ids=[torch.cuda.current_device()])
        if RANK < 2: # not everybody has to come any more
            (dist.recv if RANK else dist.send)(torch.zeros(3), 1 - RANK)
    equal(dist.get_backend(), "pickle", "backend")
    run([reductions, in_the_profiler, sparse, moves, messages, works, dropped, forgotten, part_of_the_ranks, both_kinds, in_order,
         captured, mesh, data_parallel, joined, kept, without_grad])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["--cuda"]:
        CUDA = bool(torch.backends.cuda.is_built()) and torch.cuda.device_count() > 0
        if not CUDA:
            sys.exit(77)
        sys.argv[1:] = []
    STORE = Store(MINUTE.total_seconds())
    CODE = max(map(abs, statuses(forked(SIZE, body))))
    if sys.argv[1:]:
        import torch_faults
        CODE = CODE or torch_faults.main(sys.argv[1:])
    sys.exit(CODE)
