# SPDX-License-Identifier: Apache-2.0
"""Communicators. Operations have the names that they have in mpi4py for buffers; counts and types are those of the buffers."""
import ctypes
import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import streams
from ctypes import c_int, c_size_t

from ._library import CONSTANTS, DType, Op, SUM, lib, manual, quick, sized, structures
from .buffers import BY_NAME, NUMPY, PLACE, SOURCE, TARGET, Buffer, BufferLike, after, described_blocks
from .errors import ArgumentError, check, error_of, refuse
from .inspection import fields_of, text_of
from .streams import BLOCKING, CudaStream, Stream, Within, finish_in, grouping, value_of

IN_PLACE = type("InPlace", (), {"__repr__": lambda self: "libpickle.IN_PLACE"})()
HOST = CONSTANTS["PK_DEVICE_HOST"]
AnyStream = Optional[Union[Stream, CudaStream, Within]]
KINDS = {"host": CONSTANTS["PK_MEM_HOST"], "device": CONSTANTS["PK_MEM_DEVICE"]}

# What is called most: see `quick`.
pk_send, pk_recv, pk_barrier, pk_allreduce = quick.pk_send, quick.pk_recv, quick.pk_barrier, quick.pk_allreduce
COUNTS: Dict[int, c_size_t] = {} # those of short calls, which are made again and again


def number_of_elements(count: int) -> c_size_t:
    made = c_size_t(count)
    if 0 < count < 4096:
        COUNTS[count] = made
    return made


def unique_id(anywhere: bool = False) -> bytes:
    """An id of a communicator to be, for Communicator.from_id: to be given to every rank over a private channel."""
    made = structures["pk_unique_id"]()
    check((lib.pk_get_unique_id_anywhere if anywhere else lib.pk_get_unique_id)(ctypes.byref(made)))
    return bytes(made)


unique_id.__doc__ = manual("pk_get_unique_id", "pk_get_unique_id_anywhere")(unique_id).__doc__


@manual("pk_unique_id_release")
def release_unique_id(made: bytes) -> None:
    """Give back an id that no communicator will be made with."""
    check(lib.pk_unique_id_release(ctypes.byref(structures["pk_unique_id"].from_buffer_copy(made))))


def config_of(device: Union[None, int, str], sm_policy: Optional[str], max_sms: int, timeout: Optional[float]) -> Any:
    config = sized("pk_comm_config")
    policies = {None: "PK_SM_DEFAULT", "default": "PK_SM_DEFAULT", "none": "PK_SM_NONE", "bounded": "PK_SM_BOUNDED"}
    if sm_policy not in policies:
        raise refuse("sm_policy is %r: 'default', 'none' or 'bounded' is wanted" % (sm_policy,))
    if device is not None and device != "host" and not (isinstance(device, int) and device >= 0):
        raise refuse("device is %r: None, 'host' or the number of a CUDA device is wanted" % (device,))
    if timeout is not None and timeout <= 0:
        raise refuse("timeout is %r: seconds, more than 0, are wanted" % (timeout,))
    config.device = HOST if device == "host" else 0 if device is None else int(device) + 1
    config.sm_policy = CONSTANTS[policies[sm_policy]]
    config.max_sms = max_sms
    config.timeout_ms = 0 if timeout is None else max(1, int(timeout * 1000))
    return config


def differ(name: str, wanted: int, have: int, dtype: DType, other: DType) -> Exception:
    if dtype is not other:
        return refuse("%s: one buffer is of %s, the other of %s" % (name, dtype.name, other.name), name)
    return refuse("%s: the other buffer asks for %d elements, and this one has %d" % (name, wanted, have), name)


