# SPDX-License-Identifier: Apache-2.0
"""The studies and their rows; the modules that they name need torch, this one does not."""
EXPERT_TOKENS = (32, 64, 128, 256)


class Row:
    """`p2p`: whether GPUs reach one another. `third`: also libpickle without kernels (PK_SM_NONE). `weight`: of the time
    there is."""

    def __init__(self, study, name, module, arguments, p2p=True, third=False, weight=1.0):
        self.study, self.name, self.module, self.arguments = study, name, module, arguments
        self.p2p, self.third, self.weight = p2p, third, weight


TITLES = {"vit": "Data-parallel training of vision transformers", "inference": "Tensor-parallel inference, a graph a token",
          "patterns": "Patterns of parallel training",
          "no-kernels": "Steps that need no sum, without the library's kernels (PK_SM_NONE)"}


def vit(tiny, _):
    names = ["tiny"] if tiny else ["0.3 B", "0.6 B", "1.3 B"]
    return [("ViT %s" % name, "vit", {"shape": name}) for name in names]


def inference(tiny, _):
    if tiny:
        return [("4 requests", "inference", {"shape": "tiny", "requests": 4, "prompt": 4, "new": 4})]
    return [("%d requests" % number, "inference", {"shape": "3 B", "requests": number, "prompt": 128, "new": 128})
            for number in (16, 32, 64)]


def patterns(tiny, ranks):
    tokens = EXPERT_TOKENS[:1] if tiny else EXPERT_TOKENS
    found = [("DDP", {"kind": "ddp"}), ("FSDP2", {"kind": "fsdp"}), ("GPipe", {"kind": "gpipe"}), ("1F1B", {"kind": "1f1b"}),
             ("column parallel layer", {"kind": "column"}), ("row parallel layer", {"kind": "row"}),
             ("tensor parallel", {"kind": "tensor"}),
             ("ring attention", {"kind": "ring"})]
    found += [("experts, %d tokens" % number, {"kind": "experts", "tokens": number}) for number in tokens]
    found += [("FSDP2 and ring attention", {"kind": "ring", "weights": "shard"}),
              ("DDP and experts, %d tokens" % tokens[-1], {"kind": "experts", "tokens": tokens[-1], "shared": True})]
    if ranks >= 4 and ranks % 2 == 0:
        found += [("tensor x DDP", {"kind": "tensor", "tensor": 2}), ("1F1B x DDP", {"kind": "1f1b", "stages": 2})]
    return in_shape(found, tiny)


def no_kernels(tiny, _):
    return in_shape([("GPipe", {"kind": "gpipe"}), ("1F1B", {"kind": "1f1b"}),
                     ("ring attention, no sum of weights", {"kind": "ring", "weights": "own"}),
                     ("experts, 256 tokens", {"kind": "experts", "tokens": 256})], tiny)


def in_shape(found, tiny):
    return [(name, "patterns", dict(arguments, shape="tiny" if tiny else "full")) for name, arguments in found]


ROWS = {"vit": vit, "inference": inference, "patterns": patterns, "no-kernels": no_kernels}


def rows(wanted, tiny, ranks, gpus):
    """In the order in which they are measured: what needs the same sets of processes stands together."""
    found = []
    for study in wanted:
        for name, module, arguments in ROWS[study](tiny, ranks):
            third = study == "no-kernels"
            if not third or gpus:
                found.append(Row(study, name, module, arguments, third=third,
                                 weight=1.5 if study in ("vit", "inference") else 1.0))
    if gpus:
        found += [Row(row.study, row.name, row.module, row.arguments, p2p=False) for row in found
                  if row.study in ("vit", "inference")]
    return found
