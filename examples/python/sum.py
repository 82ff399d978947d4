# SPDX-License-Identifier: Apache-2.0
# A sum over all ranks: mpirun -n 4 python3 sum.py
import numpy
import libpickle

with libpickle.Communicator() as comm:
    mine, total = numpy.full(1000, comm.rank + 1.0), numpy.empty(1000)
    comm.Allreduce(mine, total)
    assert (total == comm.size * (comm.size + 1) / 2).all()
    if comm.rank == 0:
        print("the sum over %d ranks is %g" % (comm.size, total[0]))
