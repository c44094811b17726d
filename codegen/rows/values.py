"""What a region's kernel evaluates: values of the row, evaluated once, and values along the columns."""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.schedule import Passes
from tilegraph.codegen.tir_math import TirMath, V, typed
from tilegraph.ops.dtypes import BYTES
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Apply, Choose, Inst, Literal, Load, Place, Space, Store, index_of
from tilegraph.ops.vecmath import round_to_bfloat16
from tilegraph.spec.dims import Dim


def pack(m: TirMath, value: V, stored: str) -> V:
    """A value of its computing dtype as it is stored."""
    if stored == "bool":
        return m.select(value, m.const(1, "uint8"), m.const(0, "uint8"))
    if stored == "float16":
        return V(t.Cast(typed("float16", value.lanes), value.expr), "float16", value.lanes)
    if stored == "bfloat16":
        bits = m.shr(m.bitcast(round_to_bfloat16(m, m.share(value)), "uint32"), m.const(16, "uint32"))
        return m.cast(bits, "uint16")
    return value


def refuse_empty(e: Emitter, space: Space) -> None:
    """Lets the kernel end with an error where there is nothing for a computed place to be in: it reads something."""
    extents = {d.extent for inst in space.insts() if (ix := index_of(inst)) is not None for d in ix.dynamic}
    for extent in sorted((d for d in extents if d.as_int() is None), key=str):
        e.math.require_first(t.LE(e.i64(1), e.dim(extent)), f"an index into the extent {extent}, which is 0")


