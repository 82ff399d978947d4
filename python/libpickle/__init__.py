# SPDX-License-Identifier: Apache-2.0
"""libpickle from Python: moves arrays and tensors between the ranks of a job, without a copy.

    import numpy, libpickle
    with libpickle.Communicator() as comm:                  # all ranks that mpirun, srun or torchrun started
        mine, total = numpy.full(4, comm.rank + 1.0), numpy.empty(4)
        comm.Allreduce(mine, total)

Nothing is compiled: the package calls libpickle.so by ctypes."""
from ._library import AVG, DTYPES, MAX, MIN, PROD, SUM, VERSION as __version__, DType, Op
from .buffers import Buffer
from .communicator import HOST, IN_PLACE, Communicator, Memory, release_unique_id, unique_id
from .errors import (AbortedError, ArgumentError, AuthError, DeadlineError, Error, InternalError, MismatchError, NeedsSMError,
                     OutOfMemoryError, PeerError, RevokedError, SystemCallError, UnsupportedError)
from .inspection import topology
from .streams import CudaStream, Stream, Within, group

__all__ = [
    "AVG", "MAX", "MIN", "PROD", "SUM", "DTYPES", "DType", "Op", "Buffer", "HOST", "IN_PLACE", "Communicator", "Memory",
    "release_unique_id", "topology", "unique_id", "AbortedError", "ArgumentError", "AuthError", "DeadlineError", "Error",
    "InternalError", "MismatchError", "NeedsSMError", "OutOfMemoryError", "PeerError", "RevokedError", "SystemCallError",
    "UnsupportedError", "CudaStream", "Stream", "Within", "group", "__version__",
]
