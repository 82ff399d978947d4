# SPDX-License-Identifier: Apache-2.0
"""What a call of the library raises: one class for each result, all of them `Error`."""
import ctypes
from typing import Dict, Optional, Type

from ._library import CONSTANTS, lib, sized


class Error(RuntimeError):
    """A call failed. Its words name who, whom, what and why. (Programs of torch catch RuntimeError around its operations.)"""

    #: the number of the result, as in base.h
    code: int = CONSTANTS["PK_ERR_INTERNAL"]
    #: the same in one line
    text: str = ""
    #: this rank; None where no communicator was involved
    rank: Optional[int] = None
    #: the rank that died, disagreed or is missing; None where there is none in particular
    peer: Optional[int] = None
    #: "allreduce", "send", "init", ...; empty where there is none
    operation: str = ""
    #: number of the operation in its communicator; 0 where there is none
    number: int = 0
    #: errno of the system call that failed, or 0 (not `errno`, which TimeoutError has)
    sys_errno: int = 0


class ArgumentError(Error, ValueError):
    """An argument is invalid; the operation has not taken part in anything."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough host or device memory."""


class SystemCallError(Error):
    """A call to the system or to a driver failed: `sys_errno`."""


class UnsupportedError(Error):
    """Legal, but not possible here."""


class NeedsSMError(Error):
    """The operation needs a kernel, which the communicator's sm_policy forbids."""


class MismatchError(Error):
    """The ranks disagree about the operation."""


class DeadlineError(Error, TimeoutError):
    """A deadline passed; the text names the ranks that are missing."""


class PeerError(Error):
    """Another rank died, or its connection broke."""


class AbortedError(Error):
    """The communicator was aborted, here or by another rank."""


class RevokedError(Error):
    """The communicator was revoked, here or by another rank: the ranks can agree and shrink it."""


class AuthError(Error):
    """A peer could not prove that it knows the secret."""


class InternalError(Error):
    """A broken invariant of the library: please report it."""


CLASSES: Dict[int, Type[Error]] = {CONSTANTS["PK_ERR_" + name]: cls for name, cls in {
    "ARG": ArgumentError, "MEMORY": OutOfMemoryError, "SYSTEM": SystemCallError, "UNSUPPORTED": UnsupportedError,
    "NEEDS_SM": NeedsSMError, "MISMATCH": MismatchError, "TIMEOUT": DeadlineError, "PEER": PeerError, "ABORTED": AbortedError,
    "AUTH": AuthError, "INTERNAL": InternalError, "REVOKED": RevokedError}.items()}


def error_of(result: int) -> Error:
    """The exception of a result other than PK_OK, with the record of the calling thread."""
    info = sized("pk_error_info")
    lib.pk_last_error(ctypes.byref(info))
    known = info.code == result
    text = info.text.decode(errors="replace") if known else lib.pk_strerror(result).decode()
    error = CLASSES.get(result, InternalError)(text)
    error.code, error.text = result, text
    if known:
        error.rank = info.rank if info.rank >= 0 else None
        error.peer = info.peer if info.peer >= 0 else None
        error.operation, error.number, error.sys_errno = info.op.decode(), info.op_number, info.sys_errno
    return error


def check(result: int) -> None:
    if result:
        raise error_of(result)


def refuse(text: str, operation: str = "") -> ArgumentError:
    """An argument that is refused before the library is asked."""
    error = ArgumentError(text)
    error.code, error.text, error.operation = CONSTANTS["PK_ERR_ARG"], text, operation
    return error
