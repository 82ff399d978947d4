# SPDX-License-Identifier: Apache-2.0
"""Operations under way of the backend "pickle": of host tensors in host streams, of GPU tensors in a CUDA stream, several as one;
and what a group and its operations share."""
import atexit
import collections
import ctypes
import datetime
import functools
import queue
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch.distributed.distributed_c10d import Work

from ._library import CONSTANTS, lib
from . import streams
from .communicator import Communicator
from .errors import DeadlineError, Error, UnsupportedError, check, refuse
from .streams import CudaStream, Stream

IN_PROGRESS = CONSTANTS["PK_IN_PROGRESS"]
HELD = 64 # from this number of operations on the oldest that have ended are let go, though nobody has waited for them
RECENT = 16 # how many that somebody has waited for are kept, if they keep no more memory than this:
SHORT_BYTES, SHORT_TENSORS = 4096, 16
Finish = Optional[Callable[[], None]]
Calls = Sequence[Callable[[Any], int]] # each a function of the stream
Lane = Optional[Tuple[str, int]] # of a message: "send" or "recv", and the other rank
Tensor = torch.Tensor


try:
    from torch._compile import _disable_dynamo
except ImportError: # before torch 2.1
    _disable_dynamo = None


def untraced(function: Any) -> Any:
    """torch.compile shall not look into it: it calls a library. What that takes is imported by who compiles, and by DDP, not here."""
    if _disable_dynamo is None:
        return function
    apart = _disable_dynamo(function)

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        return (apart if "torch._dynamo" in sys.modules else function)(*args, **named)
    return called


def unsupported(text: str) -> Error:
    error = UnsupportedError("backend pickle: " + text)
    error.code, error.text = CONSTANTS["PK_ERR_UNSUPPORTED"], str(error)
    return error


def call_all(calls: Calls, stream: Any) -> None:
    """Start calls as one operation."""
    if len(calls) == 1:
        check(calls[0](stream))
        return
    with streams.group():
        for call in calls:
            check(call(stream))


def storage_of(tensor: Tensor) -> Any:
    """The allocation of which the tensor is a part."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def completed_within(work: Work, name: str, limit: float) -> None:
    """Wait for at most this number of seconds, and raise if that was not enough."""
    begun, pause = time.monotonic(), 20e-6
    while not work.is_completed():
        if time.monotonic() - begun > limit:
            raise DeadlineError("%s has not ended within the %g s that were given to wait()" % (name, limit))
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)


class Operation(Work):
    """What operations of host tensors and of GPU tensors have in common."""

    def __init__(self, group: "Shared", name: str, outputs: List[Tensor], finish: Finish) -> None:
        super().__init__()
        self.group, self.name, self.outputs, self.finish = group, name, outputs, finish
        self.error: Optional[Exception] = None

    def may_be_kept(self) -> bool:
        """Whoever keeps it keeps little: no long memory, of which it may be a part, and no graph of autograd."""
        return (len(self.outputs) <= SHORT_TENSORS and
                all(tensor.layout == torch.strided and not tensor.requires_grad for tensor in self.outputs) and
                sum(storage_of(tensor).nbytes() for tensor in self.outputs) <= SHORT_BYTES)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> List[Tensor]:
        return self.outputs

    def source_rank(self) -> int:
        raise unsupported("a receive names its rank")


# ---- host tensors ----

class HostStreams:
    """Host streams of a group, each for one operation at a time."""

    def __init__(self) -> None:
        self.free: List[Stream] = []

    def take(self) -> Stream:
        try:
            return self.free.pop()
        except IndexError:
            return Stream()

    def give_back(self, stream: Stream) -> None:
        self.free.append(stream)


class PickleWork(Operation):
    """An operation of host tensors. It holds them until it has ended."""

    def __init__(self, group: "Shared", name: str, stream: Stream, outputs: List[Tensor], kept: Any, finish: Finish) -> None:
        super().__init__(group, name, outputs, finish)
        self.stream, self.kept = stream, kept
        self.lock = threading.Lock()
        self.future: Optional[torch.futures.Future] = None

    def _end(self, call: Callable[..., int]) -> bool:
        """Has it ended? `call` waits for the stream, or asks it."""
        if call is lib.pk_stream_query and self.lock.locked(): # somebody waits for it
            return self.stream is None
        with self.lock:
            if self.stream is None:
                return True
            result = call(self.stream.value)
            if result == IN_PROGRESS:
                return False
            try:
                check(result)
                if self.finish is not None:
                    with torch.no_grad(): # whoever asks whether it has ended
                        self.finish()
            except DeadlineError as error:
                error.text = "%s (the group's timeout is %g s)" % (error, self.group.limit)
                error.args = (error.text,)
                self.error = error
            except Exception as error: # pylint: disable=broad-except
                self.error = error
            self.group.host_streams.give_back(self.stream)
            self.stream = self.kept = self.finish = None
            return True

    def is_completed(self) -> bool:
        return self._end(lib.pk_stream_query)

    may_be_forgotten = is_completed

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self) -> Optional[Exception]:
        return self.error if self.is_completed() else None

    @untraced
    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        limit = timeout.total_seconds() if timeout else 0.0
        if limit > 0:
            completed_within(self, self.name, limit)
        else:
            self._end(lib.pk_stream_synchronize)
        self.group.let_go(self)
        if self.error is not None:
            raise self.error
        return True

    @untraced
    def get_future(self) -> torch.futures.Future:
        if self.future is None:
            self.group.let_go(self) # where it is not done the waiter holds it
            begun: torch.futures.Future = torch.futures.Future()
            self.future = begun.then(lambda _: self._outcome()) # an exception in here is the future's, in C++ too
            if self.is_completed():
                begun.set_result(None)
            else:
                self.group.waiter.put(self, begun)
        return self.future

    def _outcome(self) -> List[Tensor]:
        if self.error is not None:
            raise self.error
        return self.outputs


class HostPlace:
    """Where operations of host tensors run: the group's communicator, and a host stream for each."""

    def __init__(self, group: "Shared") -> None:
        self.group, self.comm, self.device = group, group.comm, torch.device("cpu")

    def begin(self, name: str, calls: Calls, inputs: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor],
              finish: Finish, lane: Lane) -> PickleWork: # pylint: disable=unused-argument
        stream = self.group.host_streams.take()
        try:
            call_all(calls, stream.value)
        except BaseException: # it was refused, or a part of it may have begun
            lib.pk_stream_synchronize(stream.value)
            self.group.host_streams.give_back(stream)
            raise
        work = PickleWork(self.group, name, stream, list(outputs), (inputs, kept), finish)
        self.group.hold(work)
        return work


