"""What the parts of the attention generator share: statements, loops, sizes, index expressions and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.tir_math import TirMath, V, typed
from tilegraph.ops.index import Ix, Quotient, Remainder, Var
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place
from tilegraph.spec.dims import Dim, Opaque

STORAGE = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "uint16", "bool": "uint8"}
_BOUND = 1 << 40  # the stated length of buffers whose length nobody checks


class Emitter:
    """Collects the statements of one kernel. `loops` holds the value of each loop variable where code is emitted."""

    def __init__(self) -> None:
        self.stmts: list[t.Stmt] = []
        self.math = TirMath(self.stmts)
        self.sizes: dict[str, t.Var] = {}
        self.loops: dict[Var, t.Expr] = {}
        self.inputs: dict[int, tuple[t.Var, t.Buffer]] = {}

    # -- integers ---------------------------------------------------------------------------------------------
    def i64(self, value: int) -> t.Expr:
        return t.int_imm("int64", value)

    def dim(self, dim: Dim) -> t.Expr:
        """A dim as an int64 expression over the size parameters."""
        total: t.Expr = None
        for mono, coef in dim.terms:
            term: t.Expr = None
            for atom in mono:
                factor = self._size(atom) if isinstance(atom, str) else self._opaque(atom)
                term = factor if term is None else t.Mul(term, factor)
            if term is None:
                term = self.i64(coef)
            elif coef != 1:
                term = t.Mul(term, self.i64(coef))
            total = term if total is None else t.Add(total, term)
        return self.i64(0) if total is None else total

    def _size(self, symbol: str) -> t.Var:
        if symbol not in self.sizes:
            self.sizes[symbol] = t.var(f"n{len(self.sizes)}", "int64")
        return self.sizes[symbol]

    def _opaque(self, atom: Opaque) -> t.Expr:
        args = [self.dim(a) for a in atom.args]
        node = {"//": t.Div, "%": t.Rem, "min": t.Min, "max": t.Max}[atom.op]
        result = args[0]
        for arg in args[1:]:
            result = node(result, arg)
        return result

    def index(self, ix: Ix, at: Mapping[Var, t.Expr] | None = None) -> t.Expr:
        """An index expression at the current loop values, or at others where `at` gives them."""
        total = self.dim(ix.const) if ix.const != 0 or not ix.terms else None
        for atom, coef in ix.terms:
            if isinstance(atom, Var):
                value = at[atom] if at and atom in at else self.loops[atom]
            else:
                assert isinstance(atom, (Quotient, Remainder))
                node = t.Div if isinstance(atom, Quotient) else t.Rem
                value = node(self.index(atom.of, at), self.dim(atom.by))
            term = value if coef == 1 else t.Mul(value, self.dim(coef))
            total = term if total is None else t.Add(total, term)
        return total

    def share(self, expr: t.Expr, dtype: str = "int64") -> t.Expr:
        """A scalar, evaluated here and once."""
        return self.math.share(V(expr, dtype)).expr

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
        if slot not in self.inputs:
            dtype = STORAGE.get(stored, stored)
            self.inputs[slot] = (t.pointer(f"p_in{slot}", dtype), t.flat_buffer(f"in{slot}", dtype, self.i64(_BOUND)))
        return self.inputs[slot][1]

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
            case Load():
                value = self._load(inst, along, lanes, valid)
            case Place():
                value = self._place(inst, along, lanes)
            case Apply():
                operands = [self.value(a, along, lanes, known, valid) for a in inst.operands]
                value = inst.point.fn(self.math, operands)
            case _:
                raise TypeError(type(inst).__name__)
        known[id(inst)] = self.math.share(value)
        return known[id(inst)]

    def _load(self, inst: Load, along: Var, lanes: int, valid: t.Expr) -> V:
        storage = STORAGE.get(inst.stored, inst.stored)
        buffer = self.input(inst.slot, inst.stored)
        address = self.index(inst.address)
        moving = inst.address.coef(along) == 1 and lanes > 1
        if not moving:
            return self.unpack(self.read(buffer, storage, address), inst.stored, inst.dtype)
        if valid is None:
            return self.unpack(self.read(buffer, storage, address, lanes), inst.stored, inst.dtype)
        part = self.local("part", storage, lanes)
        self.write(part, 0, self.math.const(0, storage), lanes)
        with self.loop("c", valid) as c:
            self.write(part, c, self.read(buffer, storage, t.Add(address, c)))
        return self.unpack(self.math.share(self.read(part, storage, 0, lanes)), inst.stored, inst.dtype)

    def _place(self, inst: Place, along: Var, lanes: int) -> V:
        base = V(self.index(inst.index), "int64")
        coef = inst.index.coef(along)
        if lanes > 1 and coef != 0:
            base = V(t.Ramp(base.expr, self.dim(coef), lanes), "int64", lanes)
        return base if inst.dtype == "int64" else self.math.cast(base, inst.dtype)
