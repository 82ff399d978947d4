# SPDX-License-Identifier: Apache-2.0
"""What a row of a study measures: a step of a model, the same without communication, and the whole problem on one rank."""
import torch


class Case:
    """A study's module has one class a kind. What it must have: `comm`, `samples` and `flops` of a step on all ranks
    together, `unit` of the samples, and step()."""
    unit = "samples"
    optimizer = None
    note = ""
    exact = False  # outputs must be the same to the last bit over either library
    flops = 0

    def step(self):
        """One step, which need not have ended on the device; its loss or output as a tensor, for comparison."""
        raise NotImplementedError

    def alone(self):
        """The step with its communication left out."""
        with self.comm.left_out():
            return self.step()

    def single(self):
        """(step on one rank by itself, samples in it); None: as alone(), with this rank's share of the samples."""
        return None

    def recipe(self, seconds):
        """How the time of a step comes about, for predict.py; `seconds`: of alone()."""
        return {"kind": "serial", "seconds": seconds, "messages": self.messages()}

    def messages(self):
        """[(operation, bytes, how often)] of a step and rank, as pickle-sim takes them."""
        return []

    def unsummed_bytes(self):
        """What a rank sends in a step in messages of 1 MiB and more that need no sum."""
        moved = {"allgather", "sendrecv", "alltoall", "broadcast"}
        peers = {"allgather": self.comm.size - 1, "alltoall": self.comm.size - 1}
        return sum(size * count * peers.get(operation, 1) for operation, size, count in self.messages()
                   if operation in moved and size >= 1 << 20)

    def measure_parts(self, timed):
        """Seconds of alone() and of single(). Weights and the optimizer's state stay as they were."""
        rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer else []
        for group in self.optimizer.param_groups if self.optimizer else []:
            group["lr"] = 0.0
        found = {"alone": timed(self.alone)}
        one = self.single()
        found["single"], found["single_samples"] = (timed(one[0]), one[1]) if one else (found["alone"],
                                                                                        self.samples / self.comm.size)
        for group, rate in zip(self.optimizer.param_groups if self.optimizer else [], rates):
            group["lr"] = rate
        if self.optimizer:
            self.optimizer.state.clear()
        return found


def fsdp():
    """FSDP2's function, of torch 2.6."""
    try:
        from torch.distributed.fsdp import fully_shard
    except Exception as error: # not only ImportError: 1.13 under Python 3.11 fails in its own way
        raise NotImplementedError("torch %s has no fully_shard" % torch.__version__) from error
    return fully_shard


def shard(layers, whole):
    """Each layer's weights are gathered before it is computed, and its gradients scattered behind it."""
    for layer in layers:
        fsdp()(layer)
    fsdp()(whole)


def sharded_messages(layer, count, rest, parts):
    """Bytes of a layer's weights, how many of them, and of what else there is: what a rank's part of them moves in a step."""
    found = [("allgather", layer // parts, 2 * count), ("reduce_scatter", layer // parts, count)]
    return found + ([("allgather", rest // parts, 1), ("reduce_scatter", rest // parts, 1)] if rest else [])


def adamw(rank, model, rate=1e-4):
    return torch.optim.AdamW(model.parameters(), lr=rate, **({"fused": True} if rank.cuda else {}))
