"""Kernels of regions whose reductions run over outer axes: vectors lie across the rows, columns are walked one by one.

A block of neighbouring rows fills the lanes of a few registers. Each column adds one vector to the accumulators, which
are the results of their rows as they are: nothing is combined across lanes.
"""

from __future__ import annotations

from contextlib import ExitStack

from tilegraph.codegen import schedule
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.rows import folds
from tilegraph.codegen.rows.values import pack, refuse_empty
from tilegraph.codegen.tir_math import V
from tilegraph.ops.dtypes import BYTES
from tilegraph.ops.index import Ix, Var, flat_address
from tilegraph.ops.space import Apply, Fold, Inst, Literal, Place, Running, Space, Store, insts, uneven
from tilegraph.spec.dims import Dim

_REGISTERS = 16  # of accumulators in a block, at most
_SUMMED = 64  # columns that one running sum covers


def generate(space: Space, name: str, vector_bits: int) -> Generated:
    """Emits `space`, whose `across` is set, as the function `name` for registers of `vector_bits` bits."""
    assert space.across is not None
    return _Across(space, space.across, name, vector_bits).run()


class _Across:
    """`known`: values by identity that hold where the emitter stands."""

    def __init__(self, space: Space, across: Var, name: str, vector_bits: int) -> None:
        self.space = space
        self.across = across
        self.name = name
        self.passes = schedule.divide(space)
        self.cost = max(schedule.column_cost(self.passes), 1)
        self.lanes = self._lanes(vector_bits)
        self.wide = self.lanes * self._registers(vector_bits)
        self.e = Emitter()
        self.columns = Dim.product(v.extent for v in space.cols)
        self.kept_at: dict[int, tuple[t.Buffer, Dim]] = {}
        self.scratch = self._lay_out()
        self.running: folds.Accumulators = {}

    def _lanes(self, vector_bits: int) -> int:
        """As many as a register has of the widest common element, not more than there are rows side by side."""
        wide = any(i.dtype in ("float64", "int64", "uint64") for i in self.space.insts() if not isinstance(i, Place))
        lanes = vector_bits // (64 if wide else 32)
        extent = self.across.extent.as_int()
        while extent is not None and lanes > extent:
            lanes //= 2
        return max(lanes, 1)

    def _registers(self, vector_bits: int) -> int:
        """How many registers a block of rows spans: enough chains and long runs of memory, and no spilling."""
        most = max(len(f) for f in self.passes.folds) if self.passes.folds else 1
        if any(uneven(i, self.across) for i in self.space.insts()):
            return 1
        span = _REGISTERS if vector_bits >= 512 else _REGISTERS // 2
        span //= max(1, most)
        if self.cost > 24:
            span //= 4
        extent = self.across.extent.as_int()
        while extent is not None and span > 1 and span * self.lanes > extent:
            span //= 2
        return max(1 << (max(span, 1).bit_length() - 1), 1)

    def _lay_out(self) -> Dim:
        """Places the values that a later pass needs, a block of rows wide; the bytes that they take."""
        total = Dim.of(0)
        for k, inst in enumerate(self.passes.kept):
            width = BYTES[{"float32": "float", "float64": "double"}.get(inst.dtype, inst.dtype)]
            self.kept_at[id(inst)] = self.e.flat(f"kept{k}", inst.dtype), total.exact_div(width) or Dim.of(0)
            total = total + ((self.columns * (width * self.wide) + 63) // 64) * 64
        return total

    def run(self) -> Generated:
        e, outer = self.e, self.space.rows[:-1]
        refuse_empty(e, self.space)
        if not outer:
            self._blocks(e.begin, e.end)
        else:
            count = e.share(e.dim(self.across.extent))
            first = e.share(t.Div(e.begin, count))
            last = t.Div(t.Sub(e.end, e.i64(1)), count)
            with e.loop("o", t.Add(t.Sub(last, first), e.i64(1)), first) as o:
                e.set_loops(outer, o)
                base = e.share(t.Mul(o, count))
                self._blocks(t.Max(t.Sub(e.begin, base), e.i64(0)), t.Min(t.Sub(e.end, base), count))
        grain = Dim.of(TASK_COST * self.lanes).ceildiv(Dim.max(self.columns * self.cost, 1))
        return e.finish(self.name, [buffer for buffer, _ in self.kept_at.values()], align=self.lanes, grain=grain,
                        extent=Dim.product(v.extent for v in self.space.rows), scratch=self.scratch)

    # -- rows -----------------------------------------------------------------------------------------------------
    def _blocks(self, low: t.Expr, high: t.Expr) -> None:
        """[low, high) of the loop `across`: wide blocks, single registers, and what is left in a last register that
        does some rows again, or one by one where there are not enough."""
        e = self.e
        low, high = e.share(low), e.share(high)
        length = e.share(t.Sub(high, low))
        done = e.i64(0)
        for width in dict.fromkeys((self.wide, self.lanes)):
            trips = e.share(t.Div(t.Sub(length, done), e.i64(width)))
            with e.loop("b", trips) as b:
                e.loops[self.across] = e.share(t.Add(t.Add(low, done), t.Mul(b, e.i64(width))))
                self._block(width)
            done = e.share(t.Add(done, t.Mul(trips, e.i64(width))))
        if self.lanes == 1:
            return
        rest = t.Sub(length, done)
        enough = t.LE(e.i64(self.lanes), length)
        with e.when(t.And(enough, t.LT(done, length))):
            e.loops[self.across] = e.share(t.Sub(high, e.i64(self.lanes)))
            self._block(self.lanes)
        with e.when(t.Not(enough)), e.loop("b", rest, t.Add(low, done)) as b:
            e.loops[self.across] = b
            self._block(1)

    def _block(self, width: int) -> None:
        known: dict[int, V] = {}
        for p in range(self.passes.count):
            self._prepare(schedule.targets(self.passes, p), width, known, p)
            sums = {id(f): folds.accumulators(self.e, f, (width,)) for f in self.passes.folds[p]}
            self.running = {id(i): folds.accumulators(self.e, i, (width,)) for i in self._runs(p)}
            totals = self._columns(width, known, p, sums)
            for f in self.passes.folds[p]:
                result = totals.get(id(f), sums[id(f)])
                known[id(f)] = self.e.math.share(self.e.read(result[width], f.dtype, 0, width))
        for store in self.space.stores:
            if store.per_row:
                self._store(store, self._value(store.inst, width, known, self.passes.count), width)

    def _prepare(self, insts: list[Inst], width: int, known: dict[int, V], p: int) -> None:
        """Evaluates, outside the column loops, what pass p uses and the columns do not change."""
        seen: set[int] = set()
        stack = list(insts)
        while stack:
            inst = stack.pop()
            if id(inst) in seen or (self.passes.column[id(inst)] and self.passes.available(inst, p)):
                continue
            seen.add(id(inst))
            if self.passes.column[id(inst)]:
                stack.extend(inst.args)
            elif not isinstance(inst, Literal):
                self._value(inst, width, known, p)

    def _runs(self, p: int) -> list[Running]:
        """The running values that pass p evaluates."""
        return [i for i in insts(*schedule.targets(self.passes, p)) if isinstance(i, Running)]

    # -- columns --------------------------------------------------------------------------------------------------
    def _columns(self, width: int, known: dict[int, V], p: int, sums: folds.Accumulators) -> folds.Accumulators:
        """All columns, one by one. Long sums of floats are made of the sums of `_SUMMED` columns each, which keeps
        rounding errors as small as vector lanes along the columns would: these are returned."""
        e = self.e
        *outer, inner = self.space.cols
        size = inner.extent.as_int()
        long = [f for f in self.passes.folds[p] if f.kind == "sum" and f.dtype.startswith("float")]
        if size is not None and size < _SUMMED:
            long = []
        totals = {id(f): folds.accumulators(e, f, (width,)) for f in long}
        with ExitStack() as loops:
            for var in outer:
                e.loops[var] = loops.enter_context(e.loop("c", e.dim(var.extent)))
            if not long:
                self._enter(inner, loops.enter_context(e.loop("c", e.dim(inner.extent))))
                self._column(width, dict(known), p, sums)
                return totals
            extent = e.share(e.dim(inner.extent))
            with e.loop("g", t.Div(t.Add(extent, e.i64(_SUMMED - 1)), e.i64(_SUMMED))) as g:
                low = e.share(t.Mul(g, e.i64(_SUMMED)))
                with e.loop("c", t.Min(t.Sub(extent, low), e.i64(_SUMMED)), low) as c:
                    self._enter(inner, c)
                    self._column(width, dict(known), p, sums)
                for f in long:
                    part = e.read(sums[id(f)][width], f.dtype, 0, width)
                    folds.accumulate(e, f, totals[id(f)], part, width)
                    folds.restart(e, f, sums[id(f)])
        return totals

    def _enter(self, var: Var, number: t.Expr) -> None:
        last = t.Sub(self.e.dim(var.extent), self.e.i64(1))
        self.e.loops[var] = self.e.share(t.Sub(last, number)) if self.space.descending else number

    def _column(self, width: int, known: dict[int, V], p: int, sums: folds.Accumulators) -> None:
        for f in self.passes.folds[p]:
            folds.accumulate(self.e, f, sums[id(f)], self._value(f.operand, width, known, p), width)
        for store in self.passes.stores[p]:
            self._store(store, self._value(store.inst, width, known, p), width)
        for inst in self.passes.kept:
            if id(inst) in known and not self.passes.available(inst, p):
                buffer, address = self._kept(inst)
                self.e.write(buffer, address, known[id(inst)], width)

    def _value(self, inst: Inst, width: int, known: dict[int, V], p: int) -> V:
        if id(inst) in known or isinstance(inst, Literal):
            return self.e.value(inst, self.across, width, known)
        if self.passes.column[id(inst)] and self.passes.available(inst, p):
            value = self._recall(inst, width)
        elif isinstance(inst, Running):
            value = self._advance(inst, width, self._value(inst.operand, width, known, p))
        elif isinstance(inst, Apply):
            value = inst.point.fn(self.e.math, [self._value(a, width, known, p) for a in inst.operands])
        else:
            assert not isinstance(inst, Fold)
            for index in inst.args:
                self._value(index, width, known, p)
            return self.e.value(inst, self.across, width, known)
        known[id(inst)] = self.e.math.share(value)
        return known[id(inst)]

    def _advance(self, inst: Running, width: int, value: V) -> V:
        """Takes the column's value in; what the running value is at this column."""
        buffers = self.running[id(inst)]
        before = self.e.math.share(self.e.read(buffers[width], inst.dtype, 0, width))
        folds.accumulate(self.e, inst, buffers, value, width)
        return before if inst.exclusive else self.e.read(buffers[width], inst.dtype, 0, width)

    def _recall(self, inst: Inst, width: int) -> V:
        if id(inst) in self.kept_at:
            buffer, address = self._kept(inst)
            return self.e.read(buffer, inst.dtype, address, width)
        store = self.passes.from_output[id(inst)]
        return self.e.read(self.e.output(store.output, store.stored), inst.dtype, self.e.index(store.address), width)

    def _kept(self, inst: Inst) -> tuple[t.Buffer, t.Expr]:
        buffer, offset = self.kept_at[id(inst)]
        cols = self.space.cols
        column = flat_address([Ix.of(v) for v in cols], [v.extent for v in cols])
        return buffer, self.e.index(column * self.wide + offset)

    def _store(self, store: Store, value: V, width: int) -> None:
        packed = pack(self.e.math, value, store.stored)
        self.e.write(self.e.output(store.output, store.stored), self.e.index(store.address), packed, width)
