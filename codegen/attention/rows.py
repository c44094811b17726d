"""Modifier and online softmax on one block of scores, row by row."""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.products import Sums, Tile
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.tir_math import TirMath, V
from tilegraph.ops.attention import AttentionSpace, Score
from tilegraph.ops.space import insts
from tilegraph.ops.vecmath.basic import horner
from tilegraph.ops.vecmath.coefficients import EXP_TAIL
from tilegraph.ops.vecmath.exponential import INV_LN2, LN2_HIGH, LN2_LOW, ROUNDER

_NORMAL = -87.336  # e^x is a normal float32 from here on


def exp_falling(m: TirMath, x: V) -> V:
    """e^x for x <= 0 or NaN, at most 1.25 ulp; results below the least normal number are 0.

    x = n ln2 + r as in `tilegraph.ops.vecmath.exponential`; 2^n needs no second factor here.
    """
    rounder = m.const(ROUNDER + 127, "float32")
    shifted = m.share(m.fma(x, m.const(INV_LN2, "float32"), rounder))
    n = m.share(m.sub(shifted, rounder))
    r = m.fma(n, m.const(-LN2_HIGH, "float32"), x)
    r = m.share(m.fma(n, m.const(-LN2_LOW, "float32"), r))
    power = m.bitcast(m.shl(m.bitcast(shifted, "int32"), m.const(23, "int32")), "float32")
    value = m.mul(horner(m, (1.0, 1.0, *EXP_TAIL), r), power)
    return m.select(m.lt(x, m.const(_NORMAL, "float32")), m.const(0.0, "float32"), value)


def without_keys(e: Emitter, space: AttentionSpace, inverse: V) -> V:
    """The factor of the result: 0 where a run has no key, whose products are sums over nothing."""
    size = space.j.extent.as_int()
    if size is not None and size > 0:
        return inverse
    none = V(t.EQ(e.dim(space.j.extent), e.i64(0)), "bool")
    return e.math.share(e.math.select(none, e.f32(0.0), inverse))


def _exp(e: Emitter, x: V) -> V:
    return exp_falling(e.math, e.math.share(x))


def softmax_block(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, at: Sums,
                  put: Callable[[t.Expr], None], rows: t.Expr, j0: t.Expr, columns: t.Expr,
                  known: dict[int, V]) -> None:
    """Turns scores into weights relative to the running maximum, and keeps maximum and sum in step.

    `put` sets the loops of a row. `known`: modifier values that hold for the block. What was summed so far still has to
    be multiplied by the row's `at.shrink`: `times_values` does it. All maxima come before all exponentials: these wait
    for the row's maximum, and where rows were taken whole, the next row's would wait for them.
    """
    whole = t.EQ(columns, e.i64(tile.columns))
    with e.loop("r", rows) as r:
        put(r)
        e.loops[space.j] = j0
        row = e.share(t.Add(t.Mul(r, e.i64(tile.pitch)), e.i64(at.scores)))
        before = e.math.share(e.read(memory, "float32", t.Add(r, e.i64(at.peak))))
        peak = e.scalar("row_peak", "float32", before)
        with e.block() as fast:
            _modify(e, space, memory, row, tile.columns, known, peak, None)
        with e.block() as slow:
            vectors = e.share(t.Div(columns, e.i64(tile.lanes)))
            done = e.share(t.Mul(vectors, e.i64(tile.lanes)))
            with e.loop("c", vectors) as c:
                start = e.share(t.Mul(c, e.i64(tile.lanes)))
                e.loops[space.j] = t.Add(j0, start)
                _modify(e, space, memory, t.Add(row, start), tile.lanes, known, peak, None)
            with e.when(t.LT(done, columns)):
                e.loops[space.j] = t.Add(j0, done)
                left = e.share(t.Sub(columns, done))
                _modify(e, space, memory, t.Add(row, done), tile.lanes, known, peak, left)
        e.stmts.append(t.IfThenElse(whole, t.sequence(fast), t.sequence(slow)))
        after = e.math.share(e.read(peak, "float32", 0))
        e.write(memory, t.Add(r, e.i64(at.peak)), after)
        e.write(memory, t.Add(r, e.i64(at.shrink)), e.math.sub(before, _base(e, after)))
    _shrink(e, tile, memory, at, rows)
    with e.block() as fast, e.loop("r", rows) as r:
        _weigh_row(e, tile, memory, at, r, None)
    with e.block() as slow, e.loop("r", rows) as r:
        _weigh_row(e, tile, memory, at, r, columns)
    e.stmts.append(t.IfThenElse(whole, t.sequence(fast), t.sequence(slow)))


