"""Matrices that are computed point by point from constants: stored as integers, say, with scales beside them."""

from __future__ import annotations

from dataclasses import dataclass

from tilegraph.ops.dtypes import NARROW
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.lower import prims_of
from tilegraph.ops.prims import Decline, Input, Lowered, Prim
from tilegraph.ops.pull import Puller
from tilegraph.ops.space import Inst, Load, Place, insts
from tilegraph.spec.dims import Dim

_PER_BYTE = 2  # elements of a matrix that share an element of a constant


@dataclass(frozen=True)
class Table:
    """What `load` reads for one row of the matrix lies in row `row` of a constant of `depth` rows, or, `transposed`, in
    one of its columns; it has as many columns as the matrix."""

    load: Load
    row: Ix
    depth: int
    transposed: bool


@dataclass(frozen=True)
class Matrix:
    """matrix[k, n] = value, k the mixed radix number of the loops `rows`, outermost first.

    Everything that changes with n comes from `tables`; `slot` is the input with the most elements.
    """

    rows: tuple[Var, ...]
    value: Inst
    tables: tuple[Table, ...]
    slot: int


def plan_matrix(right: Prim) -> Matrix:
    """The plan of `right`, [k, n] of constant extents. `Decline` with what it is not."""
    return _Planner(right).plan()


class _Planner(Puller[Matrix]):
    def __init__(self, right: Prim) -> None:
        super().__init__(right)
        inputs = [p for p in prims_of(Lowered((right,), (), ())) if isinstance(p, Input)]
        self.sizes = {p.slot: Dim.product(p.shape).as_int() or 0 for p in inputs}

    def build(self) -> Matrix:
        depth, width = (d.as_int() or 0 for d in self.root.shape)
        value = self.pull(self.root, tuple(self.index))
        rows, cols = (tuple(v for v in self.loops if v in ix.vars()) for ix in self.index)
        columns = self.index[1]
        tables = []
        for inst in insts(value):
            if isinstance(inst, Load) and inst.address.vars() & set(cols):
                tables.append(self._table(inst, columns, cols, width))
            elif isinstance(inst, Load) and inst.stored in NARROW:
                raise Decline(f"{inst.stored} that is the same for all columns")
            elif isinstance(inst, Place) and inst.index.vars() & set(cols):
                raise Decline("the matrix is computed from the column's number")
        largest = max(tables, key=lambda table: table.depth, default=None)
        if largest is None or largest.depth < depth // _PER_BYTE:
            raise Decline("no constant has an element for each of the matrix")
        return Matrix(rows, value, tuple(tables), largest.load.slot)

    def _table(self, load: Load, columns: Ix, cols: tuple[Var, ...], width: int) -> Table:
        if load.address.hidden() & set(cols):
            raise Decline("a view cuts the columns of the matrix")
        depth, rest = divmod(self.sizes[load.slot], width)
        by_column = Ix({a: c for a, c in load.address.terms if a in cols})
        by_row = load.address - by_column
        if rest == 0 and by_column == columns:
            parts = [(a, c.exact_div(Dim.of(width))) for a, c in by_row.terms]
            start = by_row.const.exact_div(Dim.of(width))
            if start is not None and all(c is not None for _, c in parts):
                return Table(load, Ix({a: c for a, c in parts if c is not None}, start), depth, False)
        if rest == 0 and depth > 1 and by_column == columns * depth:
            return Table(load, by_row, depth, True)
        raise Decline("a constant of the matrix is neither by row nor by column")

    def operation(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        raise Decline(f"the matrix is a {type(prim).__name__.lower()}")

