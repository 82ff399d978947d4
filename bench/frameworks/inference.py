# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel inference of a decoder of Qwen2's shape with random weights: a cache of fixed length, a step of all
requests in one CUDA graph where there are GPUs."""
import torch

import models
from case import Case
from comm import Comm, Edge, Leave, alone

SHAPES = {"3 B": dict(width=2048, heads=16, groups=2, hidden=11008, depth=36, words=151936, cache=512),
          "tiny": dict(width=32, heads=4, groups=2, hidden=64, depth=2, words=64, cache=16)}


class Inference(Case):
    unit = "tokens"

    def __init__(self, rank, shape, requests, prompt, new):
        self.rank, self.comm, self.shape, self.new = rank, Comm(), SHAPES[shape], new
        self.requests, self.prompt = requests, prompt
        self.dtype = torch.bfloat16 if rank.cuda else torch.float32
        rank.seed(0)  # the prompts are every rank's
        self.prompts = torch.randint(self.shape["words"], (requests, prompt), device=rank.device, generator=rank.generator)
        self.model = self.build(self.comm)
        self.samples = requests * new
        self.exact = self.comm.size <= 2  # two ranks add in one order
        self.graph = None
        self.tokens = torch.zeros(requests, 1, dtype=torch.long, device=rank.device)
        self.position = torch.zeros(1, dtype=torch.long, device=rank.device)
        layers, head = models.parameters(self.model.layers) * self.comm.size, models.parameters(self.model.words)
        self.flops = 2 * requests * (layers * (prompt + new - 1) + head * new)

    def build(self, comm):
        with self.rank.builds():
            model = models.CachedDecoder(self.shape, comm.size, Edge(Leave, comm), self.requests)
        return model.to(self.rank.device, self.dtype).requires_grad_(False)

    def next_token(self):
        self.tokens.copy_(self.model(self.tokens, self.position))
        self.position.add_(1)

    def capture(self):
        """The step of one token for all requests; its collectives are captured too."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.next_token()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.next_token()
        return graph

    @torch.no_grad()
    def step(self):
        """All requests from their prompts to their last token; what they came to."""
        if self.rank.cuda and self.graph is None:
            self.graph = self.capture()
        places = torch.arange(self.prompt, device=self.rank.device)
        self.tokens.copy_(self.model(self.prompts, places))
        self.position.fill_(self.prompt)
        for _ in range(self.new - 1):
            if self.graph is None:
                self.next_token()
            else:
                self.graph.replay()
        return self.tokens.double().sum()

    def alone(self):
        """In a graph of its own."""
        graph, self.graph = self.graph, getattr(self, "silent", None)
        with self.comm.left_out():
            found = self.step()
        self.silent, self.graph = self.graph, graph
        return found

    def single(self):
        whole, own, graph = self.build(alone()), self.model, self.graph

        def step():
            self.model, self.graph = whole, getattr(step, "graph", None)
            found = self.step()
            step.graph, self.model, self.graph = self.graph, own, graph
            return found
        return step, self.samples

    def messages(self):
        size, width = (2 if self.rank.cuda else 4), self.shape["width"]
        sums = 2 * self.shape["depth"]
        return [("allreduce", self.requests * self.prompt * width * size, sums),
                ("allreduce", self.requests * width * size, sums * (self.new - 1))]

    def drop(self):
        """What parts need, of which nothing is measured any more."""
        self.silent = None


def make(rank, **arguments):
    return Inference(rank, **arguments)
