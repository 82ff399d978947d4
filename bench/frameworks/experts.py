# SPDX-License-Identifier: Apache-2.0
"""Expert parallel: an expert a rank, every rank's tokens go to the experts and back (all to all, as many to each, as with a
fixed capacity), 32 to 256 tokens a rank; forward and backward. With `shared` the weights are trained, and those that are no
expert's by DistributedDataParallel over the same ranks."""
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from case import Case, adamw
from comm import Edge, Exchange, alone


class Layer(nn.Module):
    def __init__(self, width, hidden, comm):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.there, self.back = Edge(Exchange, comm), Edge(Exchange, comm)
        self.expert = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        return x + self.back(self.expert(self.there(self.mix(self.norm(x)))))


class Experts(Case):
    unit = "tokens"

    def __init__(self, rank, comm, shape, tokens, shared=False):
        self.rank, self.comm, self.shape, self.tokens, self.shared = rank, comm, shape, tokens, shared
        self.layers = self.build(comm)
        self.net = self.layers
        if shared:
            own = [name for name, _ in self.layers.named_parameters() if ".expert." in name]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.layers, own)
            more = {"device_ids": [rank.device.index]} if rank.cuda else {}
            self.net = DistributedDataParallel(self.layers, gradient_as_bucket_view=True, **more)
            self.optimizer = adamw(rank, self.layers)
        self.batch = torch.randn(tokens, shape["width"], device=rank.device, dtype=rank.dtype, generator=rank.generator)
        self.samples = tokens * comm.size
        weights = shape["depth"] * (shape["width"] ** 2 + 2 * shape["width"] * shape["hidden"])
        self.flops = 6 * weights * self.samples

    def build(self, comm):
        with self.rank.builds():
            layers = [Layer(self.shape["width"], self.shape["hidden"], comm) for _ in range(self.shape["depth"])]
        return nn.Sequential(*layers).to(self.rank.device, self.rank.dtype)

    def once(self, net, batch):
        net.zero_grad(set_to_none=True)
        loss = functional.mse_loss(net(batch).float(), batch.float() * 0.5)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def step(self):
        return self.once(self.net, self.batch)

    def alone(self):
        with self.comm.left_out():
            return self.once(self.layers, self.batch)

    def single(self):
        layers = self.build(alone())
        whole = torch.cat([self.batch] * self.comm.size)
        return (lambda: self.once(layers, whole)), self.samples

    def messages(self):
        size = self.batch.element_size()
        block = self.tokens // self.comm.size * self.shape["width"] * size
        found = [("alltoall", block, 4 * self.shape["depth"])]
        if self.shared:
            found.append(("allreduce", self.shape["depth"] * (self.shape["width"] ** 2 + 3 * self.shape["width"]) * size, 1))
        return found


def capacity(tokens, size):
    """The next number of tokens that divides evenly."""
    return -(-tokens // size) * size
