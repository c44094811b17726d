"""Blocks of which every score is the same number, such as those of a query whose keys are all hidden.

finfo.min plus any score is finfo.min, so the softmax of such a query has the same weight for every key: the sum of the
values is enough, once for all queries of the block, and neither products nor exponentials of single keys are needed.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.products import Sums, Tile, chunks
from tilegraph.codegen.attention.rows import exp_falling
from tilegraph.codegen.emitter import STORAGE, Emitter
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import AttentionSpace
from tilegraph.ops.space import Load


def flat_block(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, at: Sums, rows: t.Expr, j0: t.Expr,
               columns: t.Expr, level: V) -> None:
    """Takes `columns` keys from `j0` of score `level`, which is finite, into maximum, sum and output of every row.

    The block of scores holds the sum of the values.
    """
    m = e.math
    _sum_values(e, space, tile, memory, at.scores, j0, columns)
    count = m.cast(V(columns, "int64"), "float32")
    with e.loop("r", rows) as r:
        peak, total = t.Add(r, e.i64(at.peak)), t.Add(r, e.i64(at.total))
        out = e.share(t.Add(t.Mul(r, e.i64(tile.width_pitch)), e.i64(at.values)))
        before = m.share(e.read(memory, "float32", peak))
        # Most often both are 1: the blocks before had the same score.
        shrink, weight = (e.scalar(name, "float32", e.f32(1.0)) for name in ("shrink", "weight"))
        with e.when(m.lt(before, level).expr):
            e.write(shrink, 0, exp_falling(m, m.share(m.sub(before, level))))
            e.write(memory, peak, level)
        with e.when(m.lt(level, before).expr):
            e.write(weight, 0, exp_falling(m, m.share(m.sub(level, before))))
        alpha, one = (m.share(e.read(buffer, "float32", 0)) for buffer in (shrink, weight))
        e.write(memory, total, m.fma(one, count, m.mul(e.read(memory, "float32", total), alpha)))
        for chunk in chunks(space.width, tile.lanes):
            for first, width in chunk:
                place = t.Add(out, e.i64(first))
                kept = m.mul(e.read(memory, "float32", place, width), alpha)
                added = e.read(memory, "float32", at.scores + first, width)
                e.write(memory, place, m.fma(one, added, kept), width)


def _sum_values(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, place: int, j0: t.Expr,
                columns: t.Expr) -> None:
    """memory[place + c] = the sum of column c of the values of `columns` keys."""
    v = space.v
    assert isinstance(v, Load)
    values, stored = e.input(v.slot, v.stored), STORAGE.get(v.stored, v.stored)
    for chunk in chunks(space.width, tile.lanes):
        sums = [e.local("acc", "float32", width) for _, width in chunk]
        for (_, width), acc in zip(chunk, sums, strict=True):
            e.write(acc, 0, e.f32(0.0), width)
        with e.loop("c", columns) as c:
            e.loops[space.j] = t.Add(j0, c)
            for (first, width), acc in zip(chunk, sums, strict=True):
                e.loops[space.e] = e.i64(first)
                value = e.unpack(e.read(values, stored, e.index(v.address), width), v.stored, v.dtype)
                e.write(acc, 0, e.math.add(e.read(acc, "float32", 0, width), value), width)
        for (first, width), acc in zip(chunk, sums, strict=True):
            e.write(memory, place + first, e.read(acc, "float32", 0, width), width)
