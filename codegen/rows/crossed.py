"""Kernels of transposed operands: what the lanes cross is read along the other loop and turned in registers.

A square of as many rows and columns as a register has lanes is read as vectors along the row loop, along which the
operand is contiguous. Rows and lanes are swapped a bit of their numbers at a time (recursive transposition: log2 of the
lanes shuffles a vector), so that each vector lies along the columns, where it is computed with and stored.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import STORAGE, TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.rows.values import pack, refuse_empty
from tilegraph.codegen.tir_math import V
from tilegraph.ops.index import Var
from tilegraph.ops.space import LEAST_SQUARE, Apply, Load, Place, Space, crossed, uneven
from tilegraph.spec.dims import Dim


def lanes_of(space: Space, vector_bits: int) -> int:
    """The side of the squares; 0 if this is no kernel for `space`."""
    over = crossed(space)
    if over is None:
        return 0
    wide = any(i.dtype in ("float64", "int64", "uint64") for i in space.insts() if not isinstance(i, Place))
    lanes = vector_bits // (64 if wide else 32)
    for extent in (space.lanes.extent.as_int(), over.extent.as_int()):
        while extent is not None and lanes > extent:
            lanes //= 2
    return lanes if lanes >= LEAST_SQUARE else 0


def generate(space: Space, name: str, lanes: int) -> Generated:
    over = crossed(space)
    assert over is not None
    return _Crossed(space, over, name, lanes).run()


class _Crossed:
    """`over`: the row loop along which the crossed operands are contiguous. Units are blocks of its rows."""

    def __init__(self, space: Space, over: Var, name: str, lanes: int) -> None:
        self.space, self.over, self.name, self.lanes = space, over, name, lanes
        self.along = space.lanes
        self.loads = [i for i in space.insts() if isinstance(i, Load) and uneven(i, self.along) is not None]
        self.e = Emitter()

    def run(self) -> Generated:
        e, lanes = self.e, self.lanes
        refuse_empty(e, self.space)
        blocks = Var("blocks", self.over.extent.ceildiv(lanes))
        loops = (*(v for v in (*self.space.rows, *self.space.cols[:-1]) if v != self.over), blocks)
        with e.loop("u", t.Sub(e.end, e.begin), e.begin) as unit:
            e.set_loops(loops, unit)
            first = e.share(t.Mul(e.loops[blocks], e.i64(lanes)))
            rows, columns = e.share(e.dim(self.over.extent)), e.share(e.dim(self.along.extent))
            whole = t.LE(t.Add(first, e.i64(lanes)), rows)
            squares = e.share(t.Div(columns, e.i64(lanes)))
            done = e.share(t.Mul(squares, e.i64(lanes)))
            with e.when(whole):
                with e.loop("c", squares) as c:
                    self._square(first, e.share(t.Mul(c, e.i64(lanes))))
                self._one_by_one(first, e.i64(lanes), done, columns)
            with e.when(t.Not(whole)):
                self._one_by_one(first, t.Sub(rows, first), e.i64(0), columns)
        cost = sum(i.point.cost for i in self.space.insts() if isinstance(i, Apply)) + 6 * len(self.loads) + 2
        grain = Dim.of(TASK_COST).ceildiv(Dim.max(self.along.extent * cost, 1))
        extent = Dim.product(v.extent for v in loops)
        return e.finish(self.name, [], extent=extent, align=1, scratch=Dim.of(0), grain=grain)

    def _square(self, row: t.Expr, column: t.Expr) -> None:
        e = self.e
        turned = {id(load): self._turned(load, row, column) for load in self.loads}
        e.loops[self.along] = column
        for k in range(self.lanes):
            e.loops[self.over] = e.share(t.Add(row, e.i64(k)))
            self._store({key: vectors[k] for key, vectors in turned.items()}, self.lanes)

    def _turned(self, load: Load, row: t.Expr, column: t.Expr) -> list[V]:
        """The vectors of `load` along the columns, for each row of the square."""
        e, storage = self.e, STORAGE.get(load.stored, load.stored)
        e.loops[self.over] = row
        vectors = []
        for k in range(self.lanes):
            e.loops[self.along] = e.share(t.Add(column, e.i64(k)))
            raw = e.read(e.input(load.slot, load.stored), storage, e.index(load.address), self.lanes)
            vectors.append(e.math.share(raw))
        step = 1
        while step < self.lanes:
            swapped = list(vectors)
            for k in range(self.lanes):
                if not k & step:
                    a, b = vectors[k], vectors[k + step]
                    swapped[k] = self._mixed(a, b, [n if not n & step else self.lanes + n - step
                                                    for n in range(self.lanes)])
                    swapped[k + step] = self._mixed(a, b, [n + step if not n & step else self.lanes + n
                                                           for n in range(self.lanes)])
            vectors, step = swapped, 2 * step
        return [e.math.share(e.unpack(v, load.stored, load.dtype)) for v in vectors]

    def _mixed(self, a: V, b: V, order: list[int]) -> V:
        picked = t.Shuffle([a.expr, b.expr], [t.int_imm("int32", n) for n in order])
        return self.e.math.share(V(picked, a.dtype, self.lanes))

    def _one_by_one(self, row: t.Expr, rows: t.Expr, column: t.Expr, end: t.Expr) -> None:
        """What is left of a block: element by element."""
        e = self.e
        with e.loop("r", rows, row) as r, e.loop("c", t.Sub(end, column), column) as c:
            e.loops[self.over], e.loops[self.along] = r, c
            self._store({}, 1)

    def _store(self, known: dict[int, V], lanes: int) -> None:
        e = self.e
        for store in self.space.stores:
            value = pack(e.math, e.value(store.inst, self.along, lanes, known), store.stored)
            e.write(e.output(store.output, store.stored), e.index(store.address), value, lanes)