# ---- GPU tensors ----

class GpuWork(Operation):
    """An operation of GPU tensors in a CUDA stream. As with NCCL wait() lets the current stream wait, and the CPU goes on; with a time
    it waits itself."""

    def __init__(self, place: "GpuPlace", stream: Any, name: str, outputs: List[Tensor], finish: Finish) -> None:
        super().__init__(place.group, name, outputs, finish)
        self.place, self.stream = place, stream
        self.event: Any = None

    def mark(self) -> None:
        """The library has been given all of it: here is its end in the stream."""
        with torch.cuda.stream(self.stream), torch.no_grad():
            if self.finish is not None:
                self.finish()
                self.finish = None
            self.event = torch.cuda.Event()
            self.event.record()

    def is_completed(self) -> bool:
        return self.event is not None and bool(self.event.query())

    def may_be_forgotten(self) -> bool:
        """The library and the allocator know what it needs. Nothing is asked of CUDA, which may be capturing."""
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[Exception]:
        try:
            self.place.check()
        except Error as error:
            return error
        return None

    @untraced
    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        limit = timeout.total_seconds() if timeout else 0.0
        self._must_have_begun()
        if limit > 0:
            completed_within(self, self.name, limit)
        else:
            torch.cuda.current_stream(self.place.device).wait_event(self.event)
        self.place.check()
        self.group.let_go(self)
        return True

    def _must_have_begun(self) -> None:
        if self.event is None:
            raise refuse("%s is part of a batch that has not ended: it has not begun" % self.name, self.name)

    @untraced
    def get_future(self) -> torch.futures.Future:
        self._must_have_begun()
        self.group.let_go(self)
        future: torch.futures.Future = torch.futures.Future(devices=[self.place.device])
        with torch.cuda.stream(self.stream): # whoever takes the result waits for what is in it now
            future.set_result(self.outputs)
        return future


class GpuPlace:
    """Where operations of GPU tensors run: a communicator, with CUDA streams: one for collectives and batches, and one for the messages
    to, and one for those from, each rank, so that no message waits for one of another pair or direction."""

    def __init__(self, group: "Shared", comm: Communicator, device: torch.device) -> None:
        self.group, self.comm, self.device = group, comm, device
        self.streams: Dict[Lane, Any] = {}

    def _stream(self, lane: Lane) -> Any:
        stream = self.streams.get(lane)
        if stream is None:
            stream = self.streams[lane] = torch.cuda.Stream(self.device)
        return stream

    def begin(self, name: str, calls: Calls, inputs: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor],
              finish: Finish, lane: Lane) -> GpuWork:
        stream = self._stream(lane)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        for tensors in (inputs, outputs, kept):
            for tensor in tensors:
                tensor.record_stream(stream)
        call_all(calls, CudaStream(stream).value)
        work = GpuWork(self, stream, name, list(outputs), finish)
        if work.may_be_kept() and not torch.cuda.is_current_stream_capturing(): # a graph's memory is the graph's
            self.group.hold(work)
        return work

    def check(self) -> None:
        """Raise what has failed the communicator."""
        if self.comm.handle:
            self.comm.Check()

    def drain(self) -> None:
        """Wait until all work before and in the streams has ended."""
        for stream in (torch.cuda.current_stream(self.device), *self.streams.values()):
            stream.synchronize()
        self.check()

    def is_done_within(self, limit: float) -> bool:
        """Has all work in the streams ended, or does it within this number of seconds?"""
        end = time.monotonic() + limit
        try:
            while not all(stream.query() for stream in self.streams.values()):
                if time.monotonic() > end:
                    return False
                time.sleep(1e-3)
        except RuntimeError: # CUDA's
            return False
        return True


