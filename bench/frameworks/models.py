# SPDX-License-Identifier: Apache-2.0
"""Models of the studies in plain torch (1.13 and newer), with the floating-point operations of a step."""
import math

import torch
from torch import nn
from torch.nn import functional

try:
    from timm.models.vision_transformer import VisionTransformer
except ImportError: # then our own
    VisionTransformer = None


def attention(q, k, v, causal=False):
    """Of [batch, heads, tokens, width of a head]."""
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ v


def heads_of(x, heads):
    """[batch, tokens, heads * width] as [batch, heads, tokens, width]."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


class Same(nn.Module):
    """What stands where a parallel model communicates."""

    def forward(self, x): # pylint: disable=no-self-use
        return x


class Block(nn.Module):
    """A layer of a transformer. `parts`: how many ranks share it; each has its part of the heads and of the hidden units. `enter`
    and `leave` stand around what is shared; `attend` computes attention."""

    def __init__(self, width, heads, causal=False, parts=1, enter=None, leave=None, attend=None):
        super().__init__()
        self.heads, self.causal, self.attend = heads // parts, causal, attend or attention
        self.enter, self.leave = enter or Same(), leave or Same()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width // parts)
        self.out = nn.Linear(width // parts, width, bias=False)
        self.up = nn.Linear(width, 4 * width // parts)
        self.down = nn.Linear(4 * width // parts, width, bias=False)

    def forward(self, x):
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(self.enter(self.norm1(x))).chunk(3, -1))
        x = x + self.leave(self.out(joined(self.attend(q, k, v, self.causal))))
        hidden = functional.gelu(self.up(self.enter(self.norm2(x))))
        return x + self.leave(self.down(hidden))


class Vit(nn.Module):
    """A vision transformer with a class token, as timm's."""

    def __init__(self, image, patch, width, depth, heads, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit(image, patch, width, depth, heads, classes):
    """By timm where it is; and which it is."""
    if VisionTransformer is None:
        return Vit(image, patch, width, depth, heads, classes), "own"
    return VisionTransformer(img_size=image, patch_size=patch, embed_dim=width, depth=depth, num_heads=heads,
                             num_classes=classes), "timm"


class Language(nn.Module):
    """A decoder: tokens, layers, and the loss of the next token. A stage of a pipeline has a part of it: `first` the tokens,
    `last` the loss."""

    def __init__(self, shape, layers=None, first=True, last=True, **block):
        super().__init__()
        width = shape["width"]
        self.tokens = nn.Embedding(shape["words"], width) if first else None
        count = shape["depth"] if layers is None else layers
        self.blocks = nn.ModuleList([Block(width, shape["heads"], **block) for _ in range(count)])
        self.norm = nn.LayerNorm(width) if last else None
        self.head = nn.Linear(width, shape["words"], bias=False) if last else None

    def forward(self, x, target=None):
        x = x if self.tokens is None else self.tokens(x)
        for block in self.blocks:
            x = block(x)
        if self.head is None:
            return x
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), target.flatten())


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def transformer_flops(width, depth, tokens, sequence, words=0, causal=False, backward=True):
    """Of a number of tokens in sequences of this length: two for each weight and token forward, four backward; and attention."""
    weights = 12 * width * width * depth + words * width
    attended = 4 * width * depth * sequence / (2 if causal else 1)
    return (3 if backward else 1) * tokens * (2 * weights + attended)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).to(x.dtype) * self.weight


def rotated(x, cosine, sine):
    """Rotary positions."""
    one, two = x.chunk(2, -1)
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)


class CachedLayer(nn.Module):
    """A layer as Qwen2's: grouped heads with a bias for q, k and v, a gated unit, and a cache of fixed length. A rank has a
    part of the heads and of the hidden units; `leave` adds the parts up."""

    def __init__(self, shape, parts, leave, batch):
        super().__init__()
        width, self.head = shape["width"], shape["width"] // shape["heads"]
        self.heads, self.groups = shape["heads"] // parts, max(1, shape["groups"] // parts)
        hidden = shape["hidden"] // parts
        self.norm1, self.norm2, self.leave = RmsNorm(width), RmsNorm(width), leave
        self.qkv = nn.Linear(width, (self.heads + 2 * self.groups) * self.head)
        self.out = nn.Linear(self.heads * self.head, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, self.groups, shape["cache"], self.head))

    def forward(self, x, positions, angles, mask):
        """`mask`: added to the scores, [new tokens, length of the cache]."""
        q, k, v = self.qkv(self.norm1(x)).split([self.heads * self.head] + 2 * [self.groups * self.head], -1)
        q, k = rotated(heads_of(q, self.heads), *angles), rotated(heads_of(k, self.groups), *angles)
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, heads_of(v, self.groups))
        q = q.unflatten(1, (self.groups, self.heads // self.groups)).flatten(2, 3)
        scores = (q @ self.keys.transpose(-1, -2)).float() / math.sqrt(self.head) + mask.repeat(self.heads // self.groups, 1)
        seen = (scores.softmax(-1).to(x.dtype) @ self.values).unflatten(2, (self.heads // self.groups, x.shape[1])).flatten(1, 2)
        x = x + self.leave(self.out(joined(seen)))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.leave(self.down(functional.silu(gate) * up))


class CachedDecoder(nn.Module):
    """Tokens in, the most likely next token out."""

    def __init__(self, shape, parts, leave, batch):
        super().__init__()
        self.cache, self.head = shape["cache"], shape["width"] // shape["heads"]
        self.tokens = nn.Embedding(shape["words"], shape["width"])
        self.layers = nn.ModuleList([CachedLayer(shape, parts, leave, batch) for _ in range(shape["depth"])])
        self.norm, self.words = RmsNorm(shape["width"]), nn.Linear(shape["width"], shape["words"], bias=False)
        self.register_buffer("rates", 1e6 ** -(torch.arange(0, self.head, 2).float() / self.head))
        self.register_buffer("places", torch.arange(self.cache))

    def forward(self, tokens, positions):
        x = self.tokens(tokens)
        turns = positions[:, None].float() * self.rates.float()
        angles = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        later = self.places[None, :] > positions[:, None]
        mask = torch.zeros(later.shape, device=x.device).masked_fill(later, -1e30)
        for layer in self.layers:
            x = layer(x, positions, angles, mask)
        return self.words(self.norm(x[:, -1:])).argmax(-1)
