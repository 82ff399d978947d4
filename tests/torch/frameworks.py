#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/frameworks in host memory: its parallel models give what the whole model gives, its predictions follow from their
parts, and a tiny run of some rows gives whole tables with equal losses.

usage: frameworks.py TREE FOLDER-OF-PICKLE-SIM PYTHONPATH names the folder of the package libpickle; exit code 77 without
torch"""
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import traceback

TREE = os.path.abspath(sys.argv[1])
sys.path[:0] = [os.path.join(TREE, "bench", "frameworks"), os.path.join(TREE, "bench", "experiments")]
if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this Python has no torch")
    sys.exit(77)

# pylint: disable=wrong-import-position
import torch
import torch.distributed as dist

import comm
import experts
import measure
import models
import pipeline
import predict
import sequence

RANKS = 2


class Rank:
    """What a case asks of rank.py's."""

    def __init__(self, rank):
        self.rank, self.cuda, self.device, self.dtype = rank, False, torch.device("cpu"), torch.float32
        self.element_bytes, self.generator = 4, torch.Generator()

    def seed(self, number):
        self.generator.manual_seed(number)

    @staticmethod
    def builds():
        return torch.enable_grad()


def close(have, wanted, what):
    if have.shape != wanted.shape or not torch.allclose(have, wanted, rtol=1e-4, atol=1e-5):
        raise AssertionError("%s: differs by up to %g" % (what,
                                                          (have - wanted).abs().max() if have.shape == wanted.shape
                                                          else math.nan))


def part(tensor, rank, dim):
    return tensor.detach().chunk(RANKS, dim)[rank].clone()


def ring_attention(rank, whole):
    torch.manual_seed(3)
    tensors = [torch.randn(2, 3, 8, 4) for _ in range(4)]
    q, k, v, grad = tensors
    one = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = models.attention(*one)
    out.backward(grad)
    parts = [part(tensor, rank.rank, 2).requires_grad_() for tensor in (q, k, v)]
    got = sequence.Ring.apply(*parts, whole, sequence.Plain, RANKS)
    got.backward(part(grad, rank.rank, 2))
    close(got, part(out, rank.rank, 2), "ring attention")
    for name, mine, theirs in zip("qkv", parts, one):
        close(mine.grad, part(theirs.grad, rank.rank, 2), "ring attention's gradient of %s" % name)


def tensor_parallel(rank, whole):
    torch.manual_seed(4)
    block, x = models.Block(8, 4, causal=True), torch.randn(2, 5, 8)
    mine = models.Block(8, 4, causal=True, parts=RANKS, enter=comm.Edge(comm.Enter, whole), leave=comm.Edge(comm.Leave, whole))
    with torch.no_grad():
        for name in ("weight", "bias"):
            q_k_v = [part(one, rank.rank, 0) for one in getattr(block.qkv, name).chunk(3)]
            getattr(mine.qkv, name).copy_(torch.cat(q_k_v))
            getattr(mine.up, name).copy_(part(getattr(block.up, name), rank.rank, 0))
        mine.out.weight.copy_(part(block.out.weight, rank.rank, 1))
        mine.down.weight.copy_(part(block.down.weight, rank.rank, 1))
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, got = block(one), mine(other)
    wanted.square().sum().backward()
    got.square().sum().backward()
    close(got, wanted, "tensor parallel")
    close(other.grad, one.grad, "tensor parallel's gradient")
    close(mine.up.weight.grad, part(block.up.weight.grad, rank.rank, 0), "tensor parallel's gradient of a weight")


def pipelines(rank, whole):
    shape = dict(width=8, depth=4, heads=2, words=16, batch=2, sequence=6)
    for schedule in ("gpipe", "1f1b"):
        torch.manual_seed(rank.rank)
        mine = pipeline.Pipeline(rank, whole, None, shape, schedule, 3)
        stages = []
        for stage in range(RANKS):
            torch.manual_seed(stage)
            stages.append(mine.build(2, stage == 0, stage == RANKS - 1))
        total = 0
        for words in mine.words:
            loss = stages[1](stages[0](words[:, :-1]), words[:, 1:]) / 3
            loss.backward()
            total += loss.detach()
        got = mine.step()
        if rank.rank == RANKS - 1:
            close(got, total, "%s's loss" % schedule)
        for (name, one), other in zip(mine.stage.named_parameters(), stages[rank.rank].parameters()):
            close(one.grad, other.grad, "%s: the gradient of %s" % (schedule, name))


def expert_parallel(rank, whole):
    layers = []
    for number in range(RANKS):
        torch.manual_seed(number)
        layers.append(experts.Layer(8, 12, whole))
    mine = layers[rank.rank]
    mine.norm, mine.mix = layers[0].norm, layers[0].mix
    torch.manual_seed(9 + rank.rank)
    x = torch.randn(4, 8)
    mixed = layers[0].mix(layers[0].norm(x))
    wanted = x + torch.cat([layers[number].expert(rows) for number, rows in enumerate(mixed.chunk(RANKS))])
    close(mine(x), wanted, "experts")


def halves(linear, mine, rank, dim, sizes=None):
    """This rank's part of each of the matrices that one layer holds."""
    with torch.no_grad():
        for name in ("weight", "bias"):
            if getattr(linear, name) is not None:
                pieces = getattr(linear, name).split(sizes or [getattr(linear, name).shape[dim]], dim)
                getattr(mine, name).copy_(torch.cat([part(piece, rank.rank, dim) for piece in pieces], dim))


