# SPDX-License-Identifier: Apache-2.0
"""Patterns of parallel training on one language model, all in bfloat16 on GPUs: data parallel (DDP), sharded (FSDP2),
pipeline (GPipe, 1F1B), tensor (column, row, both), sequence (ring attention), experts, and products of them."""
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import experts
import models
import pipeline
import sequence
import vit
from case import Case, adamw, fsdp, shard, sharded_messages
from comm import Comm, Edge, Enter, Leave, alone

SHAPES = {
    "full": {"language": dict(width=2048, depth=16, heads=16, words=32000, batch=4, sequence=2048), "micro_batch": 1, "micro": 16,
             "ring": dict(width=2048, depth=4, heads=16, batch=1, sequence=8192),
             "experts": dict(width=4096, hidden=14336, depth=4),
             "layer": dict(width=8192, tokens=4096)},
    "tiny": {"language": dict(width=32, depth=4, heads=4, words=64, batch=2, sequence=16), "micro_batch": 1, "micro": 4,
             "ring": dict(width=32, depth=2, heads=4, batch=1, sequence=32), "experts": dict(width=32, hidden=64, depth=2),
             "layer": dict(width=64, tokens=32)}}


class Language(Case):
    """The model, its batch and its optimizer: DDP as it stands here; with `tensor`, that number of neighbours share each replica."""
    unit = "tokens"

    def __init__(self, rank, shape, tensor=1, wrap=True):
        self.rank, self.shape, self.comm = rank, shape, Comm()
        self.inner, self.outer = grids(tensor)
        model = self.build(self.inner)
        self.weights = models.parameters(model)
        rank.seed((self.outer or self.comm).rank)
        words = torch.randint(shape["words"], (shape["batch"], shape["sequence"] + 1), device=rank.device,
                              generator=rank.generator)
        self.batch = words[:, :-1], words[:, 1:]
        self.net = model
        if wrap and self.outer is not None:
            more = {"device_ids": [rank.device.index]} if rank.cuda else {}
            self.net = DistributedDataParallel(model, process_group=self.outer.group, gradient_as_bucket_view=True, **more)
        self.optimizer = adamw(rank, self.net)
        self.replicas = self.outer.size if self.outer is not None else 1
        self.samples = self.replicas * shape["batch"] * shape["sequence"]
        self.flops = models.transformer_flops(shape["width"], shape["depth"], self.samples, shape["sequence"], shape["words"],
                                              causal=True)

    def build(self, comm):
        more = dict(parts=comm.size, enter=Edge(Enter, comm), leave=Edge(Leave, comm)) if comm is not None else {}
        with self.rank.builds():
            model = models.Language(self.shape, causal=True, **more)
        return model.to(self.rank.device, self.rank.dtype)

    def once(self, net, optimizer):
        optimizer.zero_grad(set_to_none=True)
        loss = net(*self.batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(self):
        return self.once(self.net, self.optimizer)

    def alone(self):
        if self.inner is None:
            with self.net.no_sync():
                return self.step()
        with self.inner.left_out():
            if self.outer is None:
                return self.step()
            with self.net.no_sync():
                return self.step()

    def single(self):
        if self.inner is None:
            return None
        model = self.build(alone())
        optimizer = adamw(self.rank, model)
        return (lambda: self.once(model, optimizer)), self.samples / self.replicas

    def messages(self):
        size = self.rank.element_bytes
        found = vit.buckets(self.weights, size, vit.BUCKET_MIB) if self.outer is not None else []
        if self.inner is not None:
            found.append(("allreduce", self.samples // self.replicas * self.shape["width"] * size, 4 * self.shape["depth"]))
        return found

    def recipe(self, seconds):
        if self.inner is None:
            return {"kind": "behind", "seconds": seconds, "messages": self.messages()}
        return super().recipe(seconds)


def grids(tensor):
    """(the ranks that share a replica, those that have the same part of another); None: no such group."""
    whole = Comm()
    if tensor == 1:
        return None, whole
    if tensor >= whole.size:
        return whole, None
    count = whole.size // tensor
    inner = [Comm([tensor * number + one for one in range(tensor)]) for number in range(count)]
    outer = [Comm([tensor * number + one for number in range(count)]) for one in range(tensor)]
    return next(one for one in inner if one.rank is not None), next(one for one in outer if one.rank is not None)


class Sharded(Language):
    """By FSDP2. What it takes without communication is measured before the model is sharded."""

    def __init__(self, rank, shape):
        fsdp()
        super().__init__(rank, shape, wrap=False)

    def measure_parts(self, timed):
        self.alone = self.step
        found = super().measure_parts(timed)
        self.net.zero_grad(set_to_none=True)
        shard(self.net.blocks, self.net)
        self.optimizer = adamw(self.rank, self.net)
        return found

    def messages(self):
        size, count = self.rank.element_bytes, self.shape["depth"]
        layer = models.parameters(models.Block(self.shape["width"], self.shape["heads"])) * size
        return sharded_messages(layer, count, self.weights * size - layer * count, self.comm.size)

    def recipe(self, seconds):
        return {"kind": "behind", "seconds": seconds, "messages": self.messages()}


class Linear(Case):
    """One layer: its columns, or its rows, are shared; forward and backward."""
    unit = "tokens"

    def __init__(self, rank, width, tokens, column):
        self.rank, self.comm, self.column, self.width = rank, Comm(), column, width
        self.layer = self.build(self.comm)
        rank.seed(0)
        self.whole = torch.randn(tokens, width, device=rank.device, dtype=rank.dtype, generator=rank.generator)
        self.given = self.whole if column else self.whole[:, :width // self.comm.size].contiguous()
        self.samples = tokens
        self.flops = 6 * tokens * width * width

    def build(self, comm):
        inner, outer = (self.width, self.width // comm.size) if self.column else (self.width // comm.size, self.width)
        edge = Edge(Enter, comm) if self.column else Edge(Leave, comm)
        linear = nn.Linear(inner, outer, bias=False)
        return nn.Sequential(*((edge, linear) if self.column else (linear, edge))).to(self.rank.device, self.rank.dtype)

    @staticmethod
    def once(layer, given):
        layer.zero_grad(set_to_none=True)
        given = given.detach().requires_grad_()
        loss = layer(given).float().square().mean()
        loss.backward()
        return given.grad.float().abs().mean() + loss.detach()

    def step(self):
        return self.once(self.layer, self.given)

    def single(self):
        layer = self.build(alone())
        return (lambda: self.once(layer, self.whole)), self.samples

    def messages(self):
        return [("allreduce", self.whole.numel() * self.whole.element_size(), 1)]


def make(rank, kind, shape, tensor=None, stages=None, tokens=0, shared=False, weights="sum"):
    shapes = SHAPES[shape]
    if kind in ("ddp", "tensor"):
        return Language(rank, shapes["language"], tensor or (Comm().size if kind == "tensor" else 1))
    if kind == "fsdp":
        return Sharded(rank, shapes["language"])
    if kind in ("gpipe", "1f1b"):
        language = dict(shapes["language"], batch=shapes["micro_batch"])
        inner, outer = grids(stages) if stages else (Comm(), None)
        return pipeline.Pipeline(rank, inner, outer, language, kind, shapes["micro"])
    if kind in ("column", "row"):
        return Linear(rank, shapes["layer"]["width"], shapes["layer"]["tokens"], kind == "column")
    if kind == "ring":
        return sequence.Sequence(rank, Comm(), shapes["ring"], weights)
    return experts.Experts(rank, Comm(), shapes["experts"], experts.capacity(tokens, Comm().size), shared)
