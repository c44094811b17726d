"""Encoders whose attention is computed on blocks, as the published models write it: no score matrix, no mask of it.

Longformer: each block of queries meets its own block of keys and the two beside it; a band of positions and the ends
of the sequence are masked; the first tokens are keys of everyone and see everything. BigBird: each block of queries
meets its neighbours, the first and the last block and some chosen at random; first and last block see everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx

from models.builders import spelling as s
from models.builders.graph import DimSize, Graph


@dataclass(frozen=True)
class Sizes:
    """`block`: queries that go together."""

    batch: DimSize
    seq: int
    hidden: int
    heads: int
    block: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def blocks(self) -> int:
        return self.seq // self.block


def longformer(*, batch: DimSize = 1, seq: int = 4096, hidden: int = 768, heads: int = 12, ffn: int = 3072,
               layers: int = 1, reach: int = 256, global_tokens: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden], attention_mask int64 [batch, seq] (1 for tokens). Output:
    last_hidden_state float [batch, seq, hidden].

    |query - key| ≤ `reach`, or one of them among the first `global_tokens`. `seq` is a multiple of `reach`.
    """
    if seq % reach or global_tokens > reach:
        raise ValueError(f"seq ({seq}) must be a multiple of reach ({reach}), which has room for the global tokens")
    sizes = Sizes(batch, seq, hidden, heads, reach)
    g = Graph("longformer", seed=seed)
    x = g.input("hidden_states", [batch, seq, hidden])
    pad = _penalty(g, g.input("attention_mask", [batch, seq], np.int64))
    for i in range(layers):
        with g.scope(f"layer.{i}"):
            x = layer(g, x, _sliding(g, x, pad, sizes, global_tokens), sizes, ffn)
    g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


