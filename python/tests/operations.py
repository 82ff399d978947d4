# SPDX-License-Identifier: Apache-2.0
"""Every operation of the Python package beside NumPy, on 3 ranks: kinds of buffers, types, in place, blocks of different lengths,
streams, groups."""
import array

import numpy as np

import libpickle as pk
from checks import equal, raises, run

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


def data(rank, count, dtype="float64"):
    return ((np.arange(count) * 7 + rank * 3) % 11 + 1).astype(dtype)


def everybodys(comm, count, dtype="float64"):
    return [data(rank, count, dtype) for rank in range(comm.size)]


def reductions(comm):
    results = {pk.SUM: np.sum, pk.PROD: np.prod, pk.MIN: np.min, pk.MAX: np.max}
    for dtype in TYPES:
        for op, reduce in results.items():
            wanted = reduce(np.stack(everybodys(comm, 5, dtype)), axis=0).astype(dtype)
            got = np.zeros(5, dtype)
            comm.Allreduce(data(comm.rank, 5, dtype), got, op)
            equal(got, wanted, "allreduce of " + dtype)
            got = data(comm.rank, 5, dtype)
            comm.Allreduce(pk.IN_PLACE, got, op)
            equal(got, wanted, "allreduce in place")
    got = np.zeros(4, "float32")
    comm.Allreduce(data(comm.rank, 4, "float32"), got, pk.AVG)
    assert np.allclose(got, np.mean(everybodys(comm, 4, "float32"), axis=0))
    for root in range(comm.size):
        at_root = comm.rank == root
        got = np.zeros(7) if at_root else None
        comm.Reduce(data(comm.rank, 7), got, root=root)
        here = data(comm.rank, 7)
        comm.Reduce(pk.IN_PLACE if at_root else here, here if at_root else None, root=root)
        if at_root:
            equal(got, sum(everybodys(comm, 7)), "reduce")
            equal(here, got, "reduce in place")
    got = np.zeros(2)
    comm.Reduce_scatter_block(data(comm.rank, 2 * comm.size), got)
    equal(got, sum(everybodys(comm, 2 * comm.size)).reshape(-1, 2)[comm.rank], "reduce_scatter")
    op = comm.Premultiplied_sum(np.full(1, comm.rank + 2.0))
    got = np.zeros(3)
    comm.Allreduce(data(comm.rank, 3), got, op)
    comm.Free_op(op)
    equal(got, sum((rank + 2) * part for rank, part in enumerate(everybodys(comm, 3))), "premultiplied sum")


