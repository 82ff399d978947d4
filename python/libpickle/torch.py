# SPDX-License-Identifier: Apache-2.0
"""The backend "pickle" of torch.distributed.

    import libpickle.torch
    torch.distributed.init_process_group("pickle")

Host tensors go through host streams of the library: each operation has one of its own while it is under way, so that Work.wait()
waits for this operation alone. GPU tensors go through a communicator of their own and CUDA streams, as with NCCL: the first
operation of such tensors makes it, and waits within the call until all ranks of the group have come to theirs. Tags, receives from
any rank and compressed tensors are refused; every wait has the group's deadline. A sparse allreduce waits within the call until all
ranks have said how many elements they have."""
import contextlib
import ctypes
import datetime
import inspect
import itertools
import time
import zlib
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup, ReduceOp, Work

from . import streams
from ._library import AVG, CONSTANTS, MAX, MIN, PROD, SUM, DType, Op, lib, structures
from .buffers import BY_NAME
from .communicator import Communicator, config_of, unique_id
from .errors import DeadlineError, Error, check, error_of, refuse
from .torch_works import (ALL, IN_PROGRESS, Calls, Finish, GpuPlace, GpuWork, Lane, Place, Shared, Tensor, Together, storage_of,
                          unsupported, untraced)

NAME = "pickle"
BYTES = BY_NAME["uint8"]
TYPES: Dict[torch.dtype, DType] = {getattr(torch, name): dtype for name, dtype in BY_NAME.items() if hasattr(torch, name)}
REDUCTIONS: List[Tuple[Any, Op]] = [(ReduceOp.SUM, SUM), (ReduceOp.AVG, AVG), (ReduceOp.PRODUCT, PROD), (ReduceOp.MIN, MIN),
                                    (ReduceOp.MAX, MAX)]
DIRECT_BYTES = 65536 # from here on a message to each rank costs less than a copy behind a collective


def reduction(options: Any) -> Op:
    wanted = options.reduceOp
    for theirs, ours in REDUCTIONS:
        if wanted == theirs:
            return ours
    raise unsupported("the library has no such reduction; it has SUM, AVG, PRODUCT, MIN and MAX")


def address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def one(tensors: Sequence[Tensor], operation: str) -> Tensor:
    if len(tensors) != 1:
        raise refuse("%s: %d tensors of one rank; one is wanted" % (operation, len(tensors)), operation)
    return tensors[0]


