"""How rows of a softmax begin and end, whichever way the keys between are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.operands import fit
from tilegraph.codegen.attention.products import Sums, Tile
from tilegraph.codegen.attention.rows import without_keys
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.rows.values import pack
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import AttentionSpace
from tilegraph.ops.space import Inst

_GONE = 104.0  # exp(-104) is 0 in float32


@dataclass(frozen=True)
class Scratch:
    """Offsets in float32 elements."""

    queries: int
    scores: int
    sums: int
    peak: int
    total: int
    shrink: int
    keys: int

    @staticmethod
    def of(tile: Tile) -> Scratch:
        scores = tile.rows * tile.depth_pitch
        sums = scores + tile.rows * tile.pitch
        peak = sums + tile.rows * tile.width_pitch
        rows = -(-tile.rows // tile.lanes) * tile.lanes  # whole vectors of rows
        return Scratch(0, scores, sums, peak, peak + rows, peak + 2 * rows, peak + 3 * rows)

    @property
    def block(self) -> Sums:
        return Sums(self.scores, self.peak, self.total, self.shrink, self.sums)


class Ends:
    """Emits the beginning and the end of a block of rows. `put` sets the loops of a row everywhere."""

    def __init__(self, emitter: Emitter, space: AttentionSpace, tile: Tile) -> None:
        self.e = emitter
        self.space = space
        self.tile = tile
        self.at = Scratch.of(tile)
        self.memory = emitter.flat("scratch_f32", "float32")
        self.result = emitter.output(0, space.stored)

    def start(self, rows: t.Expr, put: Callable[[t.Expr], None], first: t.Expr | None = None) -> None:
        """Nothing is summed yet but the sink, if there is one: 1, relative to itself as the greatest score. `first`:
        whether these are the keys that it counts with, where others have them in pieces."""
        e, m, tile, sink = self.e, self.e.math, self.tile, self.space.sink
        with e.loop("r", rows) as r:
            peak, total = e.f32(float("-inf")), e.f32(0.0)
            if sink is not None:
                put(r)
                score = m.share(e.value(sink, self.space.j, 1, {}))
                own = m.share(m.sub(score, score))  # NaN for an infinite one, or NaN
                counts = V(t.int_imm("bool", 1) if first is None else first, "bool")
                total = m.select(m.lor(m.eq(score, peak), m.lnot(counts)), total, m.add(own, e.f32(1.0)))
                peak = m.select(m.land(m.eq(own, e.f32(0.0)), counts), score, peak)
            e.write(self.memory, t.Add(r, e.i64(self.at.peak)), peak)
            e.write(self.memory, t.Add(r, e.i64(self.at.total)), total)
        with e.loop("r", tile.rows * tile.width_pitch // tile.lanes) as r:
            at = t.Add(t.Mul(r, e.i64(tile.lanes)), e.i64(self.at.sums))
            e.write(self.memory, at, e.f32(0.0), tile.lanes)

    def attempt(self) -> None:
        """Nothing is left out yet."""
        self.left_out = self.e.scalar("left_out", "float32", self.e.f32(float("-inf")))

    def leave_out(self, bound: V) -> None:
        e, m = self.e, self.e.math
        before = m.share(e.read(self.left_out, "float32", 0))
        e.write(self.left_out, 0, m.select(m.lt(before, bound), bound, before))

    def verdict(self, rows: t.Expr, again: t.Buffer) -> None:
        """Whether what was left out is 0 for every row; a row whose bound was -inf needs no maximum."""
        e, m = self.e, self.e.math
        gone = m.share(e.read(self.left_out, "float32", 0))
        with e.when(m.lnot(m.eq(gone, e.f32(float("-inf")))).expr), e.loop("r", rows) as r:
            peak = e.read(self.memory, "float32", t.Add(r, e.i64(self.at.peak)))
            certain = m.lt(e.f32(_GONE), m.sub(peak, gone))
            with e.when(m.lnot(certain).expr):
                e.write(again, 0, V(e.i64(1), "int64"))

    def store(self, put: Callable[[t.Expr], None], rows: t.Expr) -> None:
        e, m, space, tile = self.e, self.e.math, self.space, self.tile
        with e.loop("r", rows) as r:
            put(r)
            total = m.share(e.read(self.memory, "float32", t.Add(r, e.i64(self.at.total))))
            inverse = without_keys(e, space, m.share(m.div(e.f32(1.0), total)))
            row = e.share(t.Add(t.Mul(r, e.i64(tile.width_pitch)), e.i64(self.at.sums)))
            if space.guarded:
                with e.when(m.lnot(m.lt(e.f32(0.0), total)).expr):
                    self._nothing(row)
                inverse = m.select(m.lt(e.f32(0.0), total), inverse, e.f32(1.0))
            if space.hides is not None:
                hidden = self._hidden(space.hides, total)
                with e.when(hidden.expr):
                    self._nothing(row)
                inverse = m.select(hidden, e.f32(1.0), inverse)
            done = 0
            while done < space.width:
                width = fit(space.width - done, tile.lanes)
                e.loops[space.e] = e.i64(done)
                value = m.mul(e.read(self.memory, "float32", t.Add(row, e.i64(done)), width), inverse)
                e.write(self.result, e.index(space.address), pack(m, m.share(value), space.stored), width)
                done += width

    def _hidden(self, term: Inst, total: V) -> V:
        """Whether `term` is minus infinity for all keys of the row: only looked at where no weight is above 0."""
        e, m = self.e, self.e.math
        hidden = e.scalar("hidden", "int64", V(e.i64(0), "int64"))
        with e.when(m.lnot(m.lt(e.f32(0.0), total)).expr):
            e.write(hidden, 0, V(e.i64(1), "int64"))
            with e.loop("c", e.dim(self.space.j.extent)) as c:
                e.loops[self.space.j] = c
                value = e.value(term, self.space.j, 1, {})
                with e.when(m.lnot(m.eq(value, e.f32(float("-inf")))).expr):
                    e.write(hidden, 0, V(e.i64(0), "int64"))
        return m.share(m.eq(e.read(hidden, "int64", 0), V(e.i64(1), "int64")))

    def _nothing(self, row: t.Expr) -> None:
        """Weights that all became 0: the sum of 0 * value, which is NaN where a value is not finite."""
        e, m, space = self.e, self.e.math, self.space
        done = 0
        while done < space.width:
            width = fit(space.width - done, self.tile.lanes)
            e.loops[space.e] = e.i64(done)
            at = t.Add(row, e.i64(done))
            e.write(self.memory, at, e.f32(0.0), width)
            with e.loop("c", e.dim(space.j.extent)) as c:
                e.loops[space.j] = c
                value = e.value(space.v, space.e, width, {})
                e.write(self.memory, at, m.fma(value, e.f32(0.0), e.read(self.memory, "float32", at, width)), width)
            done += width
