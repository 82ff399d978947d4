# SPDX-License-Identifier: Apache-2.0
# What two ranks disagree about is an exception that names both: mpirun -n 2 python3 errors.py
import numpy
import libpickle

with libpickle.Communicator(timeout=30) as comm:
    buffer = numpy.zeros(100 + comm.rank)
    try:
        comm.Allreduce(libpickle.IN_PLACE, buffer)
        assert comm.size == 1
    except libpickle.MismatchError as error:
        print("rank %d, %s, peer %s: %s" % (error.rank, error.operation, error.peer, error))
