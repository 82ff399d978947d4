# SPDX-License-Identifier: Apache-2.0
"""Memory of other packages: what has the buffer protocol (bytes, array, memoryview, NumPy), torch's tensors, and what has
__cuda_array_interface__ or __dlpack__ (CuPy, JAX, Numba). Nothing is copied.

A describer makes of an object what the library's functions take: (pointer, elements, type). SOURCE and TARGET have one for each
class that was seen, for buffers that are read and that are written."""
import ctypes
from typing import Any, Callable, Dict, Optional, Tuple, Union

from ._library import DTYPES, DType
from .errors import refuse

Description = Tuple[Any, int, DType]
Describer = Callable[[Any], Description]

BY_NAME: Dict[str, DType] = {dtype.name: dtype for dtype in DTYPES}
BY_NAME.update({alias: BY_NAME[name] for alias, name in {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}.items()})
BY_KIND = {(kind, dtype.size): dtype for dtype in DTYPES for kind, prefix in (("i", "int"), ("u", "uint"), ("f", "f"))
           if dtype.name == prefix + str(8 * dtype.size) and dtype.name[:2] != "f8"}
KIND_OF_FORMAT = {**dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQNc", "u"), **dict.fromkeys("efd", "f")}
PLACE = (ctypes.c_char * 0).from_buffer # where writable memory begins, in the form that ctypes passes soonest
NUMPY: Dict[Any, DType] = {} # types of NumPy, from the first array on


class Buffer:
    """A buffer whose description is made once, for programs that use it again and again. It keeps its owner, whose memory must
    not be resized meanwhile.

    `dtype` names the type where the owner cannot, for example "bf16" for 16-bit integers."""
    __slots__ = ("owner", "source", "target")

    def __init__(self, owner: Any, dtype: Optional[str] = None) -> None:
        self.owner = owner
        self.source: Description = as_type(SOURCE[type(owner)](owner), dtype)
        try:
            self.target: Optional[Description] = as_type(TARGET[type(owner)](owner), dtype)
        except ValueError: # it may be read alone
            self.target = None


def as_type(described: Description, name: Optional[str]) -> Description:
    """The same memory as elements of another type."""
    if name is None:
        return described
    pointer, count, dtype = described
    wanted = BY_NAME.get(name)
    if wanted is None:
        raise refuse("there is no type %r; the types are %s" % (name, ", ".join(BY_NAME)))
    if count * dtype.size % wanted.size:
        raise refuse("%d bytes are no whole number of elements of %s" % (count * dtype.size, wanted.name))
    return pointer, count * dtype.size // wanted.size, wanted


def address_of(pointer: Any) -> int:
    return (pointer.value or 0) if isinstance(pointer, ctypes.c_void_p) else ctypes.addressof(pointer)


def after(pointer: Any, elements: int, dtype: DType) -> ctypes.c_void_p:
    """A number of elements behind a pointer."""
    return ctypes.c_void_p(address_of(pointer) + elements * dtype.size)


# ---- the buffer protocol ----

class PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


ctypes.pythonapi.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(PyBuffer), ctypes.c_int]
ctypes.pythonapi.PyBuffer_Release.argtypes = [ctypes.POINTER(PyBuffer)]
ctypes.pythonapi.PyBuffer_Release.restype = None


def dtype_of_format(code: str, itemsize: int) -> DType:
    little = code.lstrip("@=<")
    dtype = BY_KIND.get((KIND_OF_FORMAT.get(little, "?"), itemsize))
    if dtype is None:
        raise refuse("elements of format %r and %d bytes have no type in the library; [buffer, 'uint8'] moves them as bytes"
                     % (code, itemsize))
    return dtype


def described_memory(owner: Any, writable: bool, any_type: bool = False) -> Description:
    with memoryview(owner) as view:
        if not view.c_contiguous:
            raise refuse("the buffer is not contiguous")
        if writable and view.readonly:
            raise refuse("the buffer is read-only, and would be written")
        dtype = BY_NAME["uint8"] if any_type else dtype_of_format(view.format, view.itemsize)
        raw = PyBuffer()
        ctypes.pythonapi.PyObject_GetBuffer(view, ctypes.byref(raw), 0)
        pointer = ctypes.c_void_p(raw.buf)
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
        return pointer, view.nbytes // dtype.size, dtype


def numpy_describers(cls: type) -> Tuple[Describer, Describer]:
    """Without a memoryview, for writable arrays: they are what is passed most."""
    import numpy
    NUMPY.update({numpy.dtype(name): BY_NAME[name] for name in (
        "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")})

    def target(array: Any) -> Description:
        try:
            return PLACE(array), array.size, NUMPY[array.dtype]
        except (TypeError, KeyError): # not contiguous, read-only, another type
            return described_memory(array, True)

    def source(array: Any) -> Description:
        try:
            return PLACE(array), array.size, NUMPY[array.dtype]
        except (TypeError, KeyError):
            return described_memory(array, False)

    return source, target


# ---- torch, __cuda_array_interface__, DLPack ----

def torch_tensor(tensor: Any) -> Description:
    name = str(tensor.dtype).rpartition(".")[2]
    if name not in BY_NAME:
        raise refuse("tensors of %s have no type in the library; tensor.view(torch.uint8) moves them as bytes" % tensor.dtype)
    if not tensor.is_contiguous() or str(tensor.layout) != "torch.strided":
        raise refuse("the tensor is not contiguous")
    return ctypes.c_void_p(tensor.data_ptr()), tensor.numel(), BY_NAME[name]


