# SPDX-License-Identifier: Apache-2.0
"""Where an operation ends: in the call itself (no stream), in a host stream, or in a CUDA stream. And groups."""
import ctypes
import threading
from typing import Any, List, Optional

from ._library import CONSTANTS, lib, manual, structures
from .errors import check, refuse

PkStream = structures["pk_stream"]
BLOCKING = PkStream(CONSTANTS["PK_STREAM_KIND_BLOCKING"], None)


class Stream:
    """A host stream: its operations run one after another, and each call returns at once. Used by one thread at a time.

    It keeps the buffers of its operations until Synchronize or Query says that these have ended."""

    @manual("pk_stream_create")
    def __init__(self) -> None:
        self.value = PkStream()
        self._kept: List[Any] = []
        check(lib.pk_stream_create(ctypes.byref(self.value)))

    def keep(self, *objects: Any) -> None:
        self._kept.append(objects)

    @manual("pk_stream_synchronize")
    def Synchronize(self) -> None:
        """Wait until every operation has ended; raises the first error of one."""
        kept, self._kept = self._kept, []
        check(lib.pk_stream_synchronize(self.value))
        kept.clear()

    @manual("pk_stream_query")
    def Query(self) -> bool:
        """Has every operation ended? Raises the first error of one."""
        result = lib.pk_stream_query(self.value)
        if result == CONSTANTS["PK_IN_PROGRESS"]:
            return False
        self._kept.clear()
        check(result)
        return True

    @manual("pk_stream_destroy")
    def Free(self) -> None:
        """Wait, and give the stream back. A second time it does nothing."""
        if self.value.handle:
            value, self.value = self.value, PkStream(CONSTANTS["PK_STREAM_KIND_HOST"], None)
            result = lib.pk_stream_destroy(value)
            self._kept.clear()
            check(result)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.Free()
        else: # the error that is on its way is the one to see
            lib.pk_stream_destroy(self.value)
            self.value = PkStream(CONSTANTS["PK_STREAM_KIND_HOST"], None)

    def __del__(self) -> None:
        if getattr(self, "value", None) is not None and self.value.handle and lib is not None:
            lib.pk_stream_destroy(self.value)


class CudaStream:
    """A CUDA stream of the communicator's device: an address, or a stream of torch, CuPy or Numba. Buffers must stay allocated
    until the stream has come past the operation, as with any other work in it."""

    def __init__(self, stream: Any) -> None:
        for name in ("cuda_stream", "ptr", "handle"):
            if hasattr(stream, name):
                stream = getattr(stream, name)
        self.owner = stream
        self.value = PkStream(CONSTANTS["PK_STREAM_KIND_CUDA"], getattr(stream, "value", stream) or None)

    def keep(self, *objects: Any) -> None:
        pass


class Within:
    """A stream (None: the call waits) with a deadline for each call that takes it, in seconds, instead of the communicator's."""

    def __init__(self, stream: Any, seconds: float) -> None:
        inner = value_of(stream)
        self.stream = stream
        self.value = PkStream(inner.kind | max(1, round(seconds * 1000)) << CONSTANTS["PK_STREAM_KIND_BITS"], inner.handle)

    def keep(self, *objects: Any) -> None:
        if self.stream is not None:
            self.stream.keep(*objects)


class Grouping:
    """How many groups are open in the process, and what those of each thread hold."""

    def __init__(self) -> None:
        self.open = 0
        self.lock = threading.Lock()
        self.mine = threading.local()

    def change(self, by: int) -> None:
        with self.lock:
            self.open += by
        self.mine.depth = getattr(self.mine, "depth", 0) + by
        if self.mine.depth == 0:
            self.mine.kept = []

    def keep(self, *objects: Any) -> None:
        if getattr(self.mine, "depth", 0) > 0:
            self.mine.kept.append(objects)


grouping = Grouping()


class group:
    """`with group():` the operations inside start together when it ends, so that none waits for another. It raises the first
    error of one of them."""

    @manual("pk_group_start", "pk_group_end")
    def __enter__(self) -> "group":
        lib.pk_group_start()
        grouping.change(1)
        if grouping.mine.depth == 1:
            grouping.mine.kept = []
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        result = lib.pk_group_end()
        grouping.change(-1)
        if kind is None:
            check(result)


def finish_in(stream: Optional[Any], *objects: Any) -> None:
    """The buffers of a call that may go on after it."""
    if stream is not None:
        stream.keep(*objects)
    if grouping.open:
        grouping.keep(*objects)


def value_of(stream: Any) -> Any:
    if stream is None:
        return BLOCKING
    try:
        return stream.value
    except AttributeError:
        raise refuse("stream is %r: libpickle's Stream, CudaStream or None is wanted" % type(stream).__name__) from None
