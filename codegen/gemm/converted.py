"""Products whose left operand a task converts, a block of rows at a time, when it comes to the block.

The scratch begins with a line that says which block of rows lies converted behind it: 0 none, else its number and one.
The serving side clears it before a call, and hands a thread's next task the same scratch, so a thread converts a block
of rows once and not once for each of its tasks.
"""

from __future__ import annotations

from abc import abstractmethod

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm.kernel import ProductKernel
from tilegraph.codegen.tir_math import V
from tilegraph.ops.gemm import GemmSpace
from tilegraph.spec.dims import Dim

_WORDS = 16  # of a cache line


class ConvertedRows(ProductKernel):
    """`words`: 4-byte words that a converted row takes. Conversion takes a few percent of a panel's multiplications."""

    def __init__(self, space: GemmSpace, vector_bits: int, words: int) -> None:
        super().__init__(space, vector_bits)
        self.dtype = "int32"
        # From a row to the next: whole lines, and no multiple of 4 KB, whose lines share a set of the cache.
        self.pitch = -(-words // _WORDS) * _WORDS
        self.pitch += _WORDS if self.pitch % 1024 == 0 else 0
        self.first: t.Expr = None

    @abstractmethod
    def convert(self, start: t.Expr, place: t.Expr) -> None:
        """Converts the row at `start` of `source` to words from `place` of `left` on."""

    def open(self) -> None:
        super().open()
        self.source, self.left = self.left, self.e.flat("rows", "int32")

    @property
    def scratch(self) -> Dim:
        """Bytes."""
        return Dim.min(self.space.m, self.block) * (self.pitch * 4) + _WORDS * 4

    def start(self, unit: t.Expr, panel: t.Expr, first: t.Expr, rows: t.Expr) -> None:
        e = self.e
        self.first = first
        number = e.share(t.Cast("int32", t.Add(t.Div(first, e.i64(self.block)), e.i64(1))), "int32")
        with e.when(t.NE(e.read(self.left, "int32", 0).expr, number)):
            with e.loop("r", rows) as r:
                (start,) = super().left_rows(e.share(t.Add(first, r)), 1)
                self.convert(start, e.share(t.Add(t.Mul(r, e.i64(self.pitch)), e.i64(_WORDS))))
            e.write(self.left, 0, V(number, "int32"))

    def left_rows(self, row: t.Expr, rows: int) -> list[t.Expr]:
        start = self.e.share(self.converted(row))
        return [t.Add(start, self.e.i64(r * self.pitch)) if r else start for r in range(rows)]

    def converted(self, row: t.Expr) -> t.Expr:
        """Where the row number `row` lies converted."""
        return t.Add(t.Mul(t.Sub(row, self.first), self.e.i64(self.pitch)), self.e.i64(_WORDS))
