# SPDX-License-Identifier: Apache-2.0
"""Finds libpickle.so and gives its functions the types that the headers declare."""
import ctypes
import os
from typing import Callable, List, Optional, TypeVar

from . import _declarations
from ._declarations import CONSTANTS, FUNCTIONS, LIBDIR, MANUAL, STRUCTURES

SONAME = "libpickle.so.%d" % CONSTANTS["PK_VERSION_MAJOR"]
VERSION: str = _declarations.VERSION


class DType(ctypes.c_int):
    """An element type: one object for each, so that types are compared by identity."""
    name = "?"
    size = 0
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "libpickle.%s" % self.name.upper()


class Op(ctypes.c_uint64):
    """A reduction: SUM, PROD, MIN, MAX, AVG, or made by Communicator.Premultiplied_sum."""
    __hash__ = object.__hash__


def candidates() -> List[str]:
    """Where the library may lie, in order: what PICKLE_LIBRARY names; beside the package (a wheel); in the tree or the
    prefix that the package lies in; where the loader looks."""
    if os.environ.get("PICKLE_LIBRARY"):
        return [os.environ["PICKLE_LIBRARY"]]
    here = os.path.dirname(os.path.abspath(__file__))
    found = [os.path.join(here, "lib", SONAME)]
    above = here
    for _ in range(4): # PREFIX/lib/pythonX.Y/site-packages/libpickle
        above = os.path.dirname(above)
        found += [os.path.join(above, folder, SONAME) for folder in dict.fromkeys((LIBDIR, "lib"))]
    return [path for path in found if os.path.exists(path)] + [SONAME]


def structure_of(name: str) -> type:
    kinds = {"c_char": ctypes.c_char, "c_ubyte": ctypes.c_ubyte, **{kind: getattr(ctypes, kind) for kind in (
        "c_int", "c_size_t", "c_uint64", "c_double", "c_void_p")}}
    fields = [(field, kinds[kind] * length if length else kinds[kind]) for field, kind, length in STRUCTURES[name]]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


structures = {name: structure_of(name) for name in STRUCTURES}


def load() -> ctypes.CDLL:
    path = candidates()[0]
    library = ctypes.CDLL(path)
    types = {"pk_stream": structures["pk_stream"], None: None}
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = types[result] if result in types else getattr(ctypes, result)
        function.argtypes = [types[kind] if kind in types else getattr(ctypes, kind) for kind in arguments]
    return library


lib = load()
# For the calls that are made most: without argument types, which ctypes would convert one by one. Whoever calls these hands over
# objects of ctypes, or an int where C has an int.
quick = ctypes.CDLL(lib._name)


def sized(name: str, **values: int) -> ctypes.Structure:
    """A structure whose first field says how long it is."""
    made = structures[name](**values)
    made.struct_size = ctypes.sizeof(made)
    return made


Function = TypeVar("Function", bound=Callable)


def manual(*names: str) -> Callable[[Function], Function]:
    """Adds the headers' manual of C functions to a docstring."""
    def add(function: Function) -> Function:
        words: List[Optional[str]] = [function.__doc__]
        words += ["%s, as the header has it:\n\n%s" % (name, MANUAL[name]) for name in names]
        function.__doc__ = "\n\n".join(part for part in words if part)
        return function
    return add


def dtypes() -> List[DType]:
    made = []
    for code in range(CONSTANTS["PK_DTYPE_COUNT"]):
        dtype = DType(code)
        dtype.name = lib.pk_dtype_name(code).decode()
        dtype.size = lib.pk_dtype_size(code)
        made.append(dtype)
    return made


DTYPES = dtypes()
SUM, PROD, MIN, MAX, AVG = (Op(CONSTANTS["PK_" + name]) for name in ("SUM", "PROD", "MIN", "MAX", "AVG"))