class Values:
    """Evaluates the values of `space` where the emitter stands.

    `cell`: which part of its concatenations each loop is in. `folded`: reductions that are finished, by identity.
    `kept_at`: where values that a later pass needs lie in `scratch` bytes.
    """

    def __init__(self, emitter: Emitter, space: Space, passes: Passes) -> None:
        self.e = emitter
        self.math = emitter.math
        self.space = space
        self.passes = passes
        self.lanes_loop = space.cols[-1]
        self.cell: dict[Var, int] = {}
        self.kept_at: dict[int, tuple[t.Buffer, Dim]] = {}
        self.scratch = self._lay_out()
        self.start_row()

    def start_row(self) -> None:
        """Forgets the values of the row before."""
        self.folded: dict[int, V] = {}
        self._row_values: dict[int, V] = {}
        self._reciprocals: dict[int, tuple[V, V]] = {}

    def _lay_out(self) -> Dim:
        """Places the kept values, each on a 64-byte boundary; the bytes that they take."""
        total = Dim.of(0)
        columns = Dim.product(v.extent for v in self.space.cols)
        for k, inst in enumerate(self.passes.kept):
            width = BYTES[{"float32": "float", "float64": "double"}.get(inst.dtype, inst.dtype)]
            buffer = self.e.flat(f"kept{k}", inst.dtype)
            self.kept_at[id(inst)] = (buffer, total.exact_div(width) or Dim.of(0))
            total = total + ((columns * width + 63) // 64) * 64
        return total

    # -- of the row -----------------------------------------------------------------------------------------
    def prepare(self, insts: list[Inst], p: int) -> None:
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
                        and id(divisor) not in self._reciprocals:
                    self._row_reciprocal(divisor)
            if isinstance(inst, Choose) and inst.var not in self.space.cols:
                stack.append(self._chosen(inst))  # the other parts' addresses are out of range in this row
            else:
                stack.extend(inst.args)

    def row_value(self, inst: Inst) -> V:
        """A value that does not change along the columns, evaluated once a row."""
        if id(inst) in self.folded:
            return self.folded[id(inst)]
        if isinstance(inst, Literal):
            return self.math.const(inst.value, inst.dtype)
        if id(inst) not in self._row_values:
            match inst:
                case Load() | Place():
                    value = self.e.leaf(inst, self.lanes_loop, 1, [self.row_value(a) for a in inst.args])
                case Choose():
                    value = self.row_value(self._chosen(inst))
                case Apply():
                    value = inst.point.fn(self.math, [self.row_value(a) for a in inst.operands])
                case _:
                    raise TypeError(f"{type(inst).__name__} before its pass")
            self._row_values[id(inst)] = self.math.share(value)
        return self._row_values[id(inst)]

    # -- along the columns ----------------------------------------------------------------------------------
    def value(self, inst: Inst, lanes: int, memo: dict[int, V], p: int) -> V:
        """`inst` for the current columns: `lanes` of them from the innermost loop's position."""
        if id(inst) in memo:
            return memo[id(inst)]
        if not self.passes.column[id(inst)]:
            if isinstance(inst, Literal):
                return self.math.const(inst.value, inst.dtype)
            return self.row_value(inst)
        if self.passes.available(inst, p):
            value = self._recall(inst, lanes)
        else:
            match inst:
                case Load() | Place():
                    computed = [self.value(a, lanes, memo, p) for a in inst.args]
                    value = self.e.leaf(inst, self.lanes_loop, lanes, computed)
                case Choose():
                    memo[id(inst)] = self.value(self._chosen(inst), lanes, memo, p)
                    return memo[id(inst)]
                case Apply():
                    value = self._apply(inst, lanes, memo, p)
                case _:
                    raise TypeError(type(inst).__name__)
        memo[id(inst)] = self.math.share(value)
        return memo[id(inst)]

    def _apply(self, inst: Apply, lanes: int, memo: dict[int, V], p: int) -> V:
        """A pointwise operation. Dividing by a value of the row multiplies by its reciprocal (1 ulp).

        Both factors are scaled by a power of two where the reciprocal would not be a normal number.
        """
        operands = [self.value(a, lanes, memo, p) for a in inst.operands]
        if inst.point.key.startswith("Div<") and inst.dtype == "float32" and lanes > 1:
            divisor = inst.operands[1]
            if not self.passes.column[id(divisor)] and not isinstance(divisor, Literal):
                scale, reciprocal = self._reciprocals[id(divisor)]
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
        self._reciprocals[id(divisor)] = (scale, m.div(m.const(1.0, "float32"), m.mul(value, scale)))

    def _chosen(self, inst: Choose) -> Inst:
        cell = self.cell[inst.var]
        bounds = self.space.breaks[inst.var]
        part = sum(1 for b in inst.bounds if bounds.index(b) < cell)
        return inst.parts[part]

    # -- memory ---------------------------------------------------------------------------------------------
    def store(self, store: Store, value: V, lanes: int) -> None:
        packed = pack(self.math, value, store.stored)
        self.e.write(self.e.output(store.output, store.stored), self.e.index(store.address), packed, lanes)

    def keep(self, memo: dict[int, V], lanes: int, p: int) -> None:
        """Writes to scratch what pass p is the first to evaluate and later ones need."""
        for inst in self.passes.kept:
            if id(inst) in memo and not self.passes.available(inst, p):
                buffer, address = self._kept(inst)
                self.e.write(buffer, address, memo[id(inst)], lanes)

    def _kept(self, inst: Inst) -> tuple[t.Buffer, t.Expr]:
        buffer, offset = self.kept_at[id(inst)]
        return buffer, self.e.index(self._column_address() + offset)

    def _recall(self, inst: Inst, lanes: int) -> V:
        """A value that an earlier pass left in memory."""
        if id(inst) in self.kept_at:
            buffer, address = self._kept(inst)
            return self.e.read(buffer, inst.dtype, address, lanes)
        store = self.passes.from_output[id(inst)]
        buffer = self.e.output(store.output, store.stored)
        return self.e.read(buffer, inst.dtype, self.e.index(store.address), lanes)

    def _column_address(self) -> Ix:
        """The position within the row."""
        total, stride = Ix(), Dim.of(1)
        for v in reversed(self.space.cols):
            total = total + Ix.of(v) * stride
            stride = stride * v.extent
        return total
