# SPDX-License-Identifier: Apache-2.0
# Each rank hands what it has to the next, while it computes: mpirun -n 4 python3 ring.py
import numpy
import libpickle

with libpickle.Communicator() as comm, libpickle.Stream() as stream:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    here, coming = numpy.full(100000, float(comm.rank)), numpy.empty(100000)
    total = numpy.zeros(100000)
    for step in range(comm.size):
        comm.Sendrecv(here, after, coming, before, stream) # returns at once
        total += here                                      # meanwhile; what is sent may be read
        stream.Synchronize()                               # now `coming` may be read, and `here` written
        here, coming = coming, here
    assert (total == sum(range(comm.size))).all()
    if comm.rank == 0:
        print("everybody has met %d ranks" % comm.size)
