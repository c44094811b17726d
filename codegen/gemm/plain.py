"""Products in float32 with the matrix as it is."""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm.kernel import CHUNK, ProductKernel
from tilegraph.codegen.gemm.tile import is_deep
from tilegraph.codegen.generated import Generated
from tilegraph.ops.gemm import GemmSpace
from tilegraph.spec.dims import Dim

_PART = 2 * CHUNK  # steps of k of a deep panel that a block of rows is multiplied with before it comes to the next


def generate(space: GemmSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    assert space.precision == "float32"
    return _Plain(space, vector_bits).run(name)


class _Plain(ProductKernel):
    """The matrix as it is. A deep panel and the next one do not fit the level 2 cache together, so a block of rows is
    multiplied with `_PART` steps of k before the next ones, its sums in the task's scratch.
    """

    def open(self) -> None:
        super().open()
        static = self.space.m.as_int()
        self.deep = is_deep(self.space, self.tile) and (static is None or static >= self.tile.rows)
        self.sums = self.e.flat("sums", "float32") if self.deep else None

    def finish(self, name: str, memory: list[t.Buffer], *, extent: Dim, scratch: Dim, grain: Dim) -> Generated:
        if self.deep:
            row = self.tile.panel * self.parts * 4
            memory, scratch = [*memory, self.sums], scratch + Dim.min(self.space.m, self.block) * row
        return super().finish(name, memory, extent=extent, scratch=scratch, grain=grain)

    def _whole(self, first: t.Expr, groups: t.Expr, base: t.Expr, column: t.Expr, columns: int) -> None:
        if not self.deep:
            super()._whole(first, groups, base, column, columns)
            return
        e, tile = self.e, self.tile
        groups, each = e.share(groups), self.parts * tile.rows * self.vectors * tile.lanes
        with e.loop("v", t.Mul(groups, e.i64(each // tile.lanes))) as v:
            e.write(self.sums, t.Mul(v, e.i64(tile.lanes)), e.f32(0.0), tile.lanes)
        with e.loop("d", self.depth // _PART) as d:
            self._part(first, groups, base, e.share(t.Mul(d, e.i64(_PART))), _PART)
        rest = self.depth % _PART
        if rest:
            self._part(first, groups, base, e.i64(self.depth - rest), rest)
        with e.loop("g", groups) as g:
            row = e.share(t.Add(first, t.Mul(g, e.i64(tile.rows))))
            self._results(self.sums, row, tile.rows, column, columns, e.share(t.Mul(g, e.i64(each))))

    def _part(self, first: t.Expr, groups: t.Expr, base: t.Expr, begin: t.Expr, depth: int) -> None:
        """`depth` steps of k from `begin` for all groups of rows."""
        e, tile = self.e, self.tile
        with e.loop("g", groups) as g:
            row = e.share(t.Add(first, t.Mul(g, e.i64(tile.rows))))
            starts = [e.share(t.Add(start, begin)) for start in self.left_rows(row, tile.rows)]
            ahead = self.shared(g, depth, _PART) or self.near()
            right = e.share(t.Add(base, t.Mul(begin, e.i64(tile.panel))))
            size = tile.rows * self.vectors * tile.lanes
            at = e.share(t.Mul(g, e.i64(self.parts * size)))
            for part in self.each_part():
                self.chunks(self.sums, starts, right, depth, ahead, t.Add(at, e.i64(part * size)) if part else at)
