# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallel: a stage a rank; GPipe (all micro-batches forward, then all backward) and 1F1B (one forward, one
backward). With `outer`, several such pipelines add their gradients up."""
import torch

import models
from case import Case, adamw


class Pipeline(Case):
    unit = "tokens"

    def __init__(self, rank, comm, outer, shape, schedule, micro):
        self.outer, self.replicas = outer, outer.size if outer is not None else 1
        self.rank, self.comm, self.shape, self.schedule, self.micro = rank, comm, shape, schedule, micro
        self.first, self.last = comm.rank == 0, comm.rank == comm.size - 1
        self.stage = self.build(shape["depth"] // comm.size, self.first, self.last)
        self.optimizer = adamw(rank, self.stage)
        rank.seed(0)  # the batch is every rank's
        self.words = torch.randint(shape["words"], (micro, shape["batch"], shape["sequence"] + 1), device=rank.device,
                                   generator=rank.generator)
        self.like = torch.zeros(shape["batch"], shape["sequence"], shape["width"], device=rank.device, dtype=rank.dtype)
        self.samples = self.replicas * micro * shape["batch"] * shape["sequence"]
        self.flops = models.transformer_flops(shape["width"], shape["depth"], self.samples, shape["sequence"], shape["words"],
                                              causal=True)

    def build(self, layers, first, last):
        with self.rank.builds():
            model = models.Language(self.shape, layers, first, last, causal=True)
        return model.to(self.rank.device, self.rank.dtype)

    # ---- a micro-batch in this stage ----

    def forward(self, number, came):
        words = self.words[number]
        given = words[:, :-1] if self.first else came.requires_grad_()
        out = self.stage(given, words[:, 1:]) if self.last else self.stage(given)
        self.alive.append((given, out))
        return out

    def backward(self, grad):
        given, out = self.alive.pop(0)
        if self.last:
            (out / self.micro).backward()
            self.total = self.total + out.detach() / self.micro
        else:
            out.backward(grad)
        return None if self.first else given.grad

    # ---- messages: a forward goes to the next rank, a backward to the one before ----

    def move(self, out=None, grad=None, want=False, want_grad=False):
        """Send an output on, a gradient back, receive what is wanted, all at once."""
        sends, receives, came, came_grad = [], [], None, None
        if out is not None and not self.last:
            sends.append((out.detach().contiguous(), self.comm.rank + 1))
        if grad is not None:
            sends.append((grad.contiguous(), self.comm.rank - 1))
        if want and not self.first:
            came = torch.empty_like(self.like)
            receives.append((came, self.comm.rank - 1))
        if want_grad and not self.last:
            came_grad = torch.empty_like(self.like)
            receives.append((came_grad, self.comm.rank + 1))
        if not self.comm.on:
            came, came_grad = (None if one is None else one.zero_() for one in (came, came_grad))
        self.comm.wait(self.comm.exchange(sends, receives))
        return came, came_grad

    def step(self):
        self.alive, self.total = [], torch.zeros((), device=self.rank.device)
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule == "gpipe":
            self.gpipe()
        else:
            self.one_forward_one_backward()
        if self.comm.on and self.outer is not None:
            self.outer.add_gradients(self.stage)
        self.optimizer.step()
        return self.total

    def gpipe(self):
        for number in range(self.micro):
            came, _ = self.move(want=True)
            self.move(out=self.forward(number, came))
        for _ in range(self.micro):
            _, grad = self.move(want_grad=True)
            self.move(grad=self.backward(grad))

    def one_forward_one_backward(self):
        ahead = min(self.comm.size - 1 - self.comm.rank, self.micro)
        for number in range(ahead):
            came, _ = self.move(want=True)
            self.move(out=self.forward(number, came))
        steady = self.micro - ahead
        came = self.move(want=True)[0] if steady else None
        for number in range(ahead, self.micro):
            _, grad = self.move(out=self.forward(number, came), want_grad=True)
            back = self.backward(grad)
            came, _ = self.move(grad=back, want=number + 1 < self.micro)
        for _ in range(ahead):
            _, grad = self.move(want_grad=True)
            self.move(grad=self.backward(grad))

    # ---- what it is compared with ----

    def single(self):
        model = self.build(self.shape["depth"], True, True)
        optimizer = adamw(self.rank, model)

        def step():
            optimizer.zero_grad(set_to_none=True)
            for words in self.words:
                (model(words[:, :-1], words[:, 1:]) / self.micro).backward()
            optimizer.step()
        return step, self.samples / self.replicas

    def messages(self):
        size = self.like.numel() * self.like.element_size()
        ends = int(not self.first) + int(not self.last)
        return [("sendrecv", size, self.micro * ends)]

    def recipe(self, seconds):
        size = self.like.numel() * self.like.element_size()
        return {"kind": "pipeline", "seconds": seconds, "schedule": self.schedule, "micro": self.micro, "stages": self.comm.size,
                "messages": [("sendrecv", size, 1)]}