Place = Union[HostPlace, GpuPlace]


# ---- a group's ----

class Waiter:
    """A thread that waits for operations in the place of those who want a future (DDP). It is made with the first."""

    def __init__(self) -> None:
        self.works: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self.thread: Optional[threading.Thread] = None

    def put(self, work: PickleWork, begun: torch.futures.Future) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, args=(self.works,), name="libpickle waiter", daemon=True)
            self.thread.start()
        self.works.put((work, begun))

    @staticmethod
    def run(works: "queue.SimpleQueue[Any]") -> None:
        while True:
            item = works.get()
            if item is None:
                return
            work, begun = item
            work._end(lib.pk_stream_synchronize) # pylint: disable=protected-access
            begun.set_result(None)
            del item, work, begun

    def end(self) -> None:
        if self.thread is not None and self.thread is not threading.current_thread():
            self.works.put(None)
            self.thread.join(5)
            self.thread = None


class Shared:
    """What a group and its operations share, and what outlives the group until the last of these is gone."""

    def __init__(self, comm: Communicator, limit: float) -> None:
        self.comm, self.limit = comm, limit # seconds
        self.host_streams = HostStreams()
        self.host = HostPlace(self)
        self.gpu: Optional[GpuPlace] = None
        self.waiter = Waiter()
        self.ended = False
        # Operations that nobody has waited for yet: the program may have forgotten them, and torch hands C++ operations without their
        # Python half (1.13 all of them, newer ones that of DDP's join()), which is gone as soon as nobody here holds it. That one is
        # short, and C++ asks it for its result when it has waited.
        self.held: Dict[int, Operation] = {}
        self.recent: "collections.deque[Operation]" = collections.deque(maxlen=RECENT)

    def hold(self, work: Operation) -> None:
        if len(self.held) >= HELD:
            for key, old in list(self.held.items()): # the oldest first: C++ asks for the newest
                if (len(self.held) >= HELD or not old.may_be_kept()) and old.may_be_forgotten():
                    self.held.pop(key, None)
        self.held[id(work)] = work

    def let_go(self, work: Operation) -> None:
        is_held = self.held.pop(id(work), None) is not None
        if is_held and not self.ended and work.error is None and work.may_be_kept():
            self.recent.append(work)

    def end(self, abort: bool) -> None:
        if self.ended:
            return
        self.ended = True
        if abort:
            self.abort()
        self.waiter.end()
        for comm in self.communicators():
            handle, comm.handle = comm.handle, ctypes.c_void_p()
            lib.pk_comm_destroy(handle)
        self.held.clear()
        self.recent.clear()

    def is_done(self) -> bool:
        """Has everything ended? What a GPU has begun has a second for it."""
        return all(work.may_be_forgotten() for work in list(self.held.values())) and (self.gpu is None or self.gpu.is_done_within(1))

    def communicators(self) -> List[Communicator]:
        return [self.comm] if self.gpu is None else [self.gpu.comm, self.comm]

    def abort(self) -> None:
        """What waits is released."""
        for comm in self.communicators():
            if comm.handle:
                lib.pk_comm_abort(comm.handle)


def end_all() -> None:
    """Before Python takes its threads down: no thread may be inside torch then."""
    for shared in list(ALL):
        shared.end(abort=not shared.is_done())


ALL: "weakref.WeakSet[Shared]" = weakref.WeakSet()
atexit.register(end_all)


class Together(Work):
    """Several operations as one."""

    def __init__(self, works: List[Work]) -> None:
        super().__init__()
        self.works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self.works)

    def exception(self) -> Optional[Exception]:
        return next((error for error in (work.exception() for work in self.works) if error is not None), None)

    @untraced
    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        for work in self.works:
            work.wait(timeout) if timeout else work.wait()
        return True

    def result(self) -> List[Tensor]:
        return [tensor for work in self.works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self.works])
