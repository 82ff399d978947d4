# SPDX-License-Identifier: Apache-2.0
"""The distributed tests that PyTorch ships, for pytest; conftest.py beside it bounds each test and writes the results down.

usage: [BACKEND=nccl] [WORLD_SIZE=2] pytest shipped.py        see shipped.sh, which compares two libraries

SHIPPED_INSTEAD=pickle: where a test asks for BACKEND, or for none, it gets this back end, which libpickle.torch registers, and is
told that it is BACKEND: so it asks of this one what it asks of that.
"""
import functools
import inspect
import os
import socket
import sys
import tempfile
import types
import unittest


def stand_in_for_expecttest():
    """PyTorch's own test cases derive from a small package that comes with its source alone."""
    module = types.ModuleType("expecttest")
    module.TestCase = type("TestCase", (unittest.TestCase,), {})
    module.ACCEPT = False
    sys.modules["expecttest"] = module


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def prepare():
    """What PyTorch's test/run_test.py sets; ranks inherit it from the process that runs pytest."""
    # Ranks are forked from a server that has imported what stands here, which may not open CUDA: GPUs are counted without it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.setdefault("BACKEND", "nccl")
    os.environ.setdefault("WORLD_SIZE", "2")
    os.environ.setdefault("INIT_METHOD", "env://")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    if "TEMP_DIR" not in os.environ:
        os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="shipped-")
        for folder in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(os.environ["TEMP_DIR"], folder))


prepare()
try:
    import expecttest  # pylint: disable=unused-import
except ImportError:
    stand_in_for_expecttest()

import torch  # noqa: E402  pylint: disable=wrong-import-position
from torch.testing._internal.distributed import distributed_test  # noqa: E402  pylint: disable=wrong-import-position

torch.backends.cuda.matmul.allow_tf32 = False
# On a loaded machine one rank may come more than ten seconds after the other.
distributed_test.Barrier.sync.__func__.__defaults__ = (None, 60)


def instead_of(asked, given):
    """Groups of the back end `asked` become groups of `given`, as the tests see it; inside torch they are what they are."""
    import libpickle.torch  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel

    dist = torch.distributed

    def wrapped(make):
        position = list(inspect.signature(make).parameters).index("backend")

        @functools.wraps(make)
        def made(*args, **kwargs):
            args = list(args)
            if len(args) > position:
                args[position] = given if args[position] in (asked, None) else args[position]
            elif kwargs.get("backend") in (asked, None):
                kwargs["backend"] = given
            return make(*args, **kwargs)

        return made

    def get_backend(*args, **kwargs):
        found = original(*args, **kwargs)
        return asked if found == given else found

    original = dist.get_backend
    dist.get_backend = get_backend
    # The events of a back end in Python have no shapes and end with the call, so its operations are asked for their results alone.
    supported = distributed_test.PROFILING_SUPPORTED_BACKENDS
    distributed_test.PROFILING_SUPPORTED_BACKENDS = [name for name in supported if name != asked]
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, wrapped(getattr(dist, name)))


if os.environ.get("SHIPPED_INSTEAD"):
    instead_of(os.environ["BACKEND"], os.environ["SHIPPED_INSTEAD"])


def in_environment(environment, target, *args, **kwargs):
    """The server's environment is that of its start; tests set variables."""
    os.environ.clear()
    os.environ.update(environment)
    target(*args, **kwargs)


class TestShipped(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Each test in ranks of its own. They come from a server: to import torch once a rank takes longer than most tests."""

    def setUp(self):
        super().setUp()
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["shipped"])
        self._start_processes(
            lambda target, **rest: context.Process(
                target=functools.partial(in_environment, dict(os.environ), target), **rest
            )
        )
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False).__enter__()
