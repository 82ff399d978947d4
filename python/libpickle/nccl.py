# SPDX-License-Identifier: Apache-2.0
"""Run a program of NCCL, and all that it starts, on libpickle, as the command pickle-nccl does.

usage: python -m libpickle.nccl [--] COMMAND [ARGUMENT...]
       python -m libpickle.nccl --library       print the file that is loaded in NCCL's place"""
import os
import sys
from typing import List

from ._library import lib


def library() -> str:
    """libnccl.so.2 of this package: in a private folder beside the library."""
    path = lib._name # pylint: disable=protected-access
    if not os.path.isabs(path): # the loader has found it
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            path = next(line.split(None, 5)[5].strip() for line in file if os.path.basename(line.strip()).startswith(path))
    return os.path.join(os.path.dirname(os.path.realpath(path)), "pickle", "nccl", "libnccl.so.2")


def main(words: List[str]) -> int:
    path = library()
    if not os.access(path, os.R_OK):
        print("libpickle.nccl: %s is not there" % path, file=sys.stderr)
        return 1
    if words == ["--library"]:
        print(path)
        return 0
    command = words[1:] if words[:1] == ["--"] else words
    if not command or command[0].startswith("-"):
        print(__doc__.partition("usage: ")[2], file=sys.stderr)
        return 2
    os.environ["LD_PRELOAD"] = ":".join(filter(None, (path, os.environ.get("LD_PRELOAD"))))
    os.environ["VLLM_NCCL_SO_PATH"] = path # vLLM opens it by this name
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print("libpickle.nccl: %s: %s" % (command[0], error.strerror), file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
