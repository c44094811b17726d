"""Attention of a few queries, as in a decoder's step: keys and values are read once, where they are.

The rows of a block are the queries of all heads that share their keys, so that grouped heads read them together. Scores
are sums of products along the depth, for as many keys at a time as a vector has lanes; the lanes of that many sums are
then added up in a tree of shuffles whose result is one vector of scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.products import Tile, fma
from tilegraph.codegen.emitter import STORAGE, Emitter
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import AttentionSpace


def dot_scores(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, queries: int, block: int, rows: t.Expr,
               j0: t.Expr, columns: t.Expr, before: Callable[[t.Expr, t.Expr], None]) -> None:
    """block[r, c] = sum_d queries[r, d] * key[j0 + c, d] for `rows` rows and `columns` keys (and some that are there
    twice, up to a whole vector). `before` emits what comes before a few keys are read: from which on, how many."""
    m = e.math
    assert space.streamed is not None
    load, factor, step = space.streamed
    lanes = min(step, tile.lanes)
    last = e.share(t.Sub(columns, e.i64(1)))
    with e.loop("c", t.Div(t.Add(columns, e.i64(lanes - 1)), e.i64(lanes))) as c:
        start = e.share(t.Mul(c, e.i64(lanes)))
        before(e.share(t.Add(j0, start)), e.share(t.Min(t.Sub(columns, start), e.i64(lanes))))
        places = []
        for k in range(lanes):
            e.loops[space.j] = e.share(t.Add(j0, t.Min(t.Add(start, e.i64(k)), last)))
            e.loops[space.d] = e.i64(0)
            places.append(e.share(e.index(load.address)))
        keys, stored = e.input(load.slot, load.stored), STORAGE.get(load.stored, load.stored)
        with e.loop("r", rows) as r:
            row = e.share(t.Add(t.Mul(r, e.i64(tile.depth_pitch)), e.i64(queries)))
            sums = [e.local("acc", "float32", lanes) for _ in range(lanes)]
            for d in range(0, space.depth, lanes):
                query = m.share(e.read(memory, "float32", t.Add(row, e.i64(d)), lanes))
                for place, acc in zip(places, sums, strict=True):
                    at = t.Add(place, e.i64(d))
                    key = e.unpack(e.read(keys, stored, at, lanes), load.stored, load.dtype)
                    value = fma(e, query, key, e.read(acc, "float32", 0, lanes)) if d else m.mul(query, key)
                    e.write(acc, 0, value, lanes)
            total = lane_sums(e, [m.share(e.read(acc, "float32", 0, lanes)) for acc in sums])
            if factor != 1.0:
                total = m.mul(total, e.f32(factor))
            at = t.Add(t.Add(t.Mul(r, e.i64(tile.pitch)), e.i64(block)), start)
            e.write(memory, at, total, lanes)


def lane_sums(e: Emitter, rows: list[V]) -> V:
    """Lane l of the result is the sum over all lanes of rows[l]; as many rows as lanes, a power of two."""
    m, lanes = e.math, rows[0].lanes
    step = lanes // 2
    while step:
        upper = [k if not k & step else lanes + k - step for k in range(lanes)]
        lower = [k + step if not k & step else lanes + k for k in range(lanes)]
        made = []
        for k in range(step):
            pair = [rows[k].expr, rows[k + step].expr]
            a, b = (V(t.Shuffle(pair, [t.int_imm("int32", o) for o in order]), "float32", lanes)
                    for order in (upper, lower))
            made.append(m.share(m.add(a, b)))
        rows, step = made, step // 2
    return rows[0]


class Rows:
    """Where the rows of a block lie: (head of the group, query), the query fastest."""

    def __init__(self, e: Emitter, space: AttentionSpace) -> None:
        self.e = e
        self.space = space
        self.first: t.Expr = e.i64(0)  # head of the group that the block begins with
        self.least = self.most = 0  # how many rows a block may have

    @property
    def heads(self) -> int:
        """How many heads read the same keys."""
        return math.prod(v.extent.value for v in self.space.sharing)

    def put(self, r: t.Expr) -> None:
        """Sets the loops of row r."""
        e, space = self.e, self.space
        count = e.dim(space.i.extent)
        if space.i.extent == 1:
            e.loops[space.i] = e.i64(0)
            head = r
        elif space.sharing:
            e.loops[space.i] = e.share(t.Rem(r, count))
            head = e.share(t.Div(r, count))
        else:
            e.loops[space.i] = r
            return
        if space.sharing:
            e.set_loops(space.sharing, e.share(t.Add(self.first, head)))
