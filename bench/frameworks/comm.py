# SPDX-License-Identifier: Apache-2.0
"""What the studies' models call of torch.distributed. It can be left out, for what a step takes without it."""
import contextlib

import torch
import torch.distributed as dist


class Comm:
    """Ranks that share a model. `members`: their numbers in the job; None: all. Every rank of the job makes it."""

    def __init__(self, members=None):
        self.members = list(range(dist.get_world_size())) if members is None else members
        self.group = None if members is None else dist.new_group(members)
        self.size = len(self.members)
        self.rank = self.members.index(dist.get_rank()) if dist.get_rank() in self.members else None
        self.on = self.size > 1

    @contextlib.contextmanager
    def left_out(self):
        was, self.on = self.on, False
        try:
            yield
        finally:
            self.on = was

    def all_reduce(self, tensor):
        if self.on:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def add_gradients(self, model):
        """Of all ranks, in one operation."""
        gradients = [one.grad for one in model.parameters()]
        flat = self.all_reduce(torch.cat([one.flatten() for one in gradients]))
        for one, part in zip(gradients, flat.split([one.numel() for one in gradients])):
            one.copy_(part.view_as(one))

    def all_to_all(self, tensor):
        """Rows for each rank in turn, as many for one as for the other."""
        if not self.on:
            return tensor
        out = torch.empty_like(tensor)
        dist.all_to_all_single(out, tensor.contiguous(), group=self.group)
        return out

    def exchange(self, sends=(), receives=()):
        """Begin (tensor, rank of this group) of each; what wait() takes. Nothing is received where communication is left out."""
        if not self.on:
            return []
        one_each = [dist.P2POp(dist.isend, tensor, self.members[peer], self.group) for tensor, peer in sends]
        one_each += [dist.P2POp(dist.irecv, tensor, self.members[peer], self.group) for tensor, peer in receives]
        return dist.batch_isend_irecv(one_each) if one_each else []

    @staticmethod
    def wait(works):
        for work in works:
            work.wait()


def alone():
    """A rank by itself."""
    comm = Comm.__new__(Comm)
    comm.members, comm.group, comm.size, comm.rank, comm.on = [dist.get_rank()], None, 1, 0, False
    return comm


class Enter(torch.autograd.Function):
    """Into a part that ranks share: every rank has the whole; the gradients of the parts are added up."""

    @staticmethod
    def forward(ctx, tensor, comm):
        ctx.comm = comm
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return ctx.comm.all_reduce(grad.contiguous()), None  # one layer's own: nobody else holds it


class Leave(torch.autograd.Function):
    """Out of it: what the ranks computed is added up."""

    @staticmethod
    def forward(ctx, tensor, comm):
        ctx.mark_dirty(tensor)
        return comm.all_reduce(tensor)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Exchange(torch.autograd.Function):
    """All to all, and back for the gradients."""

    @staticmethod
    def forward(ctx, tensor, comm):
        ctx.comm = comm
        return comm.all_to_all(tensor) if comm.on else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return ctx.comm.all_to_all(grad), None


class Edge(torch.nn.Module):
    """A module that does one of these."""

    def __init__(self, function, comm):
        super().__init__()
        self.function, self.comm = function, comm

    def forward(self, tensor):
        return self.function.apply(tensor, self.comm)