def _base(e: Emitter, peak: V) -> V:
    """What is subtracted from scores. Exponentials of -inf, of a row without a finite score yet, are 0 anyway."""
    return e.math.select(e.math.eq(peak, e.f32(float("-inf"))), e.f32(0.0), peak)


def _shrink(e: Emitter, tile: Tile, memory: t.Buffer, at: Sums, rows: t.Expr) -> None:
    """The exponential of `at.shrink`, 1 where the maximum stays, and row sums times it; vectors of rows at a time."""
    with e.loop("s", t.Div(t.Add(rows, e.i64(tile.lanes - 1)), e.i64(tile.lanes))) as s:
        first = e.share(t.Mul(s, e.i64(tile.lanes)))
        place, total = t.Add(first, e.i64(at.shrink)), t.Add(first, e.i64(at.total))
        factor = e.math.share(_exp(e, e.read(memory, "float32", place, tile.lanes)))
        e.write(memory, place, factor, tile.lanes)
        e.write(memory, total, e.math.mul(e.read(memory, "float32", total, tile.lanes), factor), tile.lanes)


def _weigh_row(e: Emitter, tile: Tile, memory: t.Buffer, at: Sums, r: t.Expr, columns: t.Expr | None) -> None:
    """Weights of row `r` in place of its scores, and their sum. `columns`: how many there are, a block's if None."""
    row = e.share(t.Add(t.Mul(r, e.i64(tile.pitch)), e.i64(at.scores)))
    base = e.math.share(_base(e, e.math.share(e.read(memory, "float32", t.Add(r, e.i64(at.peak))))))
    total = e.scalar("row_total", "float32", e.read(memory, "float32", t.Add(r, e.i64(at.total))))
    if columns is None:
        _weigh(e, memory, row, tile.columns, base, total)
    else:
        with e.loop("c", t.Div(t.Add(columns, e.i64(tile.lanes - 1)), e.i64(tile.lanes))) as c:
            _weigh(e, memory, t.Add(row, t.Mul(c, e.i64(tile.lanes))), tile.lanes, base, total)
    e.write(memory, t.Add(r, e.i64(at.total)), e.read(total, "float32", 0))


def _modify(e: Emitter, space: AttentionSpace, memory: t.Buffer, place: t.Expr, lanes: int, known: dict[int, V],
            peak: t.Buffer, left: t.Expr | None) -> None:
    """x for `lanes` keys, and its maximum; keys from `left` on do not exist and count as -inf."""
    m = e.math
    values = dict(known)
    score = m.share(e.read(memory, "float32", place, lanes))
    for inst in insts(space.x):
        if isinstance(inst, Score):
            values[id(inst)] = score
    x = m.share(e.value(space.x, space.j, lanes, values, left))
    if left is not None:
        index = V(t.Ramp(e.i64(0), e.i64(1), lanes), "int64", lanes) if lanes > 1 else V(e.i64(0), "int64")
        x = m.select(m.lt(index, V(left, "int64")), x, e.f32(float("-inf")))
    e.write(memory, place, x, lanes)
    most = m.folded(x, lambda a, b: m.select(m.lt(a, b), b, a))
    before = m.share(e.read(peak, "float32", 0))
    e.write(peak, 0, m.select(m.lt(before, most), most, before))


def _weigh(e: Emitter, memory: t.Buffer, place: t.Expr, lanes: int, base: V, total: t.Buffer) -> None:
    """exp(x - base) in place, and their sum."""
    m = e.math
    weight = m.share(_exp(e, m.sub(e.read(memory, "float32", place, lanes), base)))
    e.write(memory, place, weight, lanes)
    part = m.folded(weight, m.add)
    e.write(total, 0, m.add(e.read(total, "float32", 0), part))
