"""Filters that end in the first half of a block, or fill one block: vectors of half as many filters for two channels.

24 filters take two vectors of 16 lanes for each channel, a quarter of them for nothing. As [filter][even or odd
channel] they take three for two channels. One load spreads a pair of channels over all lanes, for all vectors; the sums
of even and of odd channels are added when all are done.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.tir_math import V


def spread(e: Emitter, source: t.Buffer, at: t.Expr, lanes: int, pair: bool) -> t.Expr:
    """Element `at` in all lanes, or elements `at` and at+1 in turn."""
    if not pair:
        return e.math.widen(e.read(source, "float32", at), lanes)
    both = e.read(source, "float32", at, 2).expr
    order = [t.int_imm("int32", k % 2) for k in range(lanes)]
    return e.math.share(V(t.Shuffle([both] * (lanes // 2), order), "float32", lanes)).expr


def folded(e: Emitter, sums: t.Buffer, results: int, count: int, lanes: int) -> t.Buffer:
    """`sums` [result][count][filter][parity] as [result][block][filter]; filled up with zeros."""
    blocks = -(-count // 2)
    made = e.local("folded", "float32", results * blocks * lanes)
    for i in range(results):
        for j in range(blocks):
            first = i * count + 2 * j
            low = e.math.share(e.read(sums, "float32", first * lanes, lanes))
            high = e.math.widen(e.f32(0.0), lanes)
            if 2 * j + 1 < count:
                high = e.math.share(e.read(sums, "float32", (first + 1) * lanes, lanes)).expr
            even, odd = (V(t.Shuffle([low.expr, high], [t.int_imm("int32", 2 * k + p) for k in range(lanes)]),
                           "float32", lanes) for p in (0, 1))
            e.write(made, (i * blocks + j) * lanes, e.math.add(even, odd), lanes)
    return made
