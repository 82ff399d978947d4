# SPDX-License-Identifier: Apache-2.0
"""The store that ranks of a test meet at: a process of its own serves it, so that no rank's end is the end of the store."""
import datetime
import os
import signal

import torch.distributed as dist


class Store:
    def __init__(self, seconds):
        self.timeout = datetime.timedelta(seconds=seconds)
        self.parent = os.getpid()
        end, begin = os.pipe()
        self.server = os.fork()
        if self.server == 0:
            server = dist.TCPStore("127.0.0.1", 0, None, True, self.timeout, wait_for_workers=False)
            os.write(begin, b"%d" % server.port)
            signal.pause()
        self.port = int(os.read(end, 16))

    def client(self):
        return dist.TCPStore("127.0.0.1", self.port, None, False, datetime.timedelta(seconds=60), wait_for_workers=False)

    def __del__(self):
        if os.getpid() == self.parent:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)
