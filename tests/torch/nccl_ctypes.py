# SPDX-License-Identifier: Apache-2.0
"""NCCL's calls through ctypes, as vLLM makes them: whichever library the path names."""
import ctypes
import re

FLOAT32, FLOAT16, SUM = 7, 6, 0
WIN_COLL_SYMMETRIC = 1


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


POINTER, SIZE, INTEGER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SIGNATURES = {
    "ncclGetVersion": [POINTER],
    "ncclGetUniqueId": [POINTER],
    "ncclCommInitRank": [POINTER, INTEGER, UniqueId, INTEGER],
    "ncclAllReduce": [POINTER, POINTER, SIZE, INTEGER, INTEGER, POINTER, POINTER],
    "ncclReduce": [POINTER, POINTER, SIZE, INTEGER, INTEGER, INTEGER, POINTER, POINTER],
    "ncclAllGather": [POINTER, POINTER, SIZE, INTEGER, POINTER, POINTER],
    "ncclReduceScatter": [POINTER, POINTER, SIZE, INTEGER, INTEGER, POINTER, POINTER],
    "ncclSend": [POINTER, SIZE, INTEGER, INTEGER, POINTER, POINTER],
    "ncclRecv": [POINTER, SIZE, INTEGER, INTEGER, POINTER, POINTER],
    "ncclBroadcast": [POINTER, POINTER, SIZE, INTEGER, INTEGER, POINTER, POINTER],
    "ncclCommDestroy": [POINTER],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommWindowRegister": [POINTER, POINTER, SIZE, POINTER, INTEGER],
    "ncclCommWindowDeregister": [POINTER, POINTER],
    "ncclMemAlloc": [POINTER, SIZE],
    "ncclMemFree": [POINTER],
}


class Nccl:
    """Each call raises when the library returns an error."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name, arguments in SIGNATURES.items():
            function = getattr(self.lib, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self.lib.ncclGetErrorString.argtypes, self.lib.ncclGetErrorString.restype = [ctypes.c_int], ctypes.c_char_p
        self.lib.ncclGetLastError.argtypes, self.lib.ncclGetLastError.restype = [ctypes.c_void_p], ctypes.c_char_p

    def last_error(self, comm=None):
        return (self.lib.ncclGetLastError(comm) or b"").decode(errors="replace")

    def call(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result != 0:
            text = self.lib.ncclGetErrorString(result).decode(errors="replace")
            raise RuntimeError("%s: %d, %s: %s" % (name, result, text, self.last_error()))

    def version(self):
        version = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(version))
        return version.value

    def unique_id(self):
        own = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(own))
        return bytes(bytearray(own))

    def init(self, size, identity, rank):
        comm = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(comm), size, UniqueId.from_buffer_copy(identity), rank)
        return comm


def mapped():
    """The files that this process has mapped as a libnccl."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sorted({line.split()[-1] for line in maps if "/libnccl" in line})


def says_wrong(output, expect):
    """With NCCL_DEBUG=VERSION the library that is used says which it is; what is wrong with that, or None. The other may be mapped as
    well, by a package that opens it by its path and does not use it."""
    pickle, nccl = " of libpickle " in output, re.search(r"^NCCL version \d", output, re.M) is not None
    if pickle == nccl:
        return "both libraries were used" if pickle else "no library said which it is"
    return "the other library was used" if expect in ("pickle", "nccl") and pickle != (expect == "pickle") else None
