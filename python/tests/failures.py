# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is an exception of its class, with rank, peer, operation and words; on 3 ranks."""
import os
import threading
import time

import numpy as np

import libpickle as pk
from checks import equal, raises, run

SLACK = 20.0 # seconds for what takes milliseconds


def made(timeout=60):
    """Every test has a communicator of its own, whose ids go round by one that stays whole."""
    id = np.frombuffer(pk.unique_id() if WORLD.rank == 0 else bytes(128), "uint8").copy()
    WORLD.Bcast(id, 0)
    return pk.Communicator.from_id(id.tobytes(), WORLD.size, WORLD.rank, device="host", timeout=timeout)


def mismatch():
    comm = made()
    count = 4 if comm.rank == 0 else 5
    error = raises(pk.MismatchError, lambda: comm.Allreduce(np.zeros(count), np.zeros(count)), "count %d" % count)
    equal((error.rank, error.operation), (comm.rank, "allreduce"), "mismatch")
    comm.Free()


def argument():
    comm = made()
    error = raises(ValueError, lambda: comm.Bcast(np.zeros(1), 7), "7")
    equal((error.code, error.rank), (2, comm.rank), "argument")
    raises(pk.ArgumentError, lambda: pk.Communicator.from_id(b"short", 1, 0), "128 bytes")
    raises(pk.ArgumentError, lambda: pk.Communicator(device="gpu"), "gpu")
    comm.Barrier() # nothing has happened to it
    comm.Free()


def deadline():
    comm = made(timeout=0.5)
    begun = time.monotonic()
    if comm.rank != 2:
        error = raises(TimeoutError, comm.Barrier, "2")
        assert isinstance(error, pk.DeadlineError), error
        assert 0.4 < time.monotonic() - begun < SLACK
        equal((error.operation, error.peer), ("barrier", 2), "deadline")
    WORLD.Barrier()
    comm.Free() if comm.rank != 2 else comm.__exit__(Exception)


def within():
    comm = made()
    WORLD.Barrier()
    if comm.rank == 0:
        error = raises(pk.DeadlineError, lambda: comm.Recv(np.zeros(1), 1, pk.Within(None, 0.3)), "1")
        equal(error.peer, 1, "who is missing")
    WORLD.Barrier()
    comm.__exit__(Exception)


def aborted():
    comm = made()
    if comm.rank == 0:
        stream = pk.Stream() # a rank with nothing unfinished would only leave
        comm.Recv(np.zeros(1), 2, stream)
        thread = threading.Timer(0.2, comm.Abort)
        thread.start()
    if comm.rank < 2:
        error = raises(pk.AbortedError, lambda: comm.Recv(np.zeros(1), 2))
        assert error.rank == comm.rank, error
    WORLD.Barrier()
    comm.Free() if comm.rank < 2 else comm.__exit__(Exception)


def left_by_an_exception():
    try:
        with made() as comm:
            if comm.rank == 1:
                raise KeyError("what the program has raised")
            error = raises(pk.AbortedError, lambda: comm.Recv(np.zeros(1), 1))
            equal(error.peer, 1, "who left")
    except KeyError:
        assert WORLD.rank == 1


def revoked():
    comm = made()
    comm.Barrier()
    WORLD.Barrier() # all have ended that one
    if comm.rank == 1:
        comm.Revoke()
    else:
        raises(pk.RevokedError, lambda: comm.Recv(np.zeros(1), 1))
    equal(comm.Agree(6 if comm.rank == 1 else 3), (2, [], 1), "agreement")
    with comm.Shrink(exclude=[0]) if comm.rank > 0 else made_alone() as smaller:
        total = np.zeros(1)
        smaller.Allreduce(np.ones(1), total)
        equal((smaller.size, total[0]), (2, 2) if comm.rank > 0 else (1, 1), "without rank 0")
    WORLD.Barrier()
    comm.__exit__(Exception)


def made_alone():
    return pk.Communicator.from_id(pk.unique_id(), 1, 0, device="host")


def killed():
    comm = made()
    WORLD.Barrier()
    if comm.rank == 1:
        os._exit(0)
    error = raises(pk.PeerError, lambda: comm.Recv(np.zeros(1), 1), "1")
    equal((error.peer, error.rank, error.operation), (1, comm.rank, "recv"), "killed")
    equal(comm.Agree(1)[1], [1], "who is dead")
    with comm.Shrink(revoke=True) as smaller:
        equal((smaller.size, smaller.rank), (2, comm.rank // 2), "the others")
        smaller.Barrier()
    with comm.Shrink(keep_ranks=True) as kept:
        equal((kept.size, kept.rank), (3, comm.rank), "with the numbers that they had")
        equal(raises(pk.PeerError, kept.Barrier, "nobody is rank 1").peer, 1, "the hole")
    with comm.Shrink(replace=True) as replaced:
        equal((replaced.size, replaced.rank), (2, 0 if comm.rank == 0 else 1), "with the last one in the place of the dead")
    comm.__exit__(Exception)


def grown():
    first = made_alone() if WORLD.rank == 0 else None
    id = np.frombuffer(first.Id() if first is not None else bytes(128), "uint8").copy()
    WORLD.Bcast(id, 0)
    if first is not None:
        comm = first.Grow(WORLD.size - 1, id.tobytes(), timeout=60)
    else:
        comm = pk.Communicator.join(id.tobytes(), device="host", timeout=60)
    with comm:
        total = np.zeros(1)
        comm.Allreduce(np.ones(1), total)
        equal((comm.size, total[0], comm.rank == 0), (WORLD.size, WORLD.size, WORLD.rank == 0), "one that has grown")
    raises(pk.ArgumentError, lambda: pk.Communicator.join(pk.unique_id()))
    if first is not None:
        first.Free()


if __name__ == "__main__":
    WORLD = pk.Communicator(device="host", timeout=60)
    run([mismatch, argument, deadline, within, aborted, left_by_an_exception, revoked, grown, killed])
    WORLD.__exit__(Exception)