def number_of(shape: Any) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def is_contiguous(shape: Any, strides: Any, unit: int) -> bool:
    expected = unit
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def cuda_array(owner: Any, writable: bool) -> Description:
    interface = owner.__cuda_array_interface__
    kind = interface["typestr"]
    size = int(kind[2:])
    dtype = BY_KIND.get((kind[1], size))
    if dtype is None or kind[0] == ">":
        raise refuse("elements of type %r have no type in the library" % kind)
    shape, strides = interface["shape"], interface.get("strides")
    if strides is not None and not is_contiguous(shape, strides, size):
        raise refuse("the buffer is not contiguous")
    address, read_only = interface["data"]
    if writable and read_only:
        raise refuse("the buffer is read-only, and would be written")
    return ctypes.c_void_p(address), number_of(shape), dtype


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int * 2), ("ndim", ctypes.c_int), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
DLPACK_KINDS = {0: "i", 1: "u", 2: "f"}
DLPACK_MEMORY = (1, 2, 3, 13) # of the host, of CUDA, pinned by CUDA, managed by CUDA


class HeldPointer(ctypes.c_void_p):
    """An address, and what keeps its memory."""
    held: Any = None


def dlpack(owner: Any) -> Description:
    capsule = owner.__dlpack__()
    tensor = DLTensor.from_address(ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor"))
    if tensor.device[0] not in DLPACK_MEMORY:
        raise refuse("memory of DLPack device %d is neither the host's nor CUDA's" % tensor.device[0])
    size = tensor.bits * tensor.lanes // 8
    dtype = BY_NAME["bf16"] if tensor.code == 4 and size == 2 else BY_KIND.get((DLPACK_KINDS.get(tensor.code, "?"), size))
    if dtype is None or tensor.lanes != 1:
        raise refuse("elements of DLPack type %d and %d bits have no type in the library" % (tensor.code, tensor.bits))
    shape = tensor.shape[:tensor.ndim]
    if tensor.strides and not is_contiguous(shape, tensor.strides[:tensor.ndim], 1):
        raise refuse("the buffer is not contiguous")
    pointer = HeldPointer((tensor.data or 0) + tensor.byte_offset)
    pointer.held = capsule
    return pointer, number_of(shape), dtype


# ---- [buffer, type], and which describer a class has ----

def with_type(spec: Any, table: Dict[type, Describer]) -> Description:
    if len(spec) != 2 or not isinstance(spec[1], str):
        raise refuse("a buffer is an object with memory, or [object, type] with the name of a type")
    owner, name = spec
    describe = table[type(owner)]
    try:
        described = describe(owner)
    except ValueError:
        if not is_plain(type(owner)):
            raise
        described = described_memory(owner, table is TARGET, any_type=True)
    return as_type(described, name)


def is_plain(cls: type) -> bool:
    """Does the class have the buffer protocol?"""
    return not any(hasattr(cls, name) for name in ("data_ptr", "__cuda_array_interface__")) and has_memory(cls)


def has_memory(cls: type) -> bool:
    return cls.__module__ == "numpy" or not hasattr(cls, "__dlpack__")


def target_of_buffer(buffer: Buffer) -> Description:
    if buffer.target is None:
        raise refuse("the buffer is read-only, and would be written")
    return buffer.target


def describers(cls: type) -> Tuple[Describer, Describer]:
    if cls is Buffer:
        return (lambda buffer: buffer.source), target_of_buffer
    if cls in (list, tuple):
        return (lambda spec: with_type(spec, SOURCE)), (lambda spec: with_type(spec, TARGET))
    if cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        return numpy_describers(cls)
    if hasattr(cls, "data_ptr"):
        return torch_tensor, torch_tensor
    if hasattr(cls, "__cuda_array_interface__"):
        return (lambda owner: cuda_array(owner, False)), (lambda owner: cuda_array(owner, True))
    if not has_memory(cls):
        return dlpack, dlpack
    return (lambda owner: described_memory(owner, False)), (lambda owner: described_memory(owner, True))


class Describers(dict):
    """Describers by class; those of a new class are chosen when it is first seen."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.which = which

    def __missing__(self, cls: type) -> Describer:
        self[cls] = describers(cls)[self.which]
        return self[cls]


SOURCE: Dict[type, Describer] = Describers(0)
TARGET: Dict[type, Describer] = Describers(1)
BufferLike = Union[Buffer, Any]


# ---- blocks of different lengths: [buffer, counts], [buffer, (counts, offsets)], and a type behind ----

def described_blocks(spec: Any, size: int, table: Dict[type, Describer]) -> Tuple[Any, Any, Any, DType]:
    """(pointer, counts, offsets or None, type), when all blocks lie within the buffer."""
    if not isinstance(spec, (list, tuple)) or len(spec) not in (2, 3):
        raise refuse("blocks are given as [buffer, counts] or [buffer, (counts, offsets)], with the name of a type behind or not")
    blocks = spec[1]
    nested = isinstance(blocks, tuple) and len(blocks) == 2 and not isinstance(blocks[0], int)
    counts, offsets = blocks if nested else (blocks, None)
    owner = spec[0] if len(spec) == 2 else [spec[0], spec[2]]
    pointer, elements, dtype = table[type(owner)](owner)
    counts = [int(count) for count in counts]
    places = [sum(counts[:rank]) for rank in range(len(counts))] if offsets is None else [int(offset) for offset in offsets]
    if len(counts) != size or len(places) != size:
        raise refuse("there are %d counts and %d offsets for %d ranks" % (len(counts), len(places), size))
    for rank, (count, place) in enumerate(zip(counts, places)):
        if count < 0 or place < 0 or place + count > elements:
            raise refuse("the block of rank %d, %d elements from %d, does not lie in a buffer of %d"
                         % (rank, count, place, elements))
    array = ctypes.c_size_t * size
    return pointer, array(*counts), array(*places), dtype
