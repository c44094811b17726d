"""Products of 8-bit integers with exact sums, less their zero points.

The kernel multiplies unsigned bytes of rows with signed bytes of the matrix, four neighbours along k at a time; int8
rows and uint8 matrices are moved by 128, zero points with them. What the zero points take away needs only the sums of
rows and of columns:

    sum (a - za)(b - zb)  =  sum a b  -  za (sum b - K zb)  -  zb sum a

Int32 wraps, so the order does not matter. Column sums are packed behind each panel.
"""

from __future__ import annotations

from collections.abc import Collection

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm.converted import ConvertedRows
from tilegraph.codegen.gemm.dots import Dots
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.gemm.space import Integers
from tilegraph.ops.space import Literal, Load
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters

_ONES = 0x01010101
_Zero = Load | Literal | None


def generate(space: GemmSpace, name: str, vector_bits: int, features: Collection[str]) -> Generated:
    """Emits `space`, whose `quantized` are `Integers`, as the function `name`."""
    assert isinstance(space.quantized, Integers)
    return _Integers(space, space.quantized, vector_bits, features).run(name)


class _Integers(ConvertedRows):
    """A converted row: its bytes, filled up to whole lines, and a line that begins with their sum."""

    def __init__(self, space: GemmSpace, how: Integers, vector_bits: int, features: Collection[str]) -> None:
        super().__init__(space, vector_bits, -(-space.depth // 64) * 16 + 16)
        self.how = how
        self.depth = -(-space.depth // 4)
        self.left_stored, self.summed = "uint8", "int32"  # bytes, whatever they stand for
        self.dots = Dots.choose(self.e, vector_bits, features)
        self.sum_at = -(-space.depth // 64) * 16

    def open(self) -> None:
        super().open()
        self.bytes = self.e.flat("bytes", "uint8")

    def finish(self, name: str, memory: list[t.Buffer], *, extent: Dim, scratch: Dim, grain: Dim) -> Generated:
        kind = "rowquads" if self.space.transposed else "quads"
        filters = ((self.space.right_slot, Filters(kind, self.tile.panel, self.space.n)),)
        return self.e.finish(name, [*memory, self.left, self.bytes], extent=extent, align=1, scratch=self.scratch,
                             grain=grain, filters=filters, features=self.dots.features)

    def base(self, column: t.Expr) -> t.Expr:
        """A panel has a row of column sums more than it has steps."""
        e = self.e
        base = e.share(t.Mul(column, e.i64(self.depth + 1)))
        self.sums_at = e.share(t.Sub(t.Add(base, e.i64(self.depth * self.tile.panel)), column))
        return base

    def multiply(self, left: t.Expr, right: t.Expr, sums: t.Expr) -> t.Expr:
        return self.dots.dot(sums, left, right)

    # -- rows -----------------------------------------------------------------------------------------------------
    def convert(self, start: t.Expr, place: t.Expr) -> None:
        e, width = self.e, self.dots.lanes * 4
        into = e.share(t.Mul(place, e.i64(4)))
        with e.loop("k", self.space.depth // width) as k:
            at = t.Mul(k, e.i64(width))
            raw = e.read(self.source, "uint8", t.Add(start, at), width)
            e.write(self.bytes, t.Add(into, at), self._unsigned(raw), width)
        done = self.space.depth // width * width
        filled = e.i64(self.sum_at * 4 - done)
        if done < self.space.depth:
            with e.loop("k", self.space.depth - done, done) as k:
                e.write(self.bytes, t.Add(into, k), self._unsigned(e.read(self.source, "uint8", t.Add(start, k))))
        with e.loop("k", t.Sub(filled, e.i64(self.space.depth - done)), self.space.depth) as k:
            e.write(self.bytes, t.Add(into, k), e.math.const(0, "uint8"))
        if self._has_zero(self.how.right_zero, self.how.right_stored == "uint8", -128):
            self._sum_up(place)

    def _unsigned(self, value: V) -> V:
        m = self.e.math
        return m.bxor(value, m.const(128, "uint8")) if self.how.left_stored == "int8" else value

    def _sum_up(self, place: t.Expr) -> None:
        """The sum of a converted row behind it."""
        e, lanes = self.e, self.dots.lanes
        total = e.local("total", "int32", lanes)
        e.write(total, 0, e.math.const(0, "int32"), lanes)
        ones = e.math.widen(e.math.const(_ONES, "int32"), lanes)
        with e.loop("k", self.sum_at // lanes) as k:
            row = e.read(self.left, "int32", t.Add(place, t.Mul(k, e.i64(lanes))), lanes)
            sums = self.dots.dot(e.read(total, "int32", 0, lanes).expr, row.expr, ones)
            e.write(total, 0, V(sums, "int32", lanes), lanes)
        whole = t.intrinsic("int32", "llvm.vector.reduce.add", e.read(total, "int32", 0, lanes).expr)
        e.write(self.left, t.Add(place, e.i64(self.sum_at)), V(whole, "int32"))

    # -- results --------------------------------------------------------------------------------------------------
    def product(self, sums: V, column: t.Expr) -> V:
        e, m, how = self.e, self.e.math, self.how
        other = None
        if self._has_zero(how.right_zero, how.right_stored == "uint8", -128):
            other = self._zero(how.right_zero, how.right_stored == "uint8", -128, sums.lanes)
        if self._has_zero(how.left_zero, how.left_stored == "int8", 128):
            zero = self._zero(how.left_zero, how.left_stored == "int8", 128, 1)
            columns = e.read(self.right, "int32", t.Add(self.sums_at, column), sums.lanes)
            if other is not None:
                columns = m.sub(columns, m.mul(other, m.const(self.space.depth, "int32")))
            sums = m.sub(sums, m.mul(zero, columns))
        if other is not None:
            row = e.read(self.left, "int32", t.Add(self.converted(self.row), e.i64(self.sum_at)))
            sums = m.sub(sums, m.mul(other, row))
        return sums

    @staticmethod
    def _has_zero(zero: _Zero, moved: bool, by: int) -> bool:
        """Whether the zero point of the bytes as they are multiplied may be other than 0."""
        if zero is None or isinstance(zero, Literal):
            return (0 if zero is None else int(zero.value)) + (by if moved else 0) != 0
        return True

    def _zero(self, zero: _Zero, moved: bool, by: int, lanes: int) -> V:
        """The zero point of the bytes as they are multiplied, int32."""
        e, m = self.e, self.e.math
        if zero is None or isinstance(zero, Literal):
            return m.const((0 if zero is None else int(zero.value)) + (by if moved else 0), "int32")
        value = m.cast(e.value(zero, self.space.cols[-1], lanes, {}), "int32")
        return m.add(value, m.const(by, "int32")) if moved else value