def whole(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy of what it shows."""
    if tensor.layout != torch.strided:
        raise unsupported("tensors must be dense")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def moved(tensor: Tensor) -> Tuple[int, DType]:
    """Elements and type of what is moved and not combined: any type will do."""
    dtype = TYPES.get(tensor.dtype)
    return (tensor.numel(), dtype) if dtype is not None else (tensor.numel() * tensor.element_size(), BYTES)


def combined(tensor: Tensor, op: Op) -> Tuple[int, DType, Op]:
    """Elements, their type, and the library's reduction of them."""
    dtype = TYPES.get(tensor.dtype)
    if tensor.dtype == torch.bool and op is not AVG: # as with NCCL a sum says whether any is true, a product whether all are
        dtype, op = BYTES, MAX if op in (SUM, MAX) else MIN
    if dtype is None:
        raise unsupported("no reduction of %s" % tensor.dtype)
    return tensor.numel(), dtype, op


def flat_for(tensors: Sequence[Tensor]) -> Tuple[Tensor, bool]:
    """Memory for all tensors, one behind the other; True where they lie so already."""
    first = tensors[0]
    allocation = storage_of(first).data_ptr()
    step = first.numel() * first.element_size()
    if all(t.is_contiguous() and t.data_ptr() == first.data_ptr() + i * step and storage_of(t).data_ptr() == allocation
           for i, t in enumerate(tensors)):
        return first, True
    return torch.empty(len(tensors) * first.numel(), dtype=first.dtype, device=first.device), False


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    flat, lies_so = flat_for(tensors)
    if not lies_so:
        for part, tensor in zip(flat.chunk(len(tensors)), tensors):
            part.copy_(tensor.reshape(-1))
    return flat


def uneven(tensors: Sequence[Tensor], count: int) -> bool:
    """One for each rank, of different lengths."""
    return len(tensors) == count and len({tensor.numel() for tensor in tensors}) > 1


def alike(tensors: Sequence[Tensor], like: Tensor, count: int, operation: str) -> None:
    if len(tensors) != count or any(t.numel() != like.numel() or t.dtype != like.dtype for t in tensors):
        raise refuse("%s: %d tensors as long and of the same type as the other are wanted" % (operation, count), operation)


TORCH_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


def in_profile(name: str) -> ContextManager[Any]:
    """Giving the operation to the library is an event of torch's profiler while one runs."""
    if not torch.autograd._profiler_enabled(): # pylint: disable=protected-access
        return contextlib.nullcontext()
    return torch.autograd.profiler.record_function("%s:%s" % (NAME, TORCH_NAMES.get(name, name)))


# ---- the process group ----

class ProcessGroupPickle(ProcessGroup):
    """A group of ranks over a communicator of the library."""

    def __init__(self, comm: Communicator, limit: float, store: Any) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm, self.store = comm, store
        self.shared = Shared(comm, limit)
        ALL.add(self.shared)
        self.coalescing: Optional[List[Work]] = None
        self.torch_name = ""

    def __del__(self) -> None:
        shared = getattr(self, "shared", None)
        if shared is not None and not getattr(shared, "ended", True):
            shared.end(abort=False)

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    # Torch keeps a group's name in its C++ backends, of which this group has none; device meshes and functional collectives ask for it.
    def _set_group_name(self, name: str) -> None:
        self.torch_name = name

    def getGroupName(self) -> str:
        return self.torch_name

    group_name = property(getGroupName)

    def abort(self) -> None:
        """Release everything that waits, on all ranks."""
        self.shared.abort()

    def shutdown(self) -> None:
        """Wait for what is unfinished, and free the communicator."""
        self.shared.end(abort=False)

    def _set_sequence_number_for_group(self) -> None:
        """The library numbers operations itself, and says where ranks disagree."""

    def _get_sequence_number_for_group(self) -> int:
        return sum(comm.Stats()["operations"] for comm in self.shared.communicators())

    def _place(self, tensor: Tensor) -> Place:
        """Where operations of such tensors run."""
        return self._on_gpu(tensor.device) if tensor.is_cuda else self.shared.host

    def _on_gpu(self, device: torch.device) -> GpuPlace:
        if self.shared.gpu is None:
            if not hasattr(torch, "compile"): # older ones lose the Python half of an operation that nobody holds
                raise unsupported("GPU tensors need torch 2 (this is %s)" % torch.__version__)
            with torch.cuda.device(device): # makes the context that the communicator asks for
                comm = created(self.store, "pickle/gpus", self.comm.rank, self.comm.size, self.shared.limit, device.index)
                self.shared.gpu = GpuPlace(self.shared, comm, device)
        return self.shared.gpu

    def _begin(self, place: Place, name: str, calls: Calls, inputs: Sequence[Tensor], outputs: Sequence[Tensor],
               kept: Sequence[Tensor] = (), finish: Finish = None, lane: Lane = None) -> Any:
        """Start calls as one operation. `kept` are tensors of it that nobody else holds."""
        for tensor in itertools.chain(inputs, outputs):
            if tensor.device != place.device:
                raise refuse("%s: a tensor is on %s, another one, or the group, on %s" % (name, tensor.device, place.device), name)
        with in_profile(name):
            work = place.begin(name, calls, inputs, outputs, kept, finish, lane if self.coalescing is None else None)
        if self.coalescing is not None:
            self.coalescing.append(work)
        elif isinstance(work, GpuWork):
            work.mark()
        return work

    # ---- collectives ----

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        tensor = one(tensors if isinstance(tensors, (list, tuple)) else [tensors], "allreduce")
        if tensor.layout == torch.sparse_coo:
            return self._allreduce_sparse(tensor, opts)
        return self._allreduces("allreduce", [tensor], opts)

    def _allreduce_sparse(self, tensor: Tensor, opts: Any) -> Work:
        """Every rank gets the elements of all, and adds up those with one index."""
        if self.coalescing is not None or tensor.is_cuda or (opts is not None and reduction(opts) is not SUM):
            raise unsupported("of sparse tensors there are sums alone, of host memory, and not in a batch")
        mine = tensor.coalesce()
        indices, values = mine.indices().contiguous(), mine.values().contiguous()
        shape = "%s %d %s" % (tuple(mine.shape), mine.sparse_dim(), mine.dtype)
        said = torch.tensor([values.shape[0], zlib.crc32(shape.encode())], device="cpu")
        all_said = torch.empty(self.comm.size, 2, dtype=torch.int64, device="cpu")
        self._allgather_base(all_said, said).wait()
        if not bool((all_said[:, 1] == said[1]).all()):
            raise refuse("allreduce: the sparse tensors of the ranks differ in shape or type (%s here)" % shape, "allreduce")
        counts = all_said[:, 0].tolist()
        all_indices = [torch.empty(indices.shape[0], n, dtype=indices.dtype, device="cpu") for n in counts]
        all_values = [torch.empty((n,) + tuple(values.shape[1:]), dtype=values.dtype, device="cpu") for n in counts]

        def finish() -> None:
            tensor.copy_(torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape).coalesce())
        work = self._exchange("allreduce", [(peer, part) for peer in range(self.comm.size) for part in (indices, values)],
                              [(peer, part) for peer in range(self.comm.size) for part in (all_indices[peer], all_values[peer])],
                              finish)
        work.outputs = [tensor]
        return work

    def allreduce_coalesced(self, tensors: List[Tensor], opts: Any = None) -> Work:
        return self._allreduces("allreduce", tensors, opts)

    def _allreduces(self, name: str, tensors: List[Tensor], opts: Any) -> Work:
        if not tensors:
            return Together([])
        op, memory = SUM if opts is None else reduction(opts), [whole(tensor) for tensor in tensors]
        kinds = [combined(part, op) for part in memory] # a type may be refused here, before a GPU's communicator is made
        place = self._place(tensors[0])
        handle = place.comm.handle

        def call(part: Tensor, kind: Any) -> Callable[[Any], int]:
            (count, dtype, how), pointer = kind, address(part)
            return lambda stream: lib.pk_allreduce(pointer, pointer, count, dtype, how, handle, stream)
        return self._begin(place, name, list(map(call, memory, kinds)), (), tensors, memory, copies_back(tensors, memory))

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        tensor = one(tensors if isinstance(tensors, (list, tuple)) else [tensors], "broadcast")
        root, memory, place = 0 if opts is None else opts.rootRank, whole(tensor), self._place(tensor)
        (count, dtype), pointer, handle = moved(memory), address(memory), place.comm.handle
        return self._begin(place, "broadcast",
                           [lambda stream: lib.pk_broadcast(pointer, pointer, count, dtype, root, handle, stream)],
                           (), [tensor], [memory], copies_back([tensor], [memory]))

    def reduce(self, tensors: List[Tensor], opts: Any) -> Work:
        tensor, root = one(tensors, "reduce"), opts.rootRank
        memory = whole(tensor)
        (count, dtype, op), place = combined(memory, reduction(opts)), self._place(tensor)
        pointer, handle = address(memory), place.comm.handle
        return self._begin(place, "reduce", [lambda stream: lib.pk_reduce(pointer, pointer, count, dtype, op, root, handle, stream)],
                           (), [tensor], [memory], copies_back([tensor], [memory]) if self.comm.rank == root else None)

    def barrier(self, opts: Any = None) -> Work:
        for number in getattr(opts, "device_ids", None) or ():
            self._on_gpu(torch.device("cuda", number))
        if self.shared.gpu is not None:
            self.shared.gpu.drain()
        handle = self.comm.handle
        return self._begin(self.shared.host, "barrier", [lambda stream: lib.pk_barrier(handle, stream)], (), ())

    def allgather(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> Work:
        parts, mine = outputs[0], whole(one(inputs, "allgather"))
        direct = uneven(parts, self.comm.size) # the same on all ranks, whatever their tensors look like
        if direct:
            alike([parts[self.comm.rank]], mine, 1, "allgather")
        else:
            alike(parts, mine, self.comm.size, "allgather")
            direct = mine.numel() * mine.element_size() >= DIRECT_BYTES and not mine.is_cuda
        if direct:
            peers = range(self.comm.size)
            return self._exchange("allgather", [(peer, mine) for peer in peers], [(peer, parts[peer]) for peer in peers])
        flat, lies_so = flat_for(parts)
        return self._gather_all(flat, mine, parts, None if lies_so else lambda: spread(flat, parts))

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if output.numel() != input.numel() * self.comm.size or output.dtype != input.dtype or not output.is_contiguous():
            raise refuse("allgather: the output must be contiguous, %d times as long and of the same type" % self.comm.size,
                         "allgather")
        return self._gather_all(output, whole(input), [output], None)

    all_gather_single = all_gather_into_tensor = _allgather_base

    def _gather_all(self, flat: Tensor, mine: Tensor, outputs: List[Tensor], finish: Finish) -> Work:
        (count, dtype), source, target, place = moved(mine), address(mine), address(flat), self._place(mine)
        handle = place.comm.handle
        return self._begin(place, "allgather", [lambda stream: lib.pk_allgather(source, target, count, dtype, handle, stream)],
                           [mine], outputs, [flat], finish)

    def allgather_coalesced(self, output_lists: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> Work:
        """For each rank a list of what all inputs are there."""
        if not inputs:
            return Together([])
        place, calls, flats, mine = self._place(inputs[0]), [], [], [whole(tensor) for tensor in inputs]
        handle = place.comm.handle
        for tensor in mine:
            flats.append(torch.empty(self.comm.size * tensor.numel(), dtype=tensor.dtype, device=tensor.device))
            (count, dtype), source, target = moved(tensor), address(tensor), address(flats[-1])
            calls.append(lambda stream, source=source, target=target, count=count, dtype=dtype:
                         lib.pk_allgather(source, target, count, dtype, handle, stream))

        def finish() -> None:
            for position, flat in enumerate(flats):
                spread(flat, [output_list[position] for output_list in output_lists])
        return self._begin(place, "allgather", calls, mine, [t for output_list in output_lists for t in output_list], flats, finish)

    def allgather_into_tensor_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> Work:
        return Together([self._allgather_base(output, input) for output, input in zip(outputs, inputs)])

    def reduce_scatter_tensor_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> Work:
        return Together([self._reduce_scatter_base(output, input, opts) for output, input in zip(outputs, inputs)])

    def reduce_scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any) -> Work:
        output, parts = one(outputs, "reduce_scatter"), inputs[0]
        if uneven(parts, self.comm.size):
            return self._reduce_to_each(output, [whole(part) for part in parts], opts)
        alike(parts, output, self.comm.size, "reduce_scatter")
        return self._reduce_scatter(output, flattened(parts), opts)

    def _reduce_to_each(self, output: Tensor, parts: List[Tensor], opts: Any) -> Work:
        """A reduce_scatter of blocks that differ in length."""
        alike([parts[self.comm.rank]], output, 1, "reduce_scatter")
        memory, op = whole(output), reduction(opts)
        kinds, place = [combined(part, op) for part in parts], self._place(output)
        handle, target = place.comm.handle, address(memory)

        def call(root: int, part: Tensor) -> Callable[[Any], int]:
            (count, dtype, how), source = kinds[root], address(part)
            return lambda stream: lib.pk_reduce(source, target, count, dtype, how, root, handle, stream)
        return self._begin(place, "reduce_scatter", [call(root, part) for root, part in enumerate(parts)], parts, [output], [memory],
                           copies_back([output], [memory]))

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if input.numel() != output.numel() * self.comm.size or output.dtype != input.dtype:
            raise refuse("reduce_scatter: the input must be %d times as long and of the same type" % self.comm.size,
                         "reduce_scatter")
        return self._reduce_scatter(output, whole(input), opts)

    reduce_scatter_single = reduce_scatter_tensor = _reduce_scatter_base

    def _reduce_scatter(self, output: Tensor, flat: Tensor, opts: Any) -> Work:
        memory = whole(output)
        (count, dtype, op), place = combined(memory, SUM if opts is None else reduction(opts)), self._place(output)
        source, target, handle = address(flat), address(memory), place.comm.handle
        return self._begin(place, "reduce_scatter",
                           [lambda stream: lib.pk_reduce_scatter(source, target, count, dtype, op, handle, stream)],
                           [flat], [output], [memory], copies_back([output], [memory]))

    def alltoall_base(self, output: Tensor, input: Tensor, output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> Work:
        """Blocks of rows; without lists all are as long."""
        if not output.is_contiguous() or output.dtype != input.dtype:
            raise refuse("alltoall: the output must be contiguous and of the input's type", "alltoall")
        source_tensor, place = whole(input), self._place(input)
        handle = place.comm.handle
        dtype, scale = blocks_of(input)
        array = ctypes.c_size_t * self.comm.size
        sent, got = (array(*lengths(t, splits, self.comm.size, scale)) for t, splits in
                     ((source_tensor, input_splits), (output, output_splits)))
        source, target = address(source_tensor), address(output)
        return self._begin(place, "alltoall",
                           [lambda stream: lib.pk_alltoallv(source, sent, None, target, got, None, dtype, handle, stream)],
                           [source_tensor], [output])

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> Work:
        if len(outputs) != self.comm.size or len(inputs) != self.comm.size:
            raise refuse("alltoall: %d and %d tensors for %d ranks" % (len(outputs), len(inputs), self.comm.size), "alltoall")
        return self._exchange("alltoall", list(enumerate(inputs)), list(enumerate(outputs)))

    def gather(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any) -> Work:
        parts, mine = outputs[0] if outputs else [], whole(one(inputs, "gather"))
        if self.comm.rank == opts.rootRank:
            alike(parts, mine, self.comm.size, "gather")
        flat, lies_so = flat_for(parts) if parts else (mine, True)
        (count, dtype), root, place = moved(mine), opts.rootRank, self._place(mine)
        source, target, handle = address(mine), address(flat), place.comm.handle
        return self._begin(place, "gather", [lambda stream: lib.pk_gather(source, target, count, dtype, root, handle, stream)],
                           [mine], parts, [flat], None if lies_so else lambda: spread(flat, parts))

    def scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any) -> Work:
        output, root = one(outputs, "scatter"), opts.rootRank
        memory, place = whole(output), self._place(output)
        flat, handle = memory, place.comm.handle
        if self.comm.rank == root:
            alike(inputs[0], output, self.comm.size, "scatter")
            flat = flattened(inputs[0])
        (count, dtype), source, target = moved(memory), address(flat), address(memory)
        return self._begin(place, "scatter", [lambda stream: lib.pk_scatter(source, target, count, dtype, root, handle, stream)],
                           [flat], [output], [memory], copies_back([output], [memory]))

    # ---- point to point ----

    def send(self, tensors: List[Tensor], dest: int, tag: int = 0) -> Work:
        without_tag(tag)
        return self._exchange("send", [(dest, one(tensors, "send"))], [], lane=("send", dest))

    def recv(self, tensors: List[Tensor], source: int, tag: int = 0) -> Work:
        without_tag(tag)
        return self._exchange("recv", [], [(source, one(tensors, "recv"))], lane=("recv", source))

    def recv_anysource(self, tensors: List[Tensor], tag: int = 0) -> Work:
        raise unsupported("a receive must name its rank")

    def _exchange(self, name: str, sends: List[Tuple[int, Tensor]], receives: List[Tuple[int, Tensor]],
                  finish: Finish = None, lane: Lane = None) -> Any:
        place = self._place((sends or receives)[0][1])
        handle, calls = place.comm.handle, []
        sources = [whole(tensor) for _, tensor in sends]
        targets = [tensor for _, tensor in receives]
        memory = [whole(tensor) for tensor in targets]
        for function, peers, tensors in ((lib.pk_send, sends, sources), (lib.pk_recv, receives, memory)):
            for (peer, _), tensor in zip(peers, tensors):
                (count, dtype), pointer = moved(tensor), address(tensor)
                calls.append(lambda stream, function=function, pointer=pointer, count=count, dtype=dtype, peer=peer:
                             function(pointer, count, dtype, peer, handle, stream))
        return self._begin(place, name, calls, sources, targets, memory, finish or copies_back(targets, memory), lane)

    # ---- several at once (batch_isend_irecv) ----

    def _start_coalescing(self, *_: Any) -> None:
        if self.coalescing is not None: # torch does not end what an exception has interrupted
            self._end_coalescing()
        self.coalescing = []
        self.grouped = streams.group()
        self.grouped.__enter__()

    def _end_coalescing(self, *_: Any) -> Optional[Work]:
        works, self.coalescing = self.coalescing or [], None
        self.grouped.__exit__(None)
        for work in works:
            if isinstance(work, GpuWork):
                work.mark()
        return Together(works) if works else None

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing


def leave_untraced(group: Any, *others: str) -> None:
    """All operations, which are the methods that return a Work, and others."""
    for name, method in list(vars(group).items()):
        if name in others or inspect.isfunction(method) and inspect.signature(method).return_annotation is Work:
            setattr(group, name, untraced(method))


leave_untraced(ProcessGroupPickle, "_start_coalescing", "start_coalescing", "_end_coalescing", "end_coalescing")



def copies_back(tensors: Sequence[Tensor], places: Sequence[Tensor]) -> Finish:
    """What arrived in contiguous copies goes where it belongs."""
    pairs = [(tensor, place) for tensor, place in zip(tensors, places) if tensor is not place]
    if not pairs:
        return None

    def finish() -> None:
        for tensor, place in pairs:
            tensor.copy_(place)
    return finish


def spread(flat: Tensor, parts: Sequence[Tensor]) -> None:
    for part, piece in zip(parts, flat.chunk(len(parts)) if flat.numel() else ()):
        part.copy_(piece.view(part.shape))


def blocks_of(tensor: Tensor) -> Tuple[DType, int]:
    """Type of what is moved, and how many of it an element is."""
    dtype = TYPES.get(tensor.dtype)
    return (dtype, 1) if dtype is not None else (BYTES, tensor.element_size())


def lengths(tensor: Tensor, splits: Sequence[int], size: int, scale: int) -> List[int]:
    """Elements of each rank's block."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            raise refuse("alltoall: %d rows are not a block for each of %d ranks" % (rows, size), "alltoall")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise refuse("alltoall: blocks of %s rows are not the %d that there are" % (list(splits), rows), "alltoall")
    row = tensor.numel() // rows * scale if rows else 0
    return [count * row for count in splits]


def without_tag(tag: int) -> None:
    if tag:
        raise unsupported("no tags (%d): messages of a pair of ranks are received in the order in which they were sent" % tag)


# ---- how torch makes one ----

SLACK = 0.5 # seconds


def create(store: Any, rank: int, size: int, timeout: Any) -> ProcessGroupPickle:
    """How torch makes a group."""
    limit = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    return ProcessGroupPickle(created(store, "pickle/id", rank, size, limit, "host"), limit, store)


def created(store: Any, key: str, rank: int, size: int, limit: float, device: Union[int, str]) -> Communicator:
    """Rank 0 makes the id, and the store hands it round; all of it within the deadline."""
    begun = time.monotonic()
    if rank == 0:
        id = unique_id()
        store.set(key, id.hex())
    else:
        try:
            store.wait([key], datetime.timedelta(seconds=limit))
            id = bytes.fromhex(store.get(key).decode())
        except RuntimeError as error:
            raise late(rank, limit, "rank 0 has put no id into torch's store, or the store is gone: %s" % error) from error
    return made_until(id, size, rank, limit, begun + limit + SLACK, device)


def made_until(id: bytes, size: int, rank: int, limit: float, end: float, device: Union[int, str]) -> Communicator:
    """A communicator whose operations have the whole deadline, though a part of it may have passed. SLACK leaves the library the
    time to say who is missing."""
    comm = Communicator.__new__(Communicator)
    comm.handle = ctypes.c_void_p()
    config = config_of(device, None, 0, limit)
    config.nonblocking = 1
    raw = structures["pk_unique_id"].from_buffer_copy(id)
    result = lib.pk_comm_init_rank(ctypes.byref(comm.handle), size, rank, ctypes.byref(raw), ctypes.byref(config))
    pause = 0.0002
    while result == IN_PROGRESS and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
        result = lib.pk_comm_async_error(comm.handle)
    if result:
        error = late(rank, limit, "not all ranks have come") if result == IN_PROGRESS else error_of(result)
        if comm.handle:
            lib.pk_comm_abort(comm.handle)
            lib.pk_comm_destroy(comm.handle)
            comm.handle = ctypes.c_void_p()
        raise error
    comm._learn() # pylint: disable=protected-access
    return comm


def late(rank: int, limit: float, why: str) -> Error:
    made = DeadlineError("rank %d: init has not ended within %g s: %s" % (rank, limit, why))
    made.code, made.text, made.rank, made.operation = CONSTANTS["PK_ERR_TIMEOUT"], str(made), rank, "init"
    return made


def register() -> None:
    """Make the name known to torch; `import libpickle.torch` does it."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    more = {"devices": ["cpu", "cuda"]} if "devices" in inspect.signature(dist.Backend.register_backend).parameters else {}
    dist.Backend.register_backend(NAME, create, **more)


def autoload() -> None:
    """What torch 2.5 and newer call at `import torch` (entry point group torch.backends): it must not fail."""
    try:
        register()
    except Exception: # pylint: disable=broad-except
        pass


register()
