"""The kernel generator for regions: one TIR function for any `Space`.

Loops over rows, and for each row one or more passes over the columns in explicit vectors of the machine's width, a few
at a time, with accumulators in registers (recipe 3 of the row kernels: one row loop, vector accumulators, one
horizontal reduction per row, temporaries in L1). The parallel axis is the product of the row loops, or the columns
themselves where there are no rows; the caller hands each task a range of it.
"""

from __future__ import annotations

from itertools import pairwise

from tilegraph.codegen import schedule
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.rows import across, crossed, folds
from tilegraph.codegen.rows.folds import Accumulators
from tilegraph.codegen.rows.values import Values, refuse_empty
from tilegraph.codegen.tir_math import V
from tilegraph.ops.index import Var
from tilegraph.ops.space import Fold, Load, Place, Space, uneven
from tilegraph.spec.dims import Dim


def generate(space: Space, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    if space.across is not None:
        return across.generate(space, name, vector_bits)
    if lanes := crossed.lanes_of(space, vector_bits):
        return crossed.generate(space, name, lanes)
    return _Kernel(space, name, vector_bits).run()


class _Kernel:
    def __init__(self, space: Space, name: str, vector_bits: int) -> None:
        if not any(isinstance(i, Fold) for i in space.insts()):
            loops = schedule.loops_of(space)
            space = Space(loops[:-1], loops[-1:], space.stores, space.breaks)
        self.space = space
        self.name = name
        self.passes = schedule.divide(space)
        self.vector_bits = vector_bits
        self.lanes = self._lanes(vector_bits)
        cost = schedule.column_cost(self.passes)
        self.cost = cost
        self.wide = self.lanes * self._registers()
        self.flat = not space.rows and not any(isinstance(i, Fold) for i in space.insts())
        self.e = Emitter()
        self.values = Values(self.e, space, self.passes)

    def _registers(self) -> int:
        """How many registers one operation of the main loop spans.

        Vector math is chains of dependent instructions, and a core's schedulers hold some four chains of one register
        each; wider operations interleave as many chains as it takes to keep the pipes busy. Accumulators and long
        expressions need registers of their own, and spilling costs more than it gains. Many memory streams need none.
        AVX2 has half as many registers as AVX-512.
        """
        insts = list(self.space.insts())
        if self.lanes == 1 or any(uneven(i, self.space.cols[-1]) for i in insts):
            return 1
        streams = sum(isinstance(i, Load) and self.passes.column[id(i)] for i in insts) + len(self.space.stores)
        if any(isinstance(i, Fold) for i in insts):
            span = 4 if self.cost <= 24 else 2
        else:
            span = 8 if self.cost <= 48 and self.cost >= 10 * streams else 4
        return span if self.vector_bits >= 512 else span // 2

    def _lanes(self, vector_bits: int) -> int:
        """As many lanes as fill a register with the widest common element, not more than the columns have."""
        wide = any(i.dtype in ("float64", "int64", "uint64") for i in self.space.insts()
                   if self.passes.column[id(i)] and not isinstance(i, Place))
        lanes = vector_bits // (64 if wide else 32)
        extent = self.space.cols[-1].extent.as_int()
        while extent is not None and lanes > extent:
            lanes //= 2
        return max(lanes, 1)

    def run(self) -> Generated:
        columns = Dim.product(v.extent for v in self.space.cols)
        refuse_empty(self.e, self.space)
        if self.flat:
            self.columns_flat()
            extent, align = columns, self.wide
            grain = Dim.of(max(TASK_COST * self.lanes // max(self.cost, 1), 1))
        else:
            self.rows()
            extent, align = Dim.product(v.extent for v in self.space.rows), 1
            grain = Dim.of(TASK_COST * self.lanes).ceildiv(Dim.max(columns * max(self.cost, 1), 1))
        memory = [buffer for buffer, _ in self.values.kept_at.values()]
        return self.e.finish(self.name, memory, extent=extent, align=align, scratch=self.values.scratch, grain=grain)

    # -- rows -----------------------------------------------------------------------------------------------
    def rows(self) -> None:
        e, rows = self.e, self.space.rows
        if len(rows) < 2:
            with e.loop("r", t.Sub(e.end, e.begin), e.begin) as r:
                e.set_loops(rows, r)
                self.row()
            return
        inner = rows[-1]
        count = e.share(e.dim(inner.extent))
        first = e.share(t.Div(e.begin, count))
        last = t.Div(t.Sub(e.end, e.i64(1)), count)
        with e.loop("o", t.Add(t.Sub(last, first), e.i64(1)), first) as o:
            e.set_loops(rows[:-1], o)
            base = e.share(t.Mul(o, count))
            low = e.share(t.Max(t.Sub(e.begin, base), e.i64(0)))
            high = t.Min(t.Sub(e.end, base), count)
            with e.loop("r", t.Sub(high, low), low) as r:
                e.loops[inner] = r
                self.row()

    def row(self) -> None:
        """One row, under every combination of row-loop segments."""
        self._row_cells([v for v in self.space.rows if v in self.space.breaks])

    def _row_cells(self, split: list[Var]) -> None:
        if not split:
            self._row_body()
            return
        var, rest = split[0], split[1:]
        bounds = self.space.breaks[var]

        def branch(cell: int) -> t.Stmt:
            with self.e.block() as body:
                self.values.cell[var] = cell
                self._row_cells(rest)
            inside = t.sequence(body)
            if cell == len(bounds):
                return inside
            return t.IfThenElse(t.LT(self.e.loops[var], self.e.dim(bounds[cell])), inside, branch(cell + 1))

        self.e.stmts.append(branch(0))
        del self.values.cell[var]

    def _row_body(self) -> None:
        self.values.start_row()
        for p in range(self.passes.count):
            self.values.prepare(schedule.targets(self.passes, p), p)
            self._pass(p)
        for store in self.space.stores:
            if store.per_row:
                self.values.store(store, self.values.row_value(store.inst), 1)

    # -- columns --------------------------------------------------------------------------------------------
    def _pass(self, p: int) -> None:
        accumulators = {id(f): folds.accumulators(self.e, f, (self.wide, self.lanes, 1)) for f in self.passes.folds[p]}
        outer, inner = self.space.cols[:-1], self.space.cols[-1]
        self._outer_columns(p, list(outer), inner, accumulators)
        for f in self.passes.folds[p]:
            self.values.folded[id(f)] = folds.finish(self.e, f, accumulators[id(f)])

    def _outer_columns(self, p: int, outer: list[Var], inner: Var, accumulators: Accumulators) -> None:
        if not outer:
            for low, high in self.segments(inner):
                self.values.cell[inner] = self._cell_of(inner, low)
                self._segment(p, inner, low, high, accumulators)
            return
        var, rest = outer[0], outer[1:]
        for low, high in self.segments(var):
            self.values.cell[var] = self._cell_of(var, low)
            with self.e.loop("c", self.e.dim(high - low), self.e.dim(low)) as c:
                self.e.loops[var] = c
                self._outer_columns(p, rest, inner, accumulators)

    def segments(self, var: Var) -> list[tuple[Dim, Dim]]:
        return list(pairwise([Dim.of(0), *self.space.breaks.get(var, ()), var.extent]))

    def _cell_of(self, var: Var, low: Dim) -> int:
        bounds = self.space.breaks.get(var, ())
        return 0 if low == 0 else bounds.index(low) + 1

    def _segment(self, p: int, var: Var, low: Dim, high: Dim, accumulators: Accumulators) -> None:
        """[low, high) of the innermost loop: wide vectors, single registers, then what is left."""
        start, extent = self.e.dim(low), high - low
        count = extent.as_int()
        if count is None:
            self._range(p, var, start, self.e.share(self.e.dim(extent)), accumulators)
            return
        done = 0
        for width in dict.fromkeys((self.wide, self.lanes)):
            trips = (count - done) // width
            self._vectors(p, var, t.Add(start, self.e.i64(done)), trips, width, accumulators)
            done += trips * width
        self._tail(p, var, t.Add(start, self.e.i64(done)), count - done, accumulators)

    def _range(self, p: int, var: Var, start: t.Expr, length: t.Expr, accumulators: Accumulators) -> None:
        """As `_segment`, for a length that only the run knows."""
        done = self.e.i64(0)
        for width in dict.fromkeys((self.wide, self.lanes)):
            if width == 1:
                continue
            trips = self.e.share(t.Div(t.Sub(length, done), self.e.i64(width)))
            self._vectors(p, var, t.Add(start, done), trips, width, accumulators)
            done = self.e.share(t.Add(done, t.Mul(trips, self.e.i64(width))))
        with self.e.loop("c", t.Sub(length, done), t.Add(start, done)) as c:
            self.e.loops[var] = c
            self._body(p, 1, accumulators)

    def _vectors(self, p: int, var: Var, start: t.Expr, trips: t.Expr | int, width: int,
                 accumulators: Accumulators) -> None:
        if trips == 1:
            self.e.loops[var] = start
            self._body(p, width, accumulators)
        elif not isinstance(trips, int) or trips:
            with self.e.loop("c", trips) as c:
                self.e.loops[var] = t.Add(start, t.Mul(c, self.e.i64(width)))
                self._body(p, width, accumulators)

    def _tail(self, p: int, var: Var, start: t.Expr, count: int, accumulators: Accumulators) -> None:
        """The last few columns: halving vector widths where nothing is reduced, else scalars."""
        if self.passes.folds[p]:
            if count:
                with self.e.loop("c", count, start) as c:
                    self.e.loops[var] = c
                    self._body(p, 1, accumulators)
            return
        done, width = 0, self.lanes // 2
        while done < count:
            while width > count - done:
                width //= 2
            self.e.loops[var] = t.Add(start, self.e.i64(done))
            self._body(p, width, accumulators)
            done += width

    def columns_flat(self) -> None:
        """No rows: the task's range of the single loop."""
        var = self.space.cols[-1]
        for low, high in self.segments(var):
            self.values.cell[var] = self._cell_of(var, low)
            start = self.e.share(t.Max(self.e.begin, self.e.dim(low)))
            stop = t.Min(self.e.end, self.e.dim(high))
            length = self.e.share(t.Max(t.Sub(stop, start), self.e.i64(0)))
            self.values.prepare(schedule.targets(self.passes, 0), 0)
            self._range(0, var, start, length, {})

    def _body(self, p: int, lanes: int, accumulators: Accumulators) -> None:
        memo: dict[int, V] = {}
        for fold in self.passes.folds[p]:
            value = self.values.value(fold.operand, lanes, memo, p)
            folds.accumulate(self.e, fold, accumulators[id(fold)], value, lanes)
        for store in self.passes.stores[p]:
            self.values.store(store, self.values.value(store.inst, lanes, memo, p), lanes)
        self.values.keep(memo, lanes, p)
