# SPDX-License-Identifier: Apache-2.0
"""Sequence parallel: ring attention. Each rank has a part of the sequence; keys and values go around while they are computed
with, and in the backward pass their gradients go around with them. Without a causal mask, so that ranks have as much to
do."""
import math

import torch
from torch.nn import functional

import models
from case import Case, adamw, fsdp, shard, sharded_messages
from comm import alone


class Plain:
    """A block of attention with the logarithm of its sums, in plain torch."""

    @staticmethod
    def forward(q, k, v):
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
        sums = scores.logsumexp(-1, keepdim=True)
        return (scores - sums).exp().to(v.dtype) @ v, sums

    @staticmethod
    def backward(grad, q, k, v, out, sums):
        """`out` and `sums` are of all blocks: what this block's part of the gradients is."""
        scale = 1 / math.sqrt(q.shape[-1])
        weights = ((q @ k.transpose(-1, -2)).float() * scale - sums).exp()
        of_out = (grad.float() * out.float()).sum(-1, keepdim=True)
        of_scores = (weights * ((grad @ v.transpose(-1, -2)).float() - of_out) * scale).to(q.dtype)
        return of_scores @ k, of_scores.transpose(-1, -2) @ q, weights.to(grad.dtype).transpose(-1, -2) @ grad


class Flash:
    """The same by torch's kernels for GPUs."""
    state = None

    @classmethod
    def forward(cls, q, k, v):
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False)
        cls.state = found[2:8]
        return found[0], found[1].unsqueeze(-1)

    @classmethod
    def backward(cls, grad, q, k, v, out, sums):
        cum_q, cum_k, max_q, max_k, seed, offset = cls.state
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, sums.squeeze(-1).contiguous(), cum_q, cum_k, max_q, max_k, 0.0, False, seed, offset)


def kernels(rank):
    """Flash where it gives what Plain gives."""
    if not rank.cuda:
        return Plain
    try:
        q, k, v, grad = (torch.randn(1, 2, 128, 64, device=rank.device, dtype=rank.dtype) for _ in range(4))
        results = []
        for way in (Plain, Flash):
            out, sums = way.forward(q, k, v)
            results.append((out, sums, *way.backward(grad, q, k, v, out, sums)))
        good = all(torch.allclose(one.float(), other.float(), atol=0.05, rtol=0.05) for one, other in zip(*results))
    except (AttributeError, RuntimeError, TypeError):
        good = False
    return Flash if good else Plain


class Ring(torch.autograd.Function):
    """Attention of this part's queries with everybody's keys and values."""

    @staticmethod
    def around(comm, tensors):
        """Begin to send these on; (what comes, what to wait for)."""
        if not comm.on:
            return tensors, []
        coming = [torch.empty_like(one) for one in tensors]
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        return coming, comm.exchange([(one, after) for one in tensors], [(one, before) for one in coming])

    @staticmethod
    def forward(ctx, q, k, v, comm, way, hops):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        kept, out, sums = (k, v), None, None
        for hop in range(hops):
            coming, works = Ring.around(comm, (k, v)) if hop + 1 < hops else (None, [])
            part, part_sums = way.forward(q, k, v)
            if out is None:
                out, sums = part.float(), part_sums
            else:
                both = torch.logaddexp(sums, part_sums)
                out, sums = out * (sums - both).exp() + part.float() * (part_sums - both).exp(), both
            comm.wait(works)
            k, v = coming or (k, v)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, *kept, out, sums)
        ctx.comm, ctx.way, ctx.hops = comm, way, hops
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, sums = ctx.saved_tensors
        comm, grad, of_q = ctx.comm, grad.contiguous(), None
        of_k = of_v = None
        for hop in range(ctx.hops):
            coming, works = Ring.around(comm, (k, v)) if hop + 1 < ctx.hops else (None, [])
            parts = [one.contiguous() for one in ctx.way.backward(grad, q, k, v, out, sums)]
            of_q = parts[0] if of_q is None else of_q + parts[0]
            of_k, of_v = (parts[1], parts[2]) if of_k is None else (of_k + parts[1], of_v + parts[2])
            comm.wait(works)
            # The gradients go with their keys and values; after the last hop they are where these came from.
            (of_k, of_v), works = Ring.around(comm, (of_k, of_v))
            comm.wait(works)
            k, v = coming or (k, v)
        return of_q, of_k, of_v, None, None, None


class Sequence(Case):
    """Layers of a transformer on a long sequence. `weights`: "sum": their gradients are added up at the end, as in data
    parallel; "shard": by FSDP2; "own": not at all."""
    unit = "tokens"

    def __init__(self, rank, comm, shape, weights):
        self.weights, self.rank, self.comm, self.shape = weights, rank, comm, shape
        if weights == "shard":
            fsdp()
        self.way = kernels(rank)
        self.note = self.way.__name__.lower()
        self.layers = self.build(comm)
        self.layer_weights = models.parameters(self.layers[0])
        self.optimizer = adamw(rank, self.layers)
        self.part = torch.randn(shape["batch"], shape["sequence"] // comm.size, shape["width"], device=rank.device,
                                dtype=rank.dtype, generator=rank.generator)
        self.samples = shape["batch"] * shape["sequence"]
        self.flops = models.transformer_flops(shape["width"], shape["depth"], self.samples, shape["sequence"])

    def build(self, comm):
        def attend(q, k, v, _causal):
            return Ring.apply(q, k, v, comm, self.way, comm.size)
        with self.rank.builds():
            blocks = [models.Block(self.shape["width"], self.shape["heads"], attend=attend) for _ in range(self.shape["depth"])]
        return torch.nn.Sequential(*blocks).to(self.rank.device, self.rank.dtype)

    def once(self, layers, optimizer, part, comm):
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(layers(part).float(), part.float() * 0.5) / comm.size
        loss.backward()
        if comm.on and self.weights == "sum":
            comm.add_gradients(layers)
        optimizer.step()
        return loss.detach()

    def step(self):
        return self.once(self.layers, self.optimizer, self.part, self.comm)

    def single(self):
        comm = alone()
        layers = self.build(comm)
        optimizer = adamw(self.rank, layers)
        whole = torch.cat([self.part] * self.comm.size, 1)
        return (lambda: self.once(layers, optimizer, whole, comm)), self.samples

    def measure_parts(self, timed):
        """Without communication the layers are not sharded."""
        found = super().measure_parts(timed)
        if self.weights == "shard":
            self.layers.zero_grad(set_to_none=True)
            shard(self.layers, self.layers)
            self.optimizer = adamw(self.rank, self.layers)
        return found

    def messages(self):
        one = self.part.numel() * self.part.element_size()
        hops = self.comm.size - 1
        return [("sendrecv", one, self.shape["depth"] * 2 * (2 * hops + self.comm.size))] + self.of_weights()

    def of_weights(self):
        layer = self.layer_weights * self.part.element_size()
        if self.weights == "shard":
            return sharded_messages(layer, self.shape["depth"], 0, self.comm.size)
        return [("allreduce", layer * self.shape["depth"], 1)] if self.weights == "sum" else []

    def recipe(self, seconds):
        """Keys and values go while a block is computed with (a third of that time is forward); their gradients, and the sums,
        do not."""
        one = self.part.numel() * self.part.element_size()
        blocks, hops = self.shape["depth"] * self.comm.size, self.comm.size - 1
        return {"kind": "ring", "seconds": seconds, "blocks": blocks,
                "hidden": [("sendrecv", 2 * one, self.shape["depth"] * hops)] * 2,
                "messages": [("sendrecv", 2 * one, self.shape["depth"] * self.comm.size)] + self.of_weights()}
