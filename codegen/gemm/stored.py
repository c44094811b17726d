"""Products with a matrix that is computed from constants: integers with scales beside them, float16, and the like.

Where there are many rows, a task computes a panel of the matrix once for a block of rows, into its scratch, and
multiplies with that: a percent or two of the product's time. Few rows compute the vectors as they come to them, so that
what is read from memory is the constants as they are stored.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import STORAGE
from tilegraph.codegen.gemm.kernel import Ahead, ProductKernel
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.dtypes import BYTES, NARROW
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.gemm.matrix import Matrix, Table
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters

FEW = 16  # rows below which a panel is not worth computing beforehand
_NEAR = 1024  # bytes: how far ahead few rows ask for the constants


def generate(space: GemmSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, whose `matrix` is set, as the function `name` for registers of `vector_bits` bits."""
    assert space.matrix is not None
    return _Stored(space, space.matrix, vector_bits).run(name)


class ComputedPanels(ProductKernel):
    """`whole`: whether the panel that is multiplied with lies computed in the scratch; `panel`: its number."""

    def __init__(self, space: GemmSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.whole = False
        self.panel: t.Expr = None

    @abstractmethod
    def compute(self) -> None:
        """Computes the panel, in the scratch."""

    @abstractmethod
    def layouts(self) -> list[tuple[int, Filters]]:
        """How each of the constants is packed, by input."""

    def open(self) -> None:
        self.right = self.e.flat("panel", "float32")
        self.rights = [self.right]

    def finish(self, name: str, memory: list[t.Buffer], *, extent: Dim, scratch: Dim, grain: Dim) -> Generated:
        static = self.space.m.as_int()
        if static is None or static >= FEW:
            memory, scratch = [*memory, self.right], scratch + self.space.depth * self.tile.panel * 4
        return self.e.finish(name, memory, extent=extent, align=1, scratch=scratch, grain=grain,
                             filters=tuple(sorted(self.layouts(), key=lambda f: f[0])))

    def _unit(self, p: t.Expr, first: t.Expr, rows: t.Expr, columns: int) -> None:
        static = self.space.m.as_int()
        self.panel, self.vectors = p, -(-columns // self.tile.lanes)
        few = t.LT(rows, self.e.i64(FEW))
        if static is None or static >= FEW:
            with self._only(None if static is not None else t.Not(few)):
                self.whole = True
                self.compute()
                super()._unit(p, first, rows, columns)
        if static is None or static < FEW:
            with self._only(None if static is not None else few):
                self.whole = False
                super()._unit(p, first, rows, columns)

    def _only(self, condition: t.Expr) -> contextlib.AbstractContextManager[None]:
        return self.e.when(condition) if condition is not None else contextlib.nullcontext()

    def base(self, column: t.Expr) -> t.Expr:
        return self.e.i64(0)

    def near(self) -> Ahead:
        return Ahead(1, 0)

    def _share(self, group: t.Expr) -> Ahead | None:
        return None


class _Stored(ComputedPanels):
    def __init__(self, space: GemmSpace, matrix: Matrix, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.matrix = matrix

    def open(self) -> None:
        super().open()
        for table in self.matrix.tables:
            self._buffer(table)

    def layouts(self) -> list[tuple[int, Filters]]:
        return list({(table.load.slot, Filters(_layout(table), self.tile.panel, self.space.n))
                     for table in self.matrix.tables})

    def columns(self, at: t.Expr) -> list[V]:
        if self.whole:
            return super().columns(at)
        e, panel = self.e, self.tile.panel
        row = e.share(t.Div(at, e.i64(panel)))
        e.set_loops(self.matrix.rows, row)
        for table in self.matrix.tables:
            if table.load.slot == self.matrix.slot:
                width = BYTES.get(table.load.stored, 1)
                for line in range(-(-panel * width // 64)):
                    place = t.Add(self._place(table, e.index(table.row)), e.i64((_NEAR + 64 * line) // width))
                    e.prefetch(self._buffer(table), place)
        return self._vectors()

    # -- the matrix -----------------------------------------------------------------------------------------------
    def compute(self) -> None:
        e, lanes = self.e, self.tile.lanes
        with contextlib.ExitStack() as loops:
            row = e.i64(0)
            for var in self.matrix.rows:
                e.loops[var] = loops.enter_context(e.loop("d", e.dim(var.extent)))
                row = t.Add(t.Mul(row, e.dim(var.extent)), e.loops[var])
            at = e.share(t.Mul(row, e.i64(self.tile.panel)))
            for v, value in enumerate(self._vectors()):
                e.write(self.right, t.Add(at, e.i64(v * lanes)), value, lanes)

    def _vectors(self) -> list[V]:
        """The vectors of the panel in the row that the loops stand at."""
        e, lanes = self.e, self.tile.lanes
        found = []
        for v in range(self.vectors):
            known = {}
            for table in self.matrix.tables:
                known[id(table.load)] = e.math.share(self._read(table, v * lanes))
            found.append(e.math.share(V(e.math.widen(self._value(known), lanes), "float32", lanes)))
        return found

    def _value(self, known: dict[int, V]) -> V:
        return self.e.value(self.matrix.value, self.space.k, self.tile.lanes, known)

    def _read(self, table: Table, column: int) -> V:
        """What `table` holds from `column` of the panel on, in the row that the loops stand at."""
        e, m, load, lanes = self.e, self.e.math, table.load, self.tile.lanes
        row = e.share(e.index(table.row))
        place = t.Add(self._place(table, row), e.i64(column))
        if load.stored not in NARROW:
            raw = e.read(self._buffer(table), STORAGE.get(load.stored, load.stored), place, lanes)
            return e.unpack(raw, load.stored, load.dtype)
        byte = m.cast(e.read(self._buffer(table), "uint8", place, lanes), "int32")
        # Shifted to the top and back, which extends the sign where there is one.
        odd = m.cast(V(t.Rem(row, e.i64(2)), "int64"), "int32")
        high = m.shl(byte, m.sub(m.const(28, "int32"), m.mul(odd, m.const(4, "int32"))))
        if load.stored == "uint4":
            high = m.bitcast(high, "uint32")
        return m.cast(m.shr(high, m.const(28, high.dtype)), load.dtype)

    def _buffer(self, table: Table) -> t.Buffer:
        return self.e.input(table.load.slot, "uint8" if table.load.stored in NARROW else table.load.stored)

    def _place(self, table: Table, row: t.Expr) -> t.Expr:
        """Where the panel's part of a row of `table` starts."""
        e, panel, depth = self.e, self.tile.panel, table.depth
        if table.load.stored in NARROW:
            depth, row = -(-depth // 2), t.Div(row, e.i64(2))
        return t.Mul(t.Add(t.Mul(self.panel, e.i64(depth)), row), e.i64(panel))


def _layout(table: Table) -> str:
    return ("rows" if table.transposed else "columns") + ("4" if table.load.stored in NARROW else "")