class Memory:
    """Host memory of Communicator.Alloc. `array` has the buffer protocol: `numpy.frombuffer(memory.array, dtype)`. Nothing may
    use it after Free, nor after the communicator's Free."""

    def __init__(self, communicator: "Communicator", nbytes: int) -> None:
        address = ctypes.c_void_p()
        check(lib.pk_mem_alloc(communicator.handle, nbytes, ctypes.byref(address)))
        self.communicator = communicator
        self.array = (ctypes.c_ubyte * nbytes).from_address(address.value or 0)

    @manual("pk_mem_free")
    def Free(self) -> None:
        """Give the memory back."""
        array, self.array = self.array, None
        if array is not None and self.communicator.handle:
            check(lib.pk_mem_free(self.communicator.handle, ctypes.addressof(array)))


def raw_id(id: bytes) -> Any:
    if len(id) != CONSTANTS["PK_UNIQUE_ID_BYTES"]:
        raise refuse("an id has %d bytes, and this one %d" % (CONSTANTS["PK_UNIQUE_ID_BYTES"], len(id)))
    return structures["pk_unique_id"].from_buffer_copy(id)


class Communicator:
    """A fixed group of ranks. Used by one thread at a time; Abort may be called from any.

    `Communicator()` is made of all ranks that a launcher started: by PK_RANK, PK_SIZE and PK_ROOT, torchrun's variables, or PMIx
    (mpirun, srun). As a context manager it is freed at the end; after an exception it is aborted, so that no other rank waits for
    this one.

    Buffers are anything with memory (libpickle.buffers), or [buffer, type] with the name of a type ("bf16"). Each operation takes
    `stream`: None (the call waits), a Stream or a CudaStream, or one of these Within a time."""

    @manual("pk_comm_init")
    def __init__(self, device: Union[None, int, str] = None, sm_policy: Optional[str] = None, max_sms: int = 0,
                 timeout: Optional[float] = None) -> None:
        """device: None (that of the thread's current CUDA context, if any), "host", or a number. timeout: seconds, of each
        operation and of init."""
        self.handle = ctypes.c_void_p()
        config = config_of(device, sm_policy, max_sms, timeout)
        check(lib.pk_comm_init(ctypes.byref(self.handle), ctypes.byref(config)))
        self._learn()

    @classmethod
    @manual("pk_comm_init_rank")
    def from_id(cls, id: bytes, size: int, rank: int, device: Union[None, int, str] = None, sm_policy: Optional[str] = None,
                max_sms: int = 0, timeout: Optional[float] = None) -> "Communicator":
        """One of `size` ranks that all hold the same id."""
        made = cls.__new__(cls)
        made.handle = ctypes.c_void_p()
        config = config_of(device, sm_policy, max_sms, timeout)
        check(lib.pk_comm_init_rank(ctypes.byref(made.handle), size, rank, ctypes.byref(raw_id(id)), ctypes.byref(config)))
        made._learn()
        return made

    @classmethod
    @manual("pk_comm_join")
    def join(cls, id: bytes, device: Union[None, int, str] = None, sm_policy: Optional[str] = None, max_sms: int = 0,
             timeout: Optional[float] = None, rank: int = -1) -> "Communicator":
        """A rank of a communicator that grows (Grow); waits until the others take it in. rank: the number that it wants."""
        made = cls.__new__(cls)
        made.handle = ctypes.c_void_p()
        config = config_of(device, sm_policy, max_sms, timeout)
        check(lib.pk_comm_join(ctypes.byref(made.handle), rank, ctypes.byref(raw_id(id)), ctypes.byref(config)))
        made._learn()
        return made

    def _learn(self) -> None:
        number = ctypes.c_int()
        check(lib.pk_comm_rank(self.handle, ctypes.byref(number)))
        self.rank: int = number.value
        check(lib.pk_comm_size(self.handle, ctypes.byref(number)))
        self.size: int = number.value
        self.failed = False

    def Get_rank(self) -> int:
        """This rank, 0 to size - 1; also the attribute `rank`."""
        return self.rank

    def Get_size(self) -> int:
        """Number of ranks; also the attribute `size`."""
        return self.size

    @manual("pk_comm_split")
    def Split(self, color: int = 0, key: int = 0, timeout: Optional[float] = None) -> Optional["Communicator"]:
        """A communicator of the ranks that give the same color; None for a negative one."""
        made = Communicator.__new__(Communicator)
        made.handle = ctypes.c_void_p()
        config = None if timeout is None else ctypes.byref(config_of(None, None, 0, timeout))
        check(lib.pk_comm_split(self.handle, color, key, ctypes.byref(made.handle), config))
        if not made.handle:
            return None
        made._learn()
        return made

    @manual("pk_comm_abort")
    def Abort(self) -> None:
        """Release everything that waits in this communicator, here and on the other ranks. Any thread."""
        if self.handle:
            check(lib.pk_comm_abort(self.handle))

    @manual("pk_comm_revoke")
    def Revoke(self) -> None:
        """End everything that is under way, on all ranks; they can agree and shrink then. Any thread."""
        check(lib.pk_comm_revoke(self.handle))

    @manual("pk_comm_agree")
    def Agree(self, value: int = 0) -> Tuple[int, List[int], int]:
        """With all ranks that live: the bits that all have given, the ranks that count as dead, and the number of the last
        collective that is complete on all."""
        every, last, count = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
        failed = (ctypes.c_int * self.size)()
        check(lib.pk_comm_agree(self.handle, value, ctypes.byref(every), failed, ctypes.byref(count), ctypes.byref(last)))
        return every.value, list(failed[:count.value]), last.value

    @manual("pk_comm_shrink")
    def Shrink(self, exclude: Sequence[int] = (), revoke: bool = False, timeout: Optional[float] = None, keep_ranks: bool = False,
               replace: bool = False) -> "Communicator":
        """A communicator of the ranks that live, without those of `exclude`, which do not call. keep_ranks: the numbers of the dead
        are holes. replace: the highest ranks take them."""
        made = Communicator.__new__(Communicator)
        made.handle = ctypes.c_void_p()
        config = None if timeout is None else ctypes.byref(config_of(None, None, 0, timeout))
        wanted = (("PK_SHRINK_REVOKE", revoke), ("PK_SHRINK_KEEP_RANKS", keep_ranks), ("PK_SHRINK_REPLACE", replace))
        flags = sum(CONSTANTS[name] for name, on in wanted if on)
        ranks = (ctypes.c_int * len(exclude))(*exclude)
        check(lib.pk_comm_shrink(self.handle, flags, ranks, len(exclude), ctypes.byref(made.handle), config))
        made._learn()
        return made

    @manual("pk_comm_get_unique_id")
    def Id(self) -> bytes:
        """Rank 0: an id for the ranks that will join, for Grow and Communicator.join."""
        made = structures["pk_unique_id"]()
        check(lib.pk_comm_get_unique_id(self.handle, ctypes.byref(made)))
        return bytes(made)

    @manual("pk_comm_grow")
    def Grow(self, count: int, id: Optional[bytes] = None, timeout: Optional[float] = None) -> "Communicator":
        """A communicator of these ranks and of `count` that call Communicator.join. Rank 0 gives the id."""
        made = Communicator.__new__(Communicator)
        made.handle = ctypes.c_void_p()
        config = None if timeout is None else ctypes.byref(config_of(None, None, 0, timeout))
        raw = None if id is None else ctypes.byref(raw_id(id))
        check(lib.pk_comm_grow(self.handle, count, raw, ctypes.byref(made.handle), config))
        made._learn()
        return made

    @manual("pk_comm_async_error")
    def Check(self) -> None:
        """Look whether another rank has died or given up, and raise what poisoned the communicator. Never blocks. Any thread."""
        result = lib.pk_comm_async_error(self.handle)
        if result and result != CONSTANTS["PK_IN_PROGRESS"]:
            self._raise(result)

    @manual("pk_comm_finalize")
    def Finalize(self) -> None:
        """Wait until all that this rank has called has ended; nothing may be called afterwards."""
        check(lib.pk_comm_finalize(self.handle))

    @manual("pk_comm_destroy")
    def Free(self) -> None:
        """Wait for unfinished operations, and free. A second time it does nothing. Raises what poisoned the communicator unless a
        call of this object has raised it already."""
        if self.handle:
            handle, self.handle = self.handle, ctypes.c_void_p()
            result = lib.pk_comm_destroy(handle)
            if result and not self.failed:
                raise error_of(result)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.Free()
        elif self.handle: # the error that is on its way is the one to see
            handle, self.handle = self.handle, ctypes.c_void_p()
            lib.pk_comm_abort(handle)
            lib.pk_comm_destroy(handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None) and not sys.is_finalizing():
            warnings.warn("a communicator was never freed", ResourceWarning, source=self)
            self.__exit__(ResourceWarning)

    def _end(self, result: int, stream: AnyStream, *objects: Any) -> None:
        """What is left of a call that failed, or whose buffers are in use beyond it."""
        if result:
            self._raise(result)
        finish_in(stream, *objects)

    def _raise(self, result: int) -> None:
        error = error_of(result)
        self.failed = self.failed or not isinstance(error, ArgumentError)
        raise error

    # ---- point to point ----

    @manual("pk_send")
    def Send(self, buf: BufferLike, dest: int, stream: AnyStream = None) -> None:
        """Send a buffer to a rank."""
        pointer, count, dtype = SOURCE[type(buf)](buf)
        result = pk_send(pointer, COUNTS.get(count) or number_of_elements(count), dtype, c_int(dest), self.handle,
                         BLOCKING if stream is None else value_of(stream))
        if result or stream is not None or grouping.open:
            self._end(result, stream, buf, pointer)

    @manual("pk_recv")
    def Recv(self, buf: BufferLike, source: int, stream: AnyStream = None) -> None:
        """Fill a buffer with what a rank sends, which must be as long."""
        pointer, count, dtype = TARGET[type(buf)](buf)
        result = pk_recv(pointer, COUNTS.get(count) or number_of_elements(count), dtype, c_int(source), self.handle,
                         BLOCKING if stream is None else value_of(stream))
        if result or stream is not None or grouping.open:
            self._end(result, stream, buf, pointer)

    def Sendrecv(self, sendbuf: BufferLike, dest: int, recvbuf: BufferLike, source: int, stream: AnyStream = None) -> None:
        """Send to one rank and receive from another (or the same), at the same time."""
        with streams.group():
            self.Send(sendbuf, dest, stream)
            self.Recv(recvbuf, source, stream)

    # ---- collectives ----

    @manual("pk_barrier")
    def Barrier(self, stream: AnyStream = None) -> None:
        """Wait until every rank has called this."""
        result = pk_barrier(self.handle, BLOCKING if stream is None else value_of(stream))
        if result:
            self._raise(result)

    @manual("pk_broadcast")
    def Bcast(self, buf: BufferLike, root: int = 0, stream: AnyStream = None) -> None:
        """Fill everybody's buffer with the root's."""
        pointer, count, dtype = (SOURCE if root == self.rank else TARGET)[type(buf)](buf)
        result = lib.pk_broadcast(pointer, pointer, count, dtype, root, self.handle, value_of(stream))
        self._end(result, stream, buf, pointer)

    @manual("pk_allreduce")
    def Allreduce(self, sendbuf: BufferLike, recvbuf: BufferLike, op: Op = SUM, stream: AnyStream = None) -> None:
        """Reduce over all ranks; every rank gets the result. sendbuf may be IN_PLACE."""
        try:
            if type(recvbuf) is Buffer:
                alike = type(sendbuf) is Buffer
                if alike:
                    (source, have, other), (target, count, dtype) = sendbuf.source, recvbuf.target
                    alike = have == count and other is dtype
            else: # arrays of NumPy, as most are
                dtype, count = NUMPY[recvbuf.dtype], recvbuf.size
                alike = NUMPY[sendbuf.dtype] is dtype and sendbuf.size == count
                source, target = PLACE(sendbuf), PLACE(recvbuf)
        except (AttributeError, KeyError, TypeError):
            alike = False
        if not alike: # other objects, or an error
            source, target, count, dtype = self._alike("allreduce", sendbuf, recvbuf)
        result = pk_allreduce(source, target, COUNTS.get(count) or number_of_elements(count), dtype, op, self.handle,
                              BLOCKING if stream is None else value_of(stream))
        if result or stream is not None or grouping.open:
            self._end(result, stream, sendbuf, source, recvbuf, target)

    def _alike(self, name: str, sendbuf: BufferLike, recvbuf: BufferLike) -> Any:
        """Two buffers of the same length and type, or one in place."""
        target, count, dtype = TARGET[type(recvbuf)](recvbuf)
        if sendbuf is IN_PLACE:
            return target, target, count, dtype
        source, have, other = SOURCE[type(sendbuf)](sendbuf)
        if have != count or other is not dtype:
            raise differ(name, count, have, dtype, other)
        return source, target, count, dtype

    @manual("pk_reduce")
    def Reduce(self, sendbuf: BufferLike, recvbuf: Optional[BufferLike], op: Op = SUM, root: int = 0,
               stream: AnyStream = None) -> None:
        """Reduce over all ranks; the root gets the result, and may have sendbuf IN_PLACE. Others give None as recvbuf."""
        target, count, dtype = None, None, None
        if self.rank == root:
            target, count, dtype = TARGET[type(recvbuf)](recvbuf)
        if sendbuf is IN_PLACE:
            source, have, other = self._at_root("reduce", root, target, count, dtype)
        else:
            source, have, other = SOURCE[type(sendbuf)](sendbuf)
            if self.rank == root and (have != count or other is not dtype):
                raise differ("reduce", count, have, dtype, other)
        result = lib.pk_reduce(source, target, have, other, op, root, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    def _at_root(self, name: str, root: int, *described: Any) -> Any:
        if self.rank != root:
            raise refuse("%s: only the root may have its buffer IN_PLACE" % name, name)
        return described

    @manual("pk_reduce_scatter")
    def Reduce_scatter_block(self, sendbuf: BufferLike, recvbuf: BufferLike, op: Op = SUM, stream: AnyStream = None) -> None:
        """Reduce over all ranks; rank r gets block r of the result. In place: recvbuf is that block of sendbuf."""
        target, count, dtype = TARGET[type(recvbuf)](recvbuf)
        source, have, other = SOURCE[type(sendbuf)](sendbuf)
        if have != count * self.size or other is not dtype:
            raise differ("reduce_scatter", count * self.size, have, dtype, other)
        result = lib.pk_reduce_scatter(source, target, count, dtype, op, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_allgather")
    def Allgather(self, sendbuf: BufferLike, recvbuf: BufferLike, stream: AnyStream = None) -> None:
        """Gather a block from every rank, in rank order. sendbuf may be IN_PLACE: block `rank` of recvbuf."""
        target, count, dtype = TARGET[type(recvbuf)](recvbuf)
        if sendbuf is IN_PLACE:
            have, other = count // self.size, dtype
            source = after(target, self.rank * have, dtype)
        else:
            source, have, other = SOURCE[type(sendbuf)](sendbuf)
        if have * self.size != count or other is not dtype:
            raise differ("allgather", have * self.size, count, dtype, other)
        result = lib.pk_allgather(source, target, have, dtype, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_allgatherv")
    def Allgatherv(self, sendbuf: BufferLike, recvbuf: Any, stream: AnyStream = None) -> None:
        """As Allgather, with blocks of different lengths: recvbuf is [buffer, counts] or [buffer, (counts, offsets)]."""
        target, counts, offsets, dtype = described_blocks(recvbuf, self.size, TARGET)
        if sendbuf is IN_PLACE:
            have, other = counts[self.rank], dtype
            source = after(target, offsets[self.rank], dtype)
        else:
            source, have, other = SOURCE[type(sendbuf)](sendbuf)
        if have != counts[self.rank] or other is not dtype:
            raise differ("allgatherv", counts[self.rank], have, dtype, other)
        result = lib.pk_allgatherv(source, have, target, counts, offsets, dtype, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_alltoall")
    def Alltoall(self, sendbuf: BufferLike, recvbuf: BufferLike, stream: AnyStream = None) -> None:
        """Send block p to rank p, for every p, and get one from each. sendbuf may be IN_PLACE."""
        source, target, count, dtype = self._alike("alltoall", sendbuf, recvbuf)
        if count % self.size:
            raise refuse("alltoall: %d elements are not a block for each of %d ranks" % (count, self.size), "alltoall")
        result = lib.pk_alltoall(source, target, count // self.size, dtype, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_alltoallv")
    def Alltoallv(self, sendbuf: Any, recvbuf: Any, stream: AnyStream = None) -> None:
        """As Alltoall, with blocks of different lengths: both are [buffer, counts] or [buffer, (counts, offsets)]."""
        target, counts, offsets, dtype = described_blocks(recvbuf, self.size, TARGET)
        if sendbuf is IN_PLACE:
            source, lengths, places, other = target, counts, offsets, dtype
        else:
            source, lengths, places, other = described_blocks(sendbuf, self.size, SOURCE)
        if other is not dtype:
            raise differ("alltoallv", 0, 0, dtype, other)
        result = lib.pk_alltoallv(source, lengths, places, target, counts, offsets, dtype, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_gather")
    def Gather(self, sendbuf: BufferLike, recvbuf: Optional[BufferLike], root: int = 0, stream: AnyStream = None) -> None:
        """Gather a block from every rank at the root, whose sendbuf may be IN_PLACE. Others give None as recvbuf."""
        target, count, dtype = None, None, None
        if self.rank == root:
            target, count, dtype = TARGET[type(recvbuf)](recvbuf)
        if sendbuf is IN_PLACE:
            self._at_root("gather", root)
            have, other = count // self.size, dtype
            source = after(target, root * have, dtype)
        else:
            source, have, other = SOURCE[type(sendbuf)](sendbuf)
        if self.rank == root and (have * self.size != count or other is not dtype):
            raise differ("gather", have * self.size, count, dtype, other)
        result = lib.pk_gather(source, target, have, other, root, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_gatherv")
    def Gatherv(self, sendbuf: BufferLike, recvbuf: Any, root: int = 0, stream: AnyStream = None) -> None:
        """As Gather, with blocks of different lengths: recvbuf is [buffer, counts] or [buffer, (counts, offsets)] at the root."""
        target, counts, offsets, dtype = None, None, None, None
        if self.rank == root:
            target, counts, offsets, dtype = described_blocks(recvbuf, self.size, TARGET)
        if sendbuf is IN_PLACE:
            self._at_root("gatherv", root)
            have, other = counts[root], dtype
            source = after(target, offsets[root], dtype)
        else:
            source, have, other = SOURCE[type(sendbuf)](sendbuf)
        if self.rank == root and (have != counts[root] or other is not dtype):
            raise differ("gatherv", counts[root], have, dtype, other)
        result = lib.pk_gatherv(source, have, target, counts, offsets, other, root, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_scatter")
    def Scatter(self, sendbuf: Optional[BufferLike], recvbuf: BufferLike, root: int = 0, stream: AnyStream = None) -> None:
        """Send block p of the root's sendbuf to rank p; the root's recvbuf may be IN_PLACE. Others give None as sendbuf."""
        source, count, dtype = None, None, None
        if self.rank == root:
            source, count, dtype = SOURCE[type(sendbuf)](sendbuf)
        if recvbuf is IN_PLACE:
            self._at_root("scatter", root)
            have, other = count // self.size, dtype
            target = after(source, root * have, dtype)
        else:
            target, have, other = TARGET[type(recvbuf)](recvbuf)
        if self.rank == root and (have * self.size != count or other is not dtype):
            raise differ("scatter", have * self.size, count, dtype, other)
        result = lib.pk_scatter(source, target, have, other, root, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_scatterv")
    def Scatterv(self, sendbuf: Any, recvbuf: BufferLike, root: int = 0, stream: AnyStream = None) -> None:
        """As Scatter, with blocks of different lengths: sendbuf is [buffer, counts] or [buffer, (counts, offsets)] at the
        root."""
        source, counts, offsets, dtype = None, None, None, None
        if self.rank == root:
            source, counts, offsets, dtype = described_blocks(sendbuf, self.size, SOURCE)
        if recvbuf is IN_PLACE:
            self._at_root("scatterv", root)
            have, other = counts[root], dtype
            target = after(source, offsets[root], dtype)
        else:
            target, have, other = TARGET[type(recvbuf)](recvbuf)
        if self.rank == root and (have != counts[root] or other is not dtype):
            raise differ("scatterv", counts[root], have, dtype, other)
        result = lib.pk_scatterv(source, counts, offsets, target, have, other, root, self.handle, value_of(stream))
        self._end(result, stream, sendbuf, source, recvbuf, target)

    @manual("pk_op_create_premul")
    def Premultiplied_sum(self, scalar: BufferLike) -> Op:
        """A sum of elements that each rank first multiplies by its scalar: a buffer of one element, of host memory."""
        pointer, count, dtype = SOURCE[type(scalar)](scalar)
        if count != 1:
            raise refuse("the scalar has %d elements" % count)
        made = Op()
        check(lib.pk_op_create_premul(self.handle, dtype, pointer, 0, ctypes.byref(made)))
        return made

    @manual("pk_op_destroy")
    def Free_op(self, op: Op) -> None:
        """Forget a reduction that Premultiplied_sum made."""
        check(lib.pk_op_destroy(self.handle, op))

    # ---- memory ----

    @manual("pk_mem_alloc")
    def Alloc(self, nbytes: int) -> Memory:
        """Host memory that the ranks of this machine map: the fastest for 64 KiB and more."""
        return Memory(self, nbytes)

    @manual("pk_register")
    def Register(self, buf: BufferLike) -> None:
        """Declare that a buffer stays allocated until Deregister."""
        pointer, count, dtype = SOURCE[type(buf)](buf)
        check(lib.pk_register(self.handle, pointer, count * dtype.size))

    @manual("pk_deregister")
    def Deregister(self, buf: BufferLike) -> None:
        """End a registration of the same buffer."""
        pointer, count, dtype = SOURCE[type(buf)](buf)
        check(lib.pk_deregister(self.handle, pointer, count * dtype.size))

    # ---- what the library chose and why ----

    @manual("pk_comm_path")
    def Path(self, peer: int, source: str = "host", target: str = "host") -> Dict[str, Any]:
        """The way bytes go from memory of one kind here to memory of another on `peer`: "host" or "device"."""
        path = sized("pk_path")
        check(lib.pk_comm_path(self.handle, peer, KINDS[source], KINDS[target], ctypes.byref(path)))
        return fields_of(path)

    @manual("pk_explain")
    def Explain(self, operation: str, count: int, dtype: str = "f32", kind: str = "host", in_place: bool = False,
                peer: int = 0) -> Dict[str, Any]:
        """What this rank would do for an operation, by its name in C without prefix ("allreduce")."""
        explanation = sized("pk_explanation")
        check(lib.pk_explain(self.handle, CONSTANTS["PK_OP_" + operation.upper()], count, BY_NAME[dtype], KINDS[kind],
                             int(in_place), peer, ctypes.byref(explanation)))
        return fields_of(explanation)

    @manual("pk_comm_stats")
    def Stats(self) -> Dict[str, int]:
        """Counters since the communicator was made."""
        stats = sized("pk_stats")
        check(lib.pk_comm_stats(self.handle, ctypes.byref(stats)))
        return fields_of(stats)

    @manual("pk_config_dump")
    def Config(self) -> str:
        """The settings, with where each came from."""
        return text_of(lib.pk_config_dump, self.handle)

    @manual("pk_pending_dump")
    def Pending(self) -> str:
        """What unfinished operations wait for. Any thread."""
        return text_of(lib.pk_pending_dump, self.handle)

    @manual("pk_topology_dump")
    def Topology(self) -> str:
        """What this machine looks like, and where the ranks are on it."""
        return text_of(lib.pk_topology_dump, self.handle)
