# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training of vision transformers: DistributedDataParallel, weights in float32, computing in bfloat16."""
import contextlib

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import models
from case import Case, adamw
from comm import Comm

#                  image, patch, width, depth, heads, classes, images a rank
SHAPES = {"0.3 B": (224, 14, 1024, 24, 16, 1000, 32), "0.6 B": (224, 14, 1280, 32, 16, 1000, 24),
          "1.3 B": (224, 14, 1536, 46, 24, 1000, 8),
          "tiny": (16, 8, 32, 2, 2, 10, 4)}
BUCKET_MIB = 25


class Training(Case):
    unit = "images"

    def __init__(self, rank, shape):
        *self.shape, images = SHAPES[shape]
        size, _, _, _, _, classes = self.shape
        self.rank, self.comm, self.turn = rank, Comm(), 0
        with rank.builds():
            model, self.note = models.vit(*self.shape)
        self.weights = models.parameters(model)
        model.to(rank.device)
        self.batches = [(torch.randn(images, 3, size, size, device=rank.device, generator=rank.generator),
                         torch.randint(classes, (images,), device=rank.device, generator=rank.generator)) for _ in range(2)]
        more = {"device_ids": [rank.device.index]} if rank.cuda else {}
        self.net = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB, gradient_as_bucket_view=True, **more)
        self.optimizer = adamw(rank, self.net)
        self.samples = images * self.comm.size
        tokens = (size // self.shape[1]) ** 2 + 1
        self.flops = models.transformer_flops(self.shape[2], self.shape[3], self.samples * tokens, tokens)

    def step(self):
        images, classes = self.batches[self.turn % len(self.batches)]
        self.turn += 1
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16) if self.rank.cuda else contextlib.nullcontext():
            loss = functional.cross_entropy(self.net(images).float(), classes)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def alone(self):
        with self.net.no_sync():
            return self.step()

    def messages(self):
        return buckets(self.weights, 4, BUCKET_MIB)

    def recipe(self, seconds):
        return {"kind": "behind", "seconds": seconds, "messages": self.messages()}


def buckets(weights, bytes_of_one, mib):
    """DistributedDataParallel's, roughly: a first one of 1 MiB and full ones."""
    whole = weights * bytes_of_one
    first = min(whole, 1 << 20)
    count, rest = divmod(whole - first, mib << 20)
    return [one for one in (("allreduce", first, 1), ("allreduce", mib << 20, count), ("allreduce", rest, 1)) if one[1]
            and one[2]]


def make(rank, **arguments):
    return Training(rank, **arguments)
