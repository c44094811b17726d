"""Convolutions to few filters with a plain result [N, K, rows, columns].

Filters, and the places of a window for transposed ones, are the lanes of one block. Sums are made as in `direct`; their
lanes are spread over lines, one a filter and row, and bias and epilogue are computed along those when a row is done.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.conv.direct import Direct
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.conv import ConvSpace
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, with a plain result, as the function `name` for registers of `vector_bits` bits."""
    return _Narrow(space, vector_bits).generate(name)


class _Narrow(Direct):
    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.down, self.across = (v.extent.value for v in space.phases) if space.phases else (1, 1)
        self.lines = space.filters * self.down
        self.length = self.line.out * self.across
        self.lines_at = self.sums_at
        if not self.memory:
            self.memory = [self.e.flat("scratch", "float32")]
        self.scratch = Dim.of(4 * self.lines_at) + self.length * (4 * self.lines)

    def generate(self, name: str) -> Generated:
        space = self.space
        assert space.weights_slot is not None
        filters = ((space.weights_slot, Filters("narrow" if space.phases else "direct", self.lanes, self.step)),)
        return self.run(name, filters, space.depth * self.taps * self.height)

    def _from_registers(self, sums: t.Buffer, width: int, places: list[int]) -> None:
        e, across = self.e, self.across
        for i, place in enumerate(places):
            value = e.math.share(e.read(sums, "float32", place, self.lanes)).expr
            x = t.Mul(t.Add(self.x, e.i64(i)), e.i64(across))
            for k in range(self.lines):
                order = [t.int_imm("int32", k * across + j) for j in range(across)]
                part = V(t.Shuffle([value], order), "float32", across)
                e.write(self.memory[0], self._place(e.i64(k), x), part, across)

    def row_done(self) -> None:
        e, lanes = self.e, self.lanes
        length = e.share(e.dim(self.length))
        with e.loop("k", self.lines) as k:
            whole = e.share(t.Div(length, e.i64(lanes)))
            with e.loop("x", whole) as x:
                self._finished(k, e.share(t.Mul(x, e.i64(lanes))), lanes)
            done = e.share(t.Mul(whole, e.i64(lanes)))
            with e.loop("x", t.Sub(length, done), done) as x:
                self._finished(k, x, 1)

    def _finished(self, k: t.Expr, x: t.Expr, count: int) -> None:
        """Results x .. x+count-1 of line k."""
        e, space = self.e, self.space
        assert space.plain is not None
        channel, rows, columns = space.plain
        assert columns is not None
        kept = {v: e.loops[v] for v in (rows, columns) if v is not None and v in e.loops}
        number = t.Div(k, e.i64(self.down))
        y = e.share(t.Add(t.Mul(self.y, e.i64(self.down)), t.Rem(k, e.i64(self.down))))
        self.set_loop(channel, e.share(number))
        self.set_loop(rows, y)
        self.set_loop(columns, x)
        value = e.math.share(e.read(self.memory[0], "float32", self._place(k, x), count))
        if self.bias is not None:
            value = e.math.share(e.math.add(value, e.read(self.bias, "float32", number)))
        known = {id(leaf): value for leaf in self.leaves}
        e.write(self.result, e.index(space.address), e.value(space.value, columns, count, known), count)
        e.loops.update(kept)

    def _place(self, line: t.Expr, x: t.Expr) -> t.Expr:
        e = self.e
        return t.Add(t.Add(t.Mul(line, e.dim(self.length)), x), e.i64(self.lines_at))
