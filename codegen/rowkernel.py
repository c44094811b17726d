"""The kernel generator for regions: one TIR function for any `Space`.

Loops over rows, and for each row one or more passes over the columns in explicit vectors of the machine's width, a few
at a time, with accumulators in registers (recipe 3 of the row kernels: one row loop, vector accumulators, one
horizontal reduction per row, temporaries in L1). The parallel axis is the product of the row loops, or the columns
themselves where there are no rows; the caller hands each task a range of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tilegraph.codegen import schedule
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.tir_math import TirMath, V, typed
from tilegraph.ops.dtypes import BYTES
from tilegraph.ops.index import Ix, Quotient, Remainder, Var
from tilegraph.ops.prims import Decline
from tilegraph.ops.space import Apply, Choose, Fold, Inst, Literal, Load, Place, Space, Store
from tilegraph.ops.vecmath import round_to_bfloat16
from tilegraph.spec.dims import Dim, Opaque

Accumulators = dict[int, dict[int, t.Buffer]]  # of each fold of the pass, by width in lanes

_STORAGE = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "uint16", "bool": "uint8"}
_IDENTITY = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "peak": float("-inf"), "min": float("inf")}
_INT_RANGE = {"int8": (-(1 << 7), (1 << 7) - 1), "int16": (-(1 << 15), (1 << 15) - 1),
              "int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1),
              "uint8": (0, (1 << 8) - 1), "uint16": (0, (1 << 16) - 1), "uint32": (0, (1 << 32) - 1),
              "uint64": (0, (1 << 64) - 1)}
MAX_CELLS = 32
_TASK_COST = 40_000  # vector instructions that are worth a task of their own, some 15 µs


@dataclass(frozen=True)
class Generated:
    """A kernel before compilation.

    Its parameters are pointers to the inputs `slots`, to `outputs` and to scratch, then `sizes`, begin and end. The
    rest is what a `KernelCall` says of the kernel. `packed`: (slot, panel, transposed) of inputs that are constant
    matrices [k, n] (or [n, k] if transposed) and that the kernel reads as [panel][k][column in the panel].
    """

    func: Any
    slots: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: tuple[str, ...]
    extent: Dim
    align: int
    scratch: Dim
    grain: Dim
    packed: tuple[tuple[int, int, bool], ...] = ()


def generate(space: Space, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    return _Emitter(space, name, vector_bits).run()


class _Emitter:
    def __init__(self, space: Space, name: str, vector_bits: int) -> None:
        if not any(isinstance(i, Fold) for i in space.insts()):
            loops = schedule.loops_of(space)
            space = Space(loops[:-1], loops[-1:], space.stores, space.breaks)
        self.space = space
        self.name = name
        self.passes = schedule.divide(space)
        self.vector_bits = vector_bits
        self.lanes = self._lanes(vector_bits)
        cost = schedule.column_cost(space, self.passes)
        self.cost = cost
        self.wide = self.lanes * self._registers()
        self.flat = not space.rows and not any(isinstance(i, Fold) for i in space.insts())
        self.stmts: list[t.Stmt] = []
        self.math = TirMath(self.stmts)
        self.sizes: dict[str, t.Var] = {}
        self.loops: dict[Var, t.Expr] = {}
        self.cell: dict[Var, int] = {}
        self.folded: dict[int, V] = {}
        self.row_values: dict[int, V] = {}
        self.row_reciprocals: dict[int, tuple[V, V]] = {}
        self.buffers: dict[tuple[str, int], tuple[t.Var, t.Buffer]] = {}
        cells = 1
        for bounds in space.breaks.values():
            cells *= len(bounds) + 1
        if cells > MAX_CELLS:
            raise Decline(f"concatenations cut the kernel into {cells} parts")

    def _registers(self) -> int:
        """How many registers one operation of the main loop spans.

        Vector math is chains of dependent instructions, and a core's schedulers hold some four chains of one register
        each; wider operations interleave as many chains as it takes to keep the pipes busy. Accumulators and long
        expressions need registers of their own, and spilling costs more than it gains. Many memory streams need none.
        AVX2 has half as many registers as AVX-512.
        """
        if self.lanes == 1:
            return 1
        insts = list(self.space.insts())
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

    # -- integers -------------------------------------------------------------------------------------------
    def i64(self, value: int) -> t.Expr:
        return t.int_imm("int64", value)

    def dim(self, dim: Dim) -> t.Expr:
        """A dim as an int64 expression over the size parameters."""
        total: t.Expr = None
        for mono, coef in dim.terms:
            term: t.Expr = None
            for atom in mono:
                factor = self.size(atom) if isinstance(atom, str) else self.opaque(atom)
                term = factor if term is None else t.Mul(term, factor)
            if term is None:
                term = self.i64(coef)
            elif coef != 1:
                term = t.Mul(term, self.i64(coef))
            total = term if total is None else t.Add(total, term)
        return self.i64(0) if total is None else total

    def size(self, symbol: str) -> t.Var:
        if symbol not in self.sizes:
            self.sizes[symbol] = t.var(f"n{len(self.sizes)}", "int64")
        return self.sizes[symbol]

    def opaque(self, atom: Opaque) -> t.Expr:
        args = [self.dim(a) for a in atom.args]
        node = {"//": t.Div, "%": t.Rem, "min": t.Min, "max": t.Max}[atom.op]
        result = args[0]
        for arg in args[1:]:
            result = node(result, arg)
        return result

    def index(self, ix: Ix) -> t.Expr:
        """An index expression at the current loop values."""
        total = self.dim(ix.const) if ix.const != 0 or not ix.terms else None
        for atom, coef in ix.terms:
            if isinstance(atom, Var):
                value = self.loops[atom]
            else:
                node = t.Div if isinstance(atom, Quotient) else t.Rem
                assert isinstance(atom, (Quotient, Remainder))
                value = node(self.index(atom.of), self.dim(atom.by))
            term = value if coef == 1 else t.Mul(value, self.dim(coef))
            total = term if total is None else t.Add(total, term)
        return total

    # -- structure ------------------------------------------------------------------------------------------
    @contextmanager
    def block(self) -> Iterator[list[t.Stmt]]:
        """Collects statements of a nested body."""
        outer = self.stmts
        inner: list[t.Stmt] = []
        self.stmts = self.math.emit = inner
        yield inner
        self.stmts = self.math.emit = outer

    def for_loop(self, name: str, start: t.Expr, extent: t.Expr) -> Any:
        emitter = self

        @contextmanager
        def scope() -> Iterator[t.Var]:
            index = t.var(name, "int64")
            with emitter.block() as body:
                yield index
            if body:
                emitter.stmts.append(t.loop(index, start, extent, t.sequence(body)))

        return scope()

    def run(self) -> Generated:
        begin, end = t.var("begin", "int64"), t.var("end", "int64")
        scratch_bytes = self._scratch()
        if self.flat:
            self.columns_flat(begin, end)
            extent, align = self.space.cols[-1].extent, self.wide
            grain = Dim.of(max(_TASK_COST * self.lanes // max(self.cost, 1), 1))
        else:
            self.rows(begin, end)
            extent, align = Dim.product(v.extent for v in self.space.rows), 1
            columns = Dim.product(v.extent for v in self.space.cols)
            grain = Dim.of(_TASK_COST * self.lanes).ceildiv(Dim.max(columns * max(self.cost, 1), 1))
        params, declared, slots, outputs = self._params()
        scratch = t.pointer("scratch", "float32")
        sizes = tuple(self.sizes)
        if self.kept_at:
            declared += [t.declare(buffer, scratch) for buffer, _ in self.kept_at.values()]
        body = t.sequence([*declared, *self.stmts])
        func = t.prim_func(self.name, [*params, scratch, *self.sizes.values(), begin, end], body)
        return Generated(func, slots, outputs, sizes, extent, align, scratch_bytes, grain)

    def _params(self) -> tuple[list[t.Var], list[t.Stmt], tuple[int, ...], tuple[int, ...]]:
        keys = sorted(self.buffers, key=lambda k: (k[0] == "out", k[1]))
        params = [self.buffers[k][0] for k in keys]
        declared = [t.declare(self.buffers[k][1], self.buffers[k][0]) for k in keys]
        return (params, declared, tuple(k for kind, k in keys if kind == "in"),
                tuple(k for kind, k in keys if kind == "out"))

    def buffer(self, kind: str, which: int, stored: str) -> t.Buffer:
        key = (kind, which)
        if key not in self.buffers:
            dtype = _STORAGE.get(stored, stored)
            name = f"{kind}{which}"
            self.buffers[key] = (t.pointer(f"p_{name}", dtype), t.flat_buffer(name, dtype, self.i64(1 << 40)))
        return self.buffers[key][1]

    def _scratch(self) -> Dim:
        """Lays out the kept values; each starts on a 64-byte boundary."""
        self.kept_at: dict[int, tuple[t.Buffer, Dim]] = {}
        total = Dim.of(0)
        columns = Dim.product(v.extent for v in self.space.cols)
        for k, inst in enumerate(self.passes.kept):
            width = BYTES[{"float32": "float", "float64": "double"}.get(inst.dtype, inst.dtype)]
            buffer = t.flat_buffer(f"kept{k}", inst.dtype, self.i64(1 << 40))
            self.kept_at[id(inst)] = (buffer, total.exact_div(width) or Dim.of(0))
            total = total + ((columns * width + 63) // 64) * 64
        return total

    def column_address(self) -> Ix:
        """The position within the row."""
        total, stride = Ix(), Dim.of(1)
        for v in reversed(self.space.cols):
            total = total + Ix.of(v) * stride
            stride = stride * v.extent
        return total

    # -- rows -----------------------------------------------------------------------------------------------
    def rows(self, begin: t.Var, end: t.Var) -> None:
        rows = self.space.rows
        if not rows:
            with self.for_loop("r", begin, t.Sub(end, begin)):
                self.row()
            return
        inner = rows[-1]
        if len(rows) == 1:
            with self.for_loop("r", begin, t.Sub(end, begin)) as r:
                self.loops[inner] = r
                self.row()
            return
        count = self.math.share(V(self.dim(inner.extent), "int64")).expr
        first = self.math.share(V(t.Div(begin, count), "int64")).expr
        last = t.Div(t.Sub(end, self.i64(1)), count)
        with self.for_loop("o", first, t.Add(t.Sub(last, first), self.i64(1))) as o:
            rest = o
            for v in reversed(rows[:-1]):
                if v is rows[0]:
                    self.loops[v] = rest
                    break
                extent = self.dim(v.extent)
                self.loops[v] = self.math.share(V(t.Rem(rest, extent), "int64")).expr
                rest = self.math.share(V(t.Div(rest, extent), "int64")).expr
            base = self.math.share(V(t.Mul(o, count), "int64")).expr
            low = self.math.share(V(t.Max(t.Sub(begin, base), self.i64(0)), "int64")).expr
            high = t.Min(t.Sub(end, base), count)
            with self.for_loop("r", low, t.Sub(high, low)) as r:
                self.loops[inner] = r
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
            with self.block() as body:
                self.cell[var] = cell
                self._row_cells(rest)
            inside = t.sequence(body)
            if cell == len(bounds):
                return inside
            return t.IfThenElse(t.LT(self.loops[var], self.dim(bounds[cell])), inside, branch(cell + 1))

        self.stmts.append(branch(0))
        del self.cell[var]

    def _row_body(self) -> None:
        self.row_values, self.folded, self.row_reciprocals = {}, {}, {}
        for p in range(self.passes.count):
            self._prepare(schedule.targets(self.passes, p), p)
            self._pass(p)
        for store in self.space.stores:
            if store.per_row:
                value = self.row_value(store.inst)
                self.store(store, value, 1)

    def _prepare(self, insts: list[Inst], p: int) -> None:
        """Evaluates, outside the column loops, the row values that pass p uses."""
        seen: set[int] = set()
        stack = list(insts)
        while stack:
            inst = stack.pop()
            if id(inst) in seen:
                continue
            seen.add(id(inst))
            if not self.passes.column[id(inst)]:
                if not isinstance(inst, Literal):
                    self.row_value(inst)
                continue
            if self.passes.available(inst, p):
                continue
            if isinstance(inst, Apply) and inst.point.key.startswith("Div<") and inst.dtype == "float32":
                divisor = inst.operands[1]
                if not self.passes.column[id(divisor)] and not isinstance(divisor, Literal) \
                        and id(divisor) not in self.row_reciprocals:
                    self._row_reciprocal(divisor)
            if isinstance(inst, Choose) and inst.var not in self.space.cols:
                stack.append(self.chosen(inst))  # the other parts' addresses are out of range in this row
            else:
                stack.extend(inst.args)

    def row_value(self, inst: Inst) -> V:
        """A value that does not change along the columns, evaluated once a row."""
        if id(inst) in self.folded:
            return self.folded[id(inst)]
        if isinstance(inst, Literal):
            return self.math.const(inst.value, inst.dtype)
        if id(inst) not in self.row_values:
            match inst:
                case Load():
                    value = self.load(inst, 1)
                case Place():
                    value = self.place(inst, 1)
                case Choose():
                    value = self.row_value(self.chosen(inst))
                case Apply():
                    value = inst.point.fn(self.math, [self.row_value(a) for a in inst.operands])
                case _:
                    raise TypeError(f"{type(inst).__name__} before its pass")
            self.row_values[id(inst)] = self.math.share(value)
        return self.row_values[id(inst)]

    # -- columns --------------------------------------------------------------------------------------------
    def _pass(self, p: int) -> None:
        accumulators = {id(f): self.accumulators(f) for f in self.passes.folds[p]}
        outer, inner = self.space.cols[:-1], self.space.cols[-1]
        self._outer_columns(p, list(outer), inner, accumulators)
        for f in self.passes.folds[p]:
            self.folded[id(f)] = self.finish(f, accumulators[id(f)])

    def _outer_columns(self, p: int, outer: list[Var], inner: Var, accumulators: Accumulators) -> None:
        if not outer:
            for low, high in self.segments(inner):
                self.cell[inner] = self._cell_of(inner, low)
                self._segment(p, inner, low, high, accumulators)
            return
        var, rest = outer[0], outer[1:]
        for low, high in self.segments(var):
            self.cell[var] = self._cell_of(var, low)
            with self.for_loop("c", self.dim(low), self.dim(high - low)) as c:
                self.loops[var] = c
                self._outer_columns(p, rest, inner, accumulators)

    def segments(self, var: Var) -> list[tuple[Dim, Dim]]:
        return list(pairwise([Dim.of(0), *self.space.breaks.get(var, ()), var.extent]))

    def _cell_of(self, var: Var, low: Dim) -> int:
        bounds = self.space.breaks.get(var, ())
        return 0 if low == 0 else bounds.index(low) + 1

    def _segment(self, p: int, var: Var, low: Dim, high: Dim, accumulators: Accumulators) -> None:
        """[low, high) of the innermost loop: wide vectors, single registers, then what is left."""
        start, extent = self.dim(low), high - low
        count = extent.as_int()
        if count is None:
            self._range(p, var, start, self.math.share(V(self.dim(extent), "int64")).expr, accumulators)
            return
        done = 0
        for width in dict.fromkeys((self.wide, self.lanes)):
            trips = (count - done) // width
            self._vectors(p, var, t.Add(start, self.i64(done)), trips, width, accumulators)
            done += trips * width
        self._tail(p, var, t.Add(start, self.i64(done)), count - done, accumulators)

    def _range(self, p: int, var: Var, start: t.Expr, length: t.Expr, accumulators: Accumulators) -> None:
        """As `_segment`, for a length that only the run knows."""
        done = self.i64(0)
        for width in dict.fromkeys((self.wide, self.lanes)):
            if width == 1:
                continue
            trips = self.math.share(V(t.Div(t.Sub(length, done), self.i64(width)), "int64")).expr
            self._vectors(p, var, t.Add(start, done), trips, width, accumulators)
            done = self.math.share(V(t.Add(done, t.Mul(trips, self.i64(width))), "int64")).expr
        with self.for_loop("c", t.Add(start, done), t.Sub(length, done)) as c:
            self.loops[var] = c
            self._body(p, 1, accumulators)

    def _vectors(self, p: int, var: Var, start: t.Expr, trips: t.Expr | int, width: int,
                 accumulators: Accumulators) -> None:
        if trips == 1:
            self.loops[var] = start
            self._body(p, width, accumulators)
        elif not isinstance(trips, int) or trips:
            count = self.i64(trips) if isinstance(trips, int) else trips
            with self.for_loop("c", self.i64(0), count) as c:
                self.loops[var] = t.Add(start, t.Mul(c, self.i64(width)))
                self._body(p, width, accumulators)

    def _tail(self, p: int, var: Var, start: t.Expr, count: int, accumulators: Accumulators) -> None:
        """The last few columns: halving vector widths where nothing is reduced, else scalars."""
        if self.passes.folds[p]:
            if count:
                with self.for_loop("c", start, self.i64(count)) as c:
                    self.loops[var] = c
                    self._body(p, 1, accumulators)
            return
        done, width = 0, self.lanes // 2
        while done < count:
            while width > count - done:
                width //= 2
            self.loops[var] = t.Add(start, self.i64(done))
            self._body(p, width, accumulators)
            done += width

    def columns_flat(self, begin: t.Var, end: t.Var) -> None:
        """No rows: the task's range of the single loop."""
        var = self.space.cols[-1]
        for low, high in self.segments(var):
            self.cell[var] = self._cell_of(var, low)
            start = self.math.share(V(t.Max(begin, self.dim(low)), "int64")).expr
            stop = t.Min(end, self.dim(high))
            length = self.math.share(V(t.Max(t.Sub(stop, start), self.i64(0)), "int64")).expr
            self._prepare(schedule.targets(self.passes, 0), 0)
            self._range(0, var, start, length, {})

    def _body(self, p: int, lanes: int, accumulators: Accumulators) -> None:
        memo: dict[int, V] = {}
        for fold in self.passes.folds[p]:
            self.accumulate(fold, accumulators[id(fold)], self.value(fold.operand, lanes, memo, p), lanes)
        for store in self.passes.stores[p]:
            self.store(store, self.value(store.inst, lanes, memo, p), lanes)
        for inst in self.passes.kept:
            if id(inst) in memo and not self.passes.available(inst, p):
                buffer, offset = self.kept_at[id(inst)]
                self.write(buffer, self.index(self.column_address() + offset), memo[id(inst)], lanes)

    def value(self, inst: Inst, lanes: int, memo: dict[int, V], p: int) -> V:
        """`inst` for the current columns: `lanes` of them from the innermost loop's position."""
        if id(inst) in memo:
            return memo[id(inst)]
        if not self.passes.column[id(inst)]:
            if isinstance(inst, Literal):
                return self.math.const(inst.value, inst.dtype)
            return self.row_value(inst)
        if self.passes.available(inst, p):
            value = self.recall(inst, lanes)
        else:
            match inst:
                case Load():
                    value = self.load(inst, lanes)
                case Place():
                    value = self.place(inst, lanes)
                case Choose():
                    memo[id(inst)] = self.value(self.chosen(inst), lanes, memo, p)
                    return memo[id(inst)]
                case Apply():
                    value = self.apply(inst, lanes, memo, p)
                case _:
                    raise TypeError(type(inst).__name__)
        memo[id(inst)] = self.math.share(value)
        return memo[id(inst)]

    def apply(self, inst: Apply, lanes: int, memo: dict[int, V], p: int) -> V:
        """A pointwise operation. Dividing by a value of the row multiplies by its reciprocal (1 ulp).

        Both factors are scaled by a power of two where the reciprocal would not be a normal number.
        """
        operands = [self.value(a, lanes, memo, p) for a in inst.operands]
        if inst.point.key.startswith("Div<") and inst.dtype == "float32" and lanes > 1:
            divisor = inst.operands[1]
            if not self.passes.column[id(divisor)] and not isinstance(divisor, Literal):
                scale, reciprocal = self.row_reciprocals[id(divisor)]
                return self.math.mul(self.math.mul(operands[0], scale), reciprocal)
        value: V = inst.point.fn(self.math, operands)
        return value

    def _row_reciprocal(self, divisor: Inst) -> None:
        """(s, 1 / (s d)) for a divisor d, s = 1 unless d is close to the ends of the range."""
        m = self.math
        value = self.row_value(divisor)
        size = m.abs(value)
        tiny, huge = m.lt(size, m.const(2.0**-100, "float32")), m.lt(m.const(2.0**100, "float32"), size)
        scale = m.select(tiny, m.const(2.0**64, "float32"), m.select(huge, m.const(2.0**-64, "float32"),
                                                                   m.const(1.0, "float32")))
        self.row_reciprocals[id(divisor)] = (scale, m.div(m.const(1.0, "float32"), m.mul(value, scale)))

    def chosen(self, inst: Choose) -> Inst:
        cell = self.cell[inst.var]
        bounds = self.space.breaks[inst.var]
        part = sum(1 for b in inst.bounds if bounds.index(b) < cell)
        return inst.parts[part]

    # -- memory ---------------------------------------------------------------------------------------------
    def read(self, buffer: t.Buffer, dtype: str, address: t.Expr, stride: int, lanes: int) -> V:
        if lanes == 1 or stride == 0:
            return V(t.BufferLoad(buffer, [address]), dtype)
        return V(t.BufferLoad(buffer, [t.Ramp(address, self.i64(1), lanes)]), dtype, lanes)

    def write(self, buffer: t.Buffer, address: t.Expr, value: V, lanes: int) -> None:
        if lanes == 1:
            self.stmts.append(t.BufferStore(buffer, value.expr, [address]))
        else:
            expr = self.math.widen(value, lanes)
            self.stmts.append(t.BufferStore(buffer, expr, [t.Ramp(address, self.i64(1), lanes)]))

    def load(self, inst: Load, lanes: int) -> V:
        """One operand, widened to its computing dtype."""
        storage = _STORAGE.get(inst.stored, inst.stored)
        stride = 1 if inst.address.coef(self.space.cols[-1]) == 1 else 0
        raw = self.read(self.buffer("in", inst.slot, inst.stored), storage, self.index(inst.address), stride, lanes)
        return self.unpack(raw, inst.stored, inst.dtype)

    def unpack(self, raw: V, stored: str, dtype: str) -> V:
        m = self.math
        if stored == "bool":
            return m.ne(raw, m.const(0, "uint8"))
        if stored == "float16":
            return V(t.Cast(typed("float32", raw.lanes), raw.expr), "float32", raw.lanes)
        if stored == "bfloat16":
            wide = m.shl(m.cast(raw, "uint32"), m.const(16, "uint32"))
            return m.bitcast(wide, "float32")
        return V(raw.expr, dtype, raw.lanes)

    def pack(self, value: V, stored: str) -> V:
        m = self.math
        if stored == "bool":
            return m.select(value, m.const(1, "uint8"), m.const(0, "uint8"))
        if stored == "float16":
            return V(t.Cast(typed("float16", value.lanes), value.expr), "float16", value.lanes)
        if stored == "bfloat16":
            bits = m.shr(m.bitcast(round_to_bfloat16(m, m.share(value)), "uint32"), m.const(16, "uint32"))
            return m.cast(bits, "uint16")
        return value

    def store(self, store: Store, value: V, lanes: int) -> None:
        packed = self.pack(value, store.stored)
        self.write(self.buffer("out", store.output, store.stored), self.index(store.address), packed, lanes)

    def recall(self, inst: Inst, lanes: int) -> V:
        """A value that an earlier pass left in memory."""
        if id(inst) in self.kept_at:
            buffer, offset = self.kept_at[id(inst)]
            return self.read(buffer, inst.dtype, self.index(self.column_address() + offset), 1, lanes)
        store = self.passes.from_output[id(inst)]
        buffer = self.buffer("out", store.output, store.stored)
        return self.read(buffer, inst.dtype, self.index(store.address), 1, lanes)

    def place(self, inst: Place, lanes: int) -> V:
        """The value of an index along the lanes."""
        base = V(self.index(inst.index), "int64")
        coef = inst.index.coef(self.space.cols[-1])
        if lanes > 1 and coef != 0:
            base = V(t.Ramp(base.expr, self.dim(coef), lanes), "int64", lanes)
        return base if inst.dtype == "int64" else self.math.cast(base, inst.dtype)

    # -- reductions -----------------------------------------------------------------------------------------
    def identity(self, fold: Fold) -> V:
        if fold.dtype.startswith("float"):
            return self.math.const(_IDENTITY[fold.kind], fold.dtype)
        low, high = _INT_RANGE[fold.dtype]
        return self.math.const({"sum": 0, "prod": 1, "max": low, "min": high}[fold.kind], fold.dtype)

    def combine(self, fold: Fold, a: V, b: V) -> V:
        m = self.math
        if fold.kind == "peak":
            return m.select(m.lt(a, b), b, a)
        return {"sum": m.add, "prod": m.mul, "max": m.maximum, "min": m.minimum}[fold.kind](a, b)

    def accumulators(self, fold: Fold) -> dict[int, t.Buffer]:
        """One accumulator for each width that the column loops use, on the stack and initialised."""
        made: dict[int, t.Buffer] = {}
        for width in (self.wide, self.lanes, 1):
            if width not in made:
                made[width], allocate = t.local_buffer("acc", fold.dtype, width)
                self.stmts.append(allocate)
                self.write(made[width], self.i64(0), self.identity(fold), width)
        return made

    def accumulate(self, fold: Fold, accumulators: dict[int, t.Buffer], value: V, lanes: int) -> None:
        buffer = accumulators[lanes]
        now = self.read(buffer, fold.dtype, self.i64(0), 1, lanes)
        self.write(buffer, self.i64(0), self.combine(fold, now, value), lanes)

    def finish(self, fold: Fold, accumulators: dict[int, t.Buffer]) -> V:
        """All lanes of all accumulators combined, pairwise."""
        m = self.math
        total: V | None = None
        width = self.wide
        while True:
            if width in accumulators:
                part = m.share(self.read(accumulators[width], fold.dtype, self.i64(0), 1, width))
                total = part if total is None else self.combine(fold, total, part)
            assert total is not None
            if width == 1:
                return total
            total = self.combine(fold, m.half(total, False), m.half(total, True))
            width //= 2
