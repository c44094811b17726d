"""What the generators share: statements, loops, memory, values of leaves, and the function around them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.extents import Extents
from tilegraph.codegen.generated import Generated, Items, Kernel, Packed
from tilegraph.codegen.tir_math import TirMath, V, typed
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place, uneven
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters

STORAGE = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "uint16", "bool": "uint8"}
TASK_COST = 40_000  # vector instructions that are worth a task of their own, some 15 µs
_BOUND = 1 << 40  # the stated length of buffers whose length nobody checks


class Emitter(Extents):
    """Collects the statements of one kernel. `inputs` and `outputs`: the pointer and the buffer of those it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.stmts: list[t.Stmt] = []
        self.math = TirMath(self.stmts)
        self.inputs: dict[int, tuple[t.Var, t.Buffer]] = {}
        self.outputs: dict[int, tuple[t.Var, t.Buffer]] = {}
        self.begin, self.end = t.var("begin", "int64"), t.var("end", "int64")
        self.imports = ""  # LLVM IR of functions that the kernel calls

    def finish(self, name: str, memory: Sequence[t.Buffer], *, extent: Dim, align: int, scratch: Dim, grain: Dim,
               packed: tuple[Packed, ...] = (), filters: tuple[tuple[int, Filters], ...] = (),
               features: tuple[str, ...] = (), equal: tuple[tuple[Dim, Dim], ...] = (),
               items: tuple[Dim, dict[int | None, Dim]] | None = None) -> Generated:
        """The kernel `name` of what was emitted; `memory`: buffers that lie in the scratch. `items`: the batch and the
        elements from one item to the next, by slot and, as None, of the one result; see `Items`."""
        slots, outputs = tuple(sorted(self.inputs)), tuple(sorted(self.outputs))
        used = [*(self.inputs[k] for k in slots), *(self.outputs[k] for k in outputs)]
        place = t.pointer("scratch", "float32")
        declared = [*(t.declare(buffer, pointer) for pointer, buffer in used), *(t.declare(b, place) for b in memory)]
        params = [*(pointer for pointer, _ in used), place, *self.sizes.values(), self.begin, self.end]
        body = t.sequence([*declared, *self.math.checked(self.stmts)])
        func = t.prim_func(name, params, t.import_llvm(self.imports, body) if self.imports else body)
        batch = None
        if items is not None:
            assert len(outputs) == 1
            batch = Items(items[0], tuple(items[1].get(k, Dim.of(0)) for k in (*slots, None)))
        return Generated(func, Kernel(name, slots, outputs, tuple(self.sizes), extent, align, scratch, grain, packed,
                                      filters, features, equal, batch))

    # -- integers ---------------------------------------------------------------------------------------------
    def share(self, expr: t.Expr, dtype: str = "int64") -> t.Expr:
        """A scalar, evaluated here and once."""
        return self.math.share(V(expr, dtype)).expr

    def set_loops(self, loops: Sequence[Var], number: t.Expr) -> None:
        """Takes a number apart into the loops of which it is the mixed radix number, outermost first."""
        for k, var in reversed(list(enumerate(loops))):
            if k == 0:
                self.loops[var] = number
                return
            extent = self.dim(var.extent)
            self.loops[var] = self.share(t.Rem(number, extent))
            number = self.share(t.Div(number, extent))

    # -- structure --------------------------------------------------------------------------------------------
    @contextmanager
    def block(self) -> Iterator[list[t.Stmt]]:
        """Collects statements of a nested body."""
        outer = self.stmts
        inner: list[t.Stmt] = []
        self.stmts = self.math.emit = inner
        yield inner
        self.stmts = self.math.emit = outer

    @contextmanager
    def loop(self, name: str, extent: t.Expr | int, start: t.Expr | int = 0) -> Iterator[t.Var]:
        index = t.var(name, "int64")
        with self.block() as body:
            yield index
        if body:
            low = self.i64(start) if isinstance(start, int) else start
            count = self.i64(extent) if isinstance(extent, int) else extent
            self.stmts.append(t.loop(index, low, count, t.sequence(body)))

    @contextmanager
    def when(self, condition: t.Expr) -> Iterator[None]:
        with self.block() as body:
            yield
        if body:
            self.stmts.append(t.IfThenElse(condition, t.sequence(body), None))

    # -- memory -----------------------------------------------------------------------------------------------
    def input(self, slot: int, stored: str) -> t.Buffer:
        """What a `Load` of that slot reads: below 0, an output of the kernel itself."""
        if slot < 0:
            return self.output(-1 - slot, stored)
        return self._parameter(self.inputs, slot, f"in{slot}", stored)

    def output(self, output: int, stored: str) -> t.Buffer:
        return self._parameter(self.outputs, output, f"out{output}", stored)

    def _parameter(self, known: dict[int, tuple[t.Var, t.Buffer]], which: int, name: str, stored: str) -> t.Buffer:
        if which not in known:
            dtype = STORAGE.get(stored, stored)
            known[which] = t.pointer(f"p_{name}", dtype), self.flat(name, dtype)
        return known[which][1]

    def flat(self, name: str, dtype: str) -> t.Buffer:
        return t.flat_buffer(name, dtype, self.i64(_BOUND))

    def local(self, name: str, dtype: str, size: int) -> t.Buffer:
        """A few elements on the stack, in registers where every index is constant."""
        buffer, allocate = t.local_buffer(name, dtype, size)
        self.stmts.append(allocate)
        return buffer

    def read(self, buffer: t.Buffer, dtype: str, at: t.Expr | int, lanes: int = 1) -> V:
        place = self.i64(at) if isinstance(at, int) else at
        if lanes == 1:
            return V(t.BufferLoad(buffer, [place]), dtype)
        return V(t.BufferLoad(buffer, [t.Ramp(place, self.i64(1), lanes)]), dtype, lanes)

    def write(self, buffer: t.Buffer, at: t.Expr | int, value: V, lanes: int = 1) -> None:
        place = self.i64(at) if isinstance(at, int) else at
        if lanes > 1:
            place = t.Ramp(place, self.i64(1), lanes)
        self.stmts.append(t.BufferStore(buffer, self.math.widen(value, lanes), [place]))

    def prefetch(self, buffer: t.Buffer, at: t.Expr) -> None:
        """Asks for the cache line of an element that will be read later; nothing happens where there is none."""
        self.stmts.append(t.prefetch(buffer, at))

    def scalar(self, name: str, dtype: str, value: V) -> t.Buffer:
        """A variable."""
        buffer = self.local(name, dtype, 1)
        self.write(buffer, 0, value)
        return buffer

    def f32(self, value: float) -> V:
        return self.math.const(value, "float32")

    # -- values -----------------------------------------------------------------------------------------------
    def unpack(self, raw: V, stored: str, dtype: str) -> V:
        """An operand as stored, widened to its computing dtype."""
        m = self.math
        if stored == "bool":
            return m.ne(raw, m.const(0, "uint8"))
        if stored == "float16":
            return V(t.Cast(typed("float32", raw.lanes), raw.expr), "float32", raw.lanes)
        if stored == "bfloat16":
            return m.bitcast(m.shl(m.cast(raw, "uint32"), m.const(16, "uint32")), "float32")
        return V(raw.expr, dtype, raw.lanes)

    def value(self, inst: Inst, along: Var, lanes: int, known: dict[int, V], valid: t.Expr = None) -> V:
        """`inst` for `lanes` positions of the loop `along` from its current value.

        `known`: values by identity, extended here. `valid`: how many of the positions exist; nothing is read past them.
        """
        if id(inst) in known:
            return known[id(inst)]
        match inst:
            case Literal():
                return self.math.const(inst.value, inst.dtype)
            case Load() | Place():
                computed = [self.value(a, along, lanes, known, valid) for a in inst.args]
                value = self.leaf(inst, along, lanes, computed, valid)
            case Apply():
                operands = [self.value(a, along, lanes, known, valid) for a in inst.operands]
                value = inst.point.fn(self.math, operands)
            case _:
                raise TypeError(type(inst).__name__)
        known[id(inst)] = self.math.share(value)
        return known[id(inst)]

    def leaf(self, inst: Load | Place, along: Var, lanes: int, computed: Sequence[V], valid: t.Expr = None) -> V:
        """A `Load` or a `Place`; `computed`: the values of its `args`, its computed indices."""
        if lanes > 1 and uneven(inst, along) is not None:
            return self._one_by_one(inst, along, lanes, computed)
        # One place for all lanes; a pass that recalls the index has it in each of them.
        self.computed = dict(zip(_index(inst).dynamic, (self._lane(v, 0) for v in computed), strict=True))
        return self.load(inst, along, lanes, valid) if isinstance(inst, Load) else self.place(inst, along, lanes)

    def _one_by_one(self, inst: Load | Place, along: Var, lanes: int, computed: Sequence[V]) -> V:
        """`inst` where `lanes` neighbours along the loop are not neighbours in memory."""
        ix = _index(inst)
        start = self.loops[along]
        parts = []
        for k in range(lanes):
            self.computed = {d: self._lane(v, k) for d, v in zip(ix.dynamic, computed, strict=True)}
            place = self.index(ix, {along: t.Add(start, self.i64(k))})
            if isinstance(inst, Load):
                one = self._element(inst, place)
            else:
                one = V(place, "int64")
            parts.append(self.math.share(one).expr)
        order = [t.int_imm("int32", k) for k in range(lanes)]
        if isinstance(inst, Load):
            raw = self.math.share(V(t.Shuffle(parts, order), one.dtype, lanes))
            return self.unpack(raw, inst.stored, inst.dtype)
        value = self.math.share(V(t.Shuffle(parts, order), "int64", lanes))
        return value if inst.dtype == "int64" else self.math.cast(value, inst.dtype)

    def _lane(self, value: V, k: int) -> t.Expr:
        if value.lanes == 1:
            return value.expr
        return t.Shuffle([value.expr], [t.int_imm("int32", k)])

    def load(self, inst: Load, along: Var, lanes: int, valid: t.Expr = None) -> V:
        """One operand, widened to its computing dtype; see `value`."""
        address = self.index(inst.address)
        moving = inst.address.coef(along) == 1 and lanes > 1
        if not moving or valid is None:
            return self.unpack(self._element(inst, address, lanes if moving else 1), inst.stored, inst.dtype)
        storage = STORAGE.get(inst.stored, inst.stored)
        part = self.local("part", storage, lanes)
        self.write(part, 0, self.math.const(0, storage), lanes)
        with self.loop("c", valid) as c:
            self.write(part, c, self._element(inst, t.Add(address, c)))
        return self.unpack(self.math.share(self.read(part, storage, 0, lanes)), inst.stored, inst.dtype)

    def _element(self, inst: Load, address: t.Expr, lanes: int = 1) -> V:
        """Elements as stored; 0 where one of the extents `present` is."""
        storage = STORAGE.get(inst.stored, inst.stored)
        buffer = self.input(inst.slot, inst.stored)
        if not inst.present:
            return self.read(buffer, storage, address, lanes)
        there = functools.reduce(t.And, (t.LT(self.i64(0), self.dim(d)) for d in inst.present))
        part = self.local("part", storage, lanes)
        self.write(part, 0, self.math.const(0, storage), lanes)
        with self.when(there):
            self.write(part, 0, self.read(buffer, storage, address, lanes), lanes)
        return self.math.share(self.read(part, storage, 0, lanes))

    def place(self, inst: Place, along: Var, lanes: int) -> V:
        """The value of an index for `lanes` positions of the loop `along`."""
        base = V(self.index(inst.index), "int64")
        coef = inst.index.coef(along)
        if lanes > 1 and coef != 0:
            base = V(t.Ramp(base.expr, self.dim(coef), lanes), "int64", lanes)
        return base if inst.dtype == "int64" else self.math.cast(base, inst.dtype)


def _index(inst: Load | Place) -> Ix:
    return inst.address if isinstance(inst, Load) else inst.index