def bigbird(*, batch: DimSize = 1, seq: int = 4096, hidden: int = 768, heads: int = 12, ffn: int = 3072,
            layers: int = 1, block: int = 64, random_blocks: int = 3, seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden], attention_mask int64 [batch, seq] (1 for tokens). Output:
    last_hidden_state float [batch, seq, hidden].

    Blocks 2 .. n-3 of queries see three neighbours, two global and `random_blocks` blocks; the two at each end see
    everything. `seq` is a multiple of `block`, at least 8 blocks.
    """
    if seq % block or seq < 8 * block:
        raise ValueError(f"seq ({seq}) must be at least 8 blocks of {block}")
    sizes = Sizes(batch, seq, hidden, heads, block)
    g = Graph("bigbird", seed=seed)
    x = g.input("hidden_states", [batch, seq, hidden])
    pad = _penalty(g, g.input("attention_mask", [batch, seq], np.int64))
    for i in range(layers):
        with g.scope(f"layer.{i}"):
            x = layer(g, x, _sparse(g, x, pad, sizes, random_blocks, np.random.default_rng(seed + i)), sizes, ffn)
    g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


def _penalty(g: Graph, mask: str) -> str:
    """[batch, seq]: 0 for tokens, -10000 for padding."""
    return g.op("Mul", g.op("Sub", g.const(1.0), g.op("Cast", mask, to=1)), g.const(-10000.0))


def _heads(g: Graph, x: str, sizes: Sizes) -> list[str]:
    """Queries, keys and values, each [batch, heads, seq, head]."""
    made = []
    for name in ("query", "key", "value"):
        with g.scope(name):
            y = s.linear(g, x, sizes.hidden, sizes.hidden)
        made.append(g.op("Transpose", g.op("Reshape", y, g.const([0, sizes.seq, sizes.heads, sizes.head])),
                         perm=[0, 2, 1, 3]))
    return made


def _blocked(g: Graph, x: str, sizes: Sizes) -> str:
    """[batch, heads, seq, head] as [batch, heads, blocks, block, head]."""
    return g.op("Reshape", x, g.const([0, sizes.heads, sizes.blocks, sizes.block, sizes.head]))


def _merged(g: Graph, x: str, sizes: Sizes) -> str:
    return g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.const([0, sizes.seq, sizes.hidden]))


def _scaled(g: Graph, scores: str, sizes: Sizes) -> str:
    return g.op("Mul", scores, g.const(1.0 / math.sqrt(sizes.head)))


def _flat(g: Graph, x: str, rows: int, sizes: Sizes) -> str:
    return g.op("Reshape", x, g.const([0, sizes.heads, rows, sizes.head]))


def _full(g: Graph, q: str, k: str, v: str, pad: str, sizes: Sizes) -> str:
    """Queries that see every key."""
    scores = _scaled(g, g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), sizes)
    return g.op("MatMul", s.softmax(g, g.op("Add", scores, s.unsqueeze(g, pad, 1, 2))), v)


def _sliding(g: Graph, x: str, pad: str, sizes: Sizes, count: int) -> str:
    q, k, v = _heads(g, x, sizes)
    block, n = sizes.block, sizes.blocks
    # Blocks with their neighbours: one block of zeros at each end, three shifted views side by side.
    beside = [g.op("Concat", *(s.slice_(g, g.op("Pad", _blocked(g, t, sizes), g.const([0, 0, 1, 0, 0, 0, 0, 1, 0, 0])),
                                        2, shift, n + shift) for shift in range(3)), axis=3) for t in (k, v)]
    outside = g.op("Pad", g.op("Reshape", pad, g.const([0, n, block])), g.const([0, 1, 0, 0, 1, 0]), g.const(-10000.0))
    hidden = g.op("Concat", *(s.slice_(g, outside, 1, shift, n + shift) for shift in range(3)), axis=2)
    i, j = np.arange(block)[:, None], np.arange(3 * block)[None] - block
    first = np.arange(n)[:, None, None] * block + j[None] < count  # global tokens are keys of their own
    band = np.where((np.abs(i - j) > block)[None] | first, np.float32(-10000), np.float32(0)).astype(np.float32)
    mask = g.op("Add", s.unsqueeze(g, hidden, 1, 3), g.const(band[None, None]))
    qb = _blocked(g, q, sizes)
    scores = _scaled(g, g.op("MatMul", qb, g.op("Transpose", beside[0], perm=[0, 1, 2, 4, 3])), sizes)
    kg, vg = (s.slice_(g, t, 2, 0, count) for t in (k, v))
    everyone = _scaled(g, g.op("Einsum", qb, kg, equation="bhlqd,bhkd->bhlqk"), sizes)
    scores = g.op("Concat", g.op("Add", everyone, s.unsqueeze(g, s.slice_(g, pad, 1, 0, count), 1, 2, 3)),
                  g.op("Add", scores, mask), axis=-1)
    weights = s.softmax(g, scores)
    y = g.op("Add", g.op("MatMul", s.slice_(g, weights, 4, count, count + 3 * block), beside[1]),
             g.op("Einsum", s.slice_(g, weights, 4, 0, count), vg, equation="bhlqk,bhkd->bhlqd"))
    seen = _full(g, s.slice_(g, q, 2, 0, count), k, v, pad, sizes)
    y = g.op("Concat", seen, s.slice_(g, _flat(g, y, sizes.seq, sizes), 2, count, sizes.seq), axis=2)
    return _merged(g, y, sizes)


def _sparse(g: Graph, x: str, pad: str, sizes: Sizes, count: int, rng: np.random.Generator) -> str:
    q, k, v = _heads(g, x, sizes)
    block, n = sizes.block, sizes.blocks
    qb, kb, vb = (_blocked(g, t, sizes) for t in (q, k, v))
    inner = n - 4
    middle = s.slice_(g, qb, 2, 2, n - 2)
    chosen = np.stack([np.sort(rng.choice([b for b in range(1, n - 1) if abs(b - r) > 1], count, replace=False))
                       for r in range(2, n - 2)])
    pads = g.op("Reshape", pad, g.const([0, n, block]))

    def band(t: str, axis: int) -> list[str]:
        return [s.slice_(g, t, axis, 1 + shift, n - 3 + shift) for shift in range(3)]

    def picked(t: str) -> str:
        return g.op("Reshape", g.op("Gather", t, g.const(chosen), axis=2),
                    g.const([0, sizes.heads, inner, count * block, sizes.head]))

    near = [g.op("Concat", *band(t, 2), axis=3) for t in (kb, vb)]
    far = [picked(t) for t in (kb, vb)]
    ends = [[g.op("Gather", t, g.const(at), axis=2) for t in (kb, vb)] for at in (0, n - 1)]
    near_pad = s.unsqueeze(g, g.op("Concat", *band(pads, 1), axis=2), 1, 3)
    far_pad = s.unsqueeze(g, g.op("Reshape", g.op("Gather", pads, g.const(chosen), axis=1),
                                  g.const([0, inner, count * block])), 1, 3)
    parts = []
    for keys, hidden in ((near[0], near_pad), (far[0], far_pad)):
        scores = _scaled(g, g.op("MatMul", middle, g.op("Transpose", keys, perm=[0, 1, 2, 4, 3])), sizes)
        parts.append(g.op("Add", scores, hidden))
    sides = []
    for (keys, _), at in zip(ends, (0, n - 1), strict=True):
        scores = _scaled(g, g.op("Einsum", middle, keys, equation="bhlqd,bhkd->bhlqk"), sizes)
        hidden = s.unsqueeze(g, g.op("Gather", pads, g.const(at), axis=1), 1, 2, 3)
        sides.append(g.op("Add", scores, hidden))
    weights = s.softmax(g, g.op("Concat", sides[0], *parts, sides[1], axis=-1))
    edges = [0, block, 4 * block, (4 + count) * block, (5 + count) * block]
    pieces = [s.slice_(g, weights, 4, a, b) for a, b in pairwise(edges)]
    y = g.op("Add", g.op("MatMul", pieces[1], near[1]), g.op("MatMul", pieces[2], far[1]))
    for piece, (_, values) in zip((pieces[0], pieces[3]), ends, strict=True):
        y = g.op("Add", y, g.op("Einsum", piece, values, equation="bhlqk,bhkd->bhlqd"))
    outer = [_full(g, s.slice_(g, q, 2, a, b), k, v, pad, sizes)
             for a, b in ((0, 2 * block), ((n - 2) * block, sizes.seq))]
    return _merged(g, g.op("Concat", outer[0], _flat(g, y, inner * block, sizes), outer[1], axis=2), sizes)


def layer(g: Graph, x: str, context: str, sizes: Sizes, ffn: int) -> str:
    with g.scope("attention.output"):
        x = _added(g, context, x, sizes.hidden, sizes.hidden)
    with g.scope("intermediate"):
        y = s.gelu_erf(g, s.linear(g, x, sizes.hidden, ffn))
    with g.scope("output"):
        return _added(g, y, x, ffn, sizes.hidden)


def _added(g: Graph, y: str, x: str, features_in: int, features_out: int) -> str:
    with g.scope("dense"):
        y = s.linear(g, y, features_in, features_out)
    with g.scope("LayerNorm"):
        return s.layer_norm(g, g.op("Add", y, x), features_out)