@torch.no_grad()
def decoder(rank, whole):
    """Tokens one by one give what all at once gives, and so does a model that ranks share."""
    shape = dict(width=16, heads=4, groups=2, hidden=12, depth=2, words=32, cache=8)
    torch.manual_seed(6)
    own, shared = (models.CachedDecoder(shape, parts, comm.Edge(comm.Leave, group), 3)
                   for parts, group in ((1, comm.alone()), (RANKS, whole)))
    for module in ("tokens", "words", "norm"):
        getattr(shared, module).load_state_dict(getattr(own, module).state_dict())
    for one, mine in zip(own.layers, shared.layers):
        halves(one.qkv, mine.qkv, rank, 0, [16, 8, 8])
        halves(one.gate_up, mine.gate_up, rank, 0, [12, 12])
        halves(one.out, mine.out, rank, 1)
        halves(one.down, mine.down, rank, 1)
    words = torch.randint(32, (3, 6))
    wanted = own(words, torch.arange(6))
    for model in (own, shared):
        for place in range(6):
            got = model(words[:, place:place + 1], torch.tensor([place]))
        if not torch.equal(got, wanted):
            raise AssertionError("decoder: %s instead of %s" % (got.flatten(), wanted.flatten()))


def rank_main(number, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=number, world_size=RANKS)
    rank, whole = Rank(number), comm.Comm()
    for check in (ring_attention, tensor_parallel, pipelines, expert_parallel, decoder):
        check(rank, whole)
    dist.barrier()


def models_are_right():
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for number in range(RANKS):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    rank_main(number, os.path.join(folder, "store"))
                    code = 0
                finally:
                    if code:
                        traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
    if any(statuses):
        sys.exit("FAIL a parallel model is not the whole one's equal")
    print("PASS parallel models")


class Seconds:
    """Every message takes half a second."""
    @staticmethod
    def seconds(_operation, _size):
        return 0.5


def predictions_are_right():
    def of(kind, **more):
        return predict.predicted(dict({"kind": kind, "seconds": 3.0, "messages": [("sendrecv", 8, 2)]}, **more), Seconds)
    # One forward takes 0.25 and one backward 0.5; messages take 0.5. A stage that is last waits for nobody else's backward.
    pairs = [(of("serial"), 4.0), (of("behind"), 3.5), (of("behind", messages=[("allreduce", 8, 9)]), 1.0 + 2.0 / 9 + 4.5),
             (of("ring", blocks=4, hidden=[("sendrecv", 8, 2)] * 2), 4.0 + 2 * 0.25),
             (of("pipeline", schedule="gpipe", stages=2, micro=4), 0.25 + 0.5 + 1.0 + 2.0 + 0.5 + 0.5),
             (of("pipeline", schedule="1f1b", stages=1, micro=4), 3.0)]
    for have, wanted in pairs:
        if abs(have - wanted) > 1e-9:
            sys.exit("FAIL a prediction: %g instead of %g" % (have, wanted))
    print("PASS predictions")


def differences_are_found():
    meter = measure.Meter(type("Options", (), {"device": "cpu"}), None)
    for theirs, exact, faults in (([1.0, 2.0], False, 0), ([1.0, 2.0 + 1e-6], False, 0), ([1.0, 2.0 + 1e-6], True, 1),
                                  ([1.0, 2.0 + 1e-3], False, 1), ([1.0], False, 1), ([1.0, math.nan], False, 1)):
        found = measure.Found()
        found.built = {"pickle": [{"exact": exact}]}
        found.values = {"reference": [1.0, 2.0], "pickle": theirs}
        meter.compare(found)
        if len(found.faults) != faults:
            sys.exit("FAIL losses %s beside 1 and 2: %s" % (theirs, found.faults))
    print("PASS differences")


def tables_are_whole(sim):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.join(TREE, "bench", "frameworks", "run.py"), "--tiny", "--device", "cpu", "--turns",
                   "3", "--minutes", "20",
                   "--sim", os.path.join(sim, "pickle-sim"), "--out", folder]
        for row in ("ViT", "requests", "FSDP2", "1F1B"):
            command += ["--row", row]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            for name in sorted(os.listdir(folder)):
                if name.endswith(".log"):
                    with open(os.path.join(folder, name), encoding="utf-8") as log:
                        print(name + ":\n" + log.read()[-4000:])
            sys.exit("FAIL %s ended with %d" % (" ".join(command), done.returncode))
        rows = []
        for study in ("vit", "inference", "patterns"):
            with open(os.path.join(folder, "frameworks-%s.json" % study), encoding="utf-8") as file:
                rows += json.load(file)["rows"]
    measured = [row for row in rows if "no fully_shard" not in row["reason"]]
    good = len(rows) == 5 and len(measured) >= 3 and all(
        row["turns"] == 3 and row["predicted_ms"] > 0 and 0 < row["low"] <= row["ratio"] <= row["high"]
        and row["difference"] <= 1e-5 for row in measured)
    if not good:
        sys.exit("FAIL rows: %s" % json.dumps(rows, indent=1))
    print("PASS a tiny run")


if __name__ == "__main__":
    predictions_are_right()
    differences_are_found()
    models_are_right()
    tables_are_whole(sys.argv[2])