def moves(comm):
    size, rank = comm.size, comm.rank
    whole = np.concatenate(everybodys(comm, 4, "int32"))
    got = np.zeros(4 * size, "int32")
    comm.Allgather(data(rank, 4, "int32"), got)
    equal(got, whole, "allgather")
    got = np.where(np.arange(4 * size) // 4 == rank, whole, 0).astype("int32")
    comm.Allgather(pk.IN_PLACE, got)
    equal(got, whole, "allgather in place")
    blocks = [data(peer, size)[rank] for peer in range(size)]
    got = np.zeros(size)
    comm.Alltoall(data(rank, size), got)
    equal(got, blocks, "alltoall")
    got = data(rank, size)
    comm.Alltoall(pk.IN_PLACE, got)
    equal(got, blocks, "alltoall in place")
    for root in range(size):
        at_root = rank == root
        got = data(root, 6) if at_root else np.zeros(6)
        comm.Bcast(got, root)
        equal(got, data(root, 6), "bcast")
        got = np.zeros(4 * size, "int32") if at_root else None
        comm.Gather(data(rank, 4, "int32"), got, root)
        if at_root:
            equal(got, whole, "gather")
        part = np.zeros(4, "int32")
        comm.Scatter(whole if at_root else None, part, root)
        equal(part, data(rank, 4, "int32"), "scatter")
    comm.Barrier()


def blocks_of_different_lengths(comm):
    size, rank = comm.size, comm.rank
    counts = [peer + 1 for peer in range(size)]
    parts = [data(peer, peer + 1) for peer in range(size)]
    whole = np.concatenate(parts)
    got = np.zeros(len(whole))
    comm.Allgatherv(parts[rank], [got, counts])
    equal(got, whole, "allgatherv")
    spread = np.zeros(4 * size)
    comm.Allgatherv(parts[rank], [spread, (counts, [4 * peer for peer in range(size)])])
    equal(np.concatenate([spread[4 * peer:4 * peer + peer + 1] for peer in range(size)]), whole, "allgatherv with offsets")
    got = np.zeros(len(whole))
    comm.Gatherv(parts[rank], [got, counts] if rank == 1 else None, root=1)
    equal(got, whole if rank == 1 else 0 * whole, "gatherv")
    mine = np.zeros(rank + 1)
    comm.Scatterv([whole, counts] if rank == 2 else None, mine, root=2)
    equal(mine, parts[rank], "scatterv")
    lengths = [(rank + peer) % 3 for peer in range(size)]
    got = np.zeros(sum(lengths))
    comm.Alltoallv([np.full(sum(lengths), float(rank)), lengths], [got, lengths])
    equal(got, np.repeat(np.arange(size, dtype=float), lengths), "alltoallv")
    raises(pk.ArgumentError, lambda: comm.Allgatherv(parts[rank], [got, [100] * size]), "does not lie in a buffer")


def messages(comm):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got = np.zeros(1000)
    comm.Sendrecv(data(comm.rank, 1000), after, got, before)
    equal(got, data(before, 1000), "sendrecv")
    got[:] = 0
    with pk.group():
        comm.Send(data(comm.rank, 1000), after) # nobody else holds this array
        comm.Recv(got, before)
    equal(got, data(before, 1000), "group")
    if comm.rank == 0:
        comm.Send(b"bytes", 1)
    elif comm.rank == 1:
        text = bytearray(5)
        comm.Recv(text, 0)
        equal(bytes(text), b"bytes", "bytes")


def host_streams(comm):
    with pk.Stream() as stream:
        got = [np.zeros(50000) for _ in range(3)]
        for one in got:
            comm.Allreduce(data(comm.rank, 50000), one, stream=stream) # the stream alone holds what is sent
        stream.Synchronize()
        assert stream.Query()
        for one in got:
            equal(one, sum(everybodys(comm, 50000)), "allreduce in a stream")
    stream.Free()


def kinds_of_buffers(comm):
    wanted = list(sum(everybodys(comm, 4, "int32")))
    got = array.array("i", [0] * 4)
    comm.Allreduce(memoryview(array.array("i", data(comm.rank, 4, "int32").tolist())), got)
    equal(list(got), wanted, "array and memoryview")
    fixed = data(comm.rank, 4, "int32")
    fixed.flags.writeable = False
    got = np.zeros((2, 2), "int32")
    comm.Allreduce(fixed, got)
    equal(got.ravel(), wanted, "read-only")
    raises(pk.ArgumentError, lambda: comm.Allreduce(got.ravel(), fixed), "read-only")
    raises(pk.ArgumentError, lambda: comm.Allreduce(np.zeros((4, 4))[:, 0], np.zeros(4)), "not contiguous")
    raises(pk.ArgumentError, lambda: comm.Allreduce(np.zeros(4, ">f8"), np.zeros(4)), "no type")
    raises(pk.ArgumentError, lambda: comm.Allreduce(np.zeros(4, complex), np.zeros(4, complex)), "no type")
    raises(pk.ArgumentError, lambda: comm.Allreduce(np.zeros(3), np.zeros(4)), "asks for 4 elements")
    raises(pk.ArgumentError, lambda: comm.Allreduce(np.zeros(4, "f"), np.zeros(4)), "f64", "f32")
    raises(TypeError, lambda: comm.Allreduce(5, np.zeros(4)))
    as_bf16 = (np.full(4, comm.rank + 1, "float32").view("uint32") >> 16).astype("uint16")
    got = np.zeros(4, "uint16")
    comm.Allreduce([as_bf16, "bf16"], [got, "bf16"])
    equal((got.astype("uint32") << 16).view("float32"), sum(range(1, comm.size + 1)), "bf16")
    kept = pk.Buffer(data(comm.rank, 4)), pk.Buffer(np.zeros(4))
    for _ in range(3):
        comm.Allreduce(*kept)
    equal(kept[1].owner, sum(everybodys(comm, 4)), "Buffer")
    for send, recv in ((data(comm.rank, 4), kept[1]), (kept[0], np.zeros(4))):
        comm.Allreduce(send, recv)
        equal(getattr(recv, "owner", recv), sum(everybodys(comm, 4)), "Buffer and array")
    raises(pk.ArgumentError, lambda: comm.Allreduce(kept[0], pk.Buffer(np.zeros(3))), "asks for 3 elements")
    raises(pk.ArgumentError, lambda: comm.Allreduce(kept[0], pk.Buffer(np.zeros(4, "f"))), "f32", "f64")
    raises(pk.ArgumentError, lambda: comm.Allreduce(kept[0], pk.Buffer(bytes(32))), "read-only")
    memory = comm.Alloc(1 << 20)
    shared = np.frombuffer(memory.array, "float64")
    shared[:] = comm.rank
    comm.Allreduce(pk.IN_PLACE, shared)
    equal(shared, sum(range(comm.size)), "memory of the library")
    memory.Free()
    empty = np.zeros(0)
    comm.Allreduce(empty, empty)


class OnlyDLPack:
    def __init__(self, owner):
        self.owner = owner

    def __dlpack__(self, stream=None):
        return self.owner.__dlpack__()

    def __dlpack_device__(self):
        return self.owner.__dlpack_device__()


class OnlyCuda:
    """Memory of the host under the name of CUDA's interface: the library looks for itself whose it is."""

    def __init__(self, owner):
        self.owner = owner

    @property
    def __cuda_array_interface__(self):
        return {**self.owner.__array_interface__, "version": 3}


def other_interfaces(comm):
    for kind in (OnlyDLPack, OnlyCuda):
        got = np.zeros((2, 3), "float32")
        comm.Allreduce(kind(data(comm.rank, 6, "float32")), kind(got))
        equal(got.ravel(), sum(everybodys(comm, 6, "float32")), kind.__name__)
        raises(pk.ArgumentError, lambda kind=kind: comm.Send(kind(np.zeros((3, 3)).T), 0), "not contiguous")


def communicators(comm):
    half = comm.Split(comm.rank % 2, -comm.rank)
    equal(half.size, 2 if comm.rank % 2 == 0 else 1, "split")
    got = np.zeros(1)
    half.Allreduce(np.ones(1), got)
    equal(got[0], half.size, "in a part")
    half.Free()
    half.Free()
    equal(comm.Split(-1), None, "in none")
    assert comm.Path(0)["transport"] and comm.Explain("allreduce", 4)["algorithm"] and comm.Stats()["operations"] > 0
    assert "timeout" in comm.Config().lower() and isinstance(comm.Pending(), str)
    comm.Check()
    alone = pk.Communicator.from_id(pk.unique_id(), 1, 0)
    alone.Free()
    raises(pk.ArgumentError, lambda: alone.Barrier(), "null")


if __name__ == "__main__":
    with pk.Communicator(device="host", timeout=60) as world:
        run([reductions, moves, blocks_of_different_lengths, messages, host_streams, kinds_of_buffers, other_interfaces,
             communicators], world)
        world.Barrier()
