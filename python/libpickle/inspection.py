# SPDX-License-Identifier: Apache-2.0
"""What the library tells of itself, as dictionaries and text."""
import ctypes
from typing import Any, Dict

from ._library import lib, manual
from .errors import check


def fields_of(made: ctypes.Structure) -> Dict[str, Any]:
    values = ((name, getattr(made, name)) for name, *_ in made._fields_ if name != "struct_size")
    return {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in values}


def text_of(dump: Any, handle: Any) -> str:
    needed = ctypes.c_size_t()
    check(dump(handle, None, 0, ctypes.byref(needed)))
    text = ctypes.create_string_buffer(needed.value + 4096) # it may be longer a moment later
    check(dump(handle, text, len(text), ctypes.byref(needed)))
    return text.value.decode(errors="replace")


@manual("pk_topology_dump")
def topology() -> str:
    """What this machine looks like."""
    return text_of(lib.pk_topology_dump, None)
