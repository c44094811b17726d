"""`tilegraph.ops.math.Math` over TIR: a value is an expression of one or several lanes.

Nodes are constructed directly, never through TVM's operators, which fold constants without regard to IEEE 754.
Every result is bound to a variable, so no later pass sees two operations as one pattern.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegraph.codegen import tvm_compat as t


@dataclass(frozen=True)
class V:
    """A TIR expression of `lanes` elements of a numpy dtype."""

    expr: t.Expr
    dtype: str
    lanes: int = 1


class Shared(V):
    """A value that is evaluated already; naming it again costs nothing."""


def typed(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


_BITS = {"float32": "int32", "float64": "int64"}
# TVM tells LLVM that sums and products of 32 and 64 bits never overflow, so a limit put on one that wrapped round
# would be optimized away. In twice the bits none does, and LLVM makes that the one instruction it is. A difference of
# unsigned values may be negative.
_WIDER = {"int32": "int64", "uint32": "uint64", "int64": "int128", "uint64": "uint128"}


class TirMath:
    """Builds expressions; `emit` receives the statements that bind shared values."""

    def __init__(self, emit: list[t.Stmt]) -> None:
        self.emit = emit
        self._count = 0
        self._failed: dict[str, t.Buffer] = {}
        self._before: list[t.Stmt] = []

    # -- lanes ------------------------------------------------------------------------------------------------
    def widen(self, v: V, lanes: int) -> t.Expr:
        if v.lanes == lanes:
            return v.expr
        if v.lanes != 1:
            raise ValueError(f"{v.lanes} lanes do not widen to {lanes}")
        return t.Broadcast(v.expr, lanes)

    def _pair(self, node: Any, a: V, b: V, dtype: str) -> V:
        lanes = max(a.lanes, b.lanes)
        return self.share(V(node(self.widen(a, lanes), self.widen(b, lanes)), dtype, lanes))

    def _intrinsic(self, name: str, *args: V) -> V:
        lanes = max(a.lanes for a in args)
        dtype = args[0].dtype
        call = t.intrinsic(typed(dtype, lanes), name, *(self.widen(a, lanes) for a in args))
        return self.share(V(call, dtype, lanes))

    def share(self, a: V) -> V:
        """Evaluates `a` once: a store to the stack and loads, which LLVM turns back into a value.

        TVM sees trees, so a tree that is used twice is doubled. Its own bindings would not do: the code generator
        analyses bound values by substituting them into each other (exponential time: 27 s for the gradient of GELU,
        0.1 s this way), and cannot bind vectors of bool at all. Bools go through bytes.
        """
        if isinstance(a, Shared):
            return a
        if a.dtype == "bool":
            one, zero = (self.widen(V(t.int_imm("int8", k), "int8"), a.lanes) for k in (1, 0))
            kept = self.share(V(t.Select(a.expr, one, zero), "int8", a.lanes))
            return Shared(t.NE(kept.expr, zero), "bool", a.lanes)
        self._count += 1
        buffer, allocate = t.local_buffer(f"v{self._count}", a.dtype, a.lanes)
        at = t.int_imm("int64", 0)
        if a.lanes > 1:
            at = t.Ramp(at, t.int_imm("int64", 1), a.lanes)
        self.emit += [allocate, t.BufferStore(buffer, a.expr, [at])]
        return Shared(t.BufferLoad(buffer, [at]), a.dtype, a.lanes)

    # -- values -----------------------------------------------------------------------------------------------
    def dtype(self, v: V) -> str:
        return v.dtype

    def const(self, value: Any, dtype: str) -> V:
        if dtype.startswith("float"):
            number = float(np.dtype(dtype).type(value))
            if math.isfinite(number):
                return V(t.float_imm(dtype, number), dtype)
            bits = np.asarray(value, dtype).view(_BITS[dtype])
            return V(t.reinterpret(dtype, t.int_imm(_BITS[dtype], int(bits))), dtype)
        number = int(np.asarray(int(value)).astype(dtype)) if dtype != "uint64" else int(value)
        if dtype == "uint64" and number >= 1 << 63:
            return V(t.reinterpret("uint64", t.int_imm("int64", number - (1 << 64))), dtype)
        return V(t.int_imm(dtype, number), dtype)

    # -- arithmetic -------------------------------------------------------------------------------------------
    def _wrapping(self, node: Any, a: V, b: V) -> V:
        wider = _WIDER.get(a.dtype)
        if wider is None:
            return self._pair(node, a, b, a.dtype)
        if node is t.Sub:
            wider = wider.removeprefix("u")
        lanes = max(a.lanes, b.lanes)
        exact = node(*(t.Cast(typed(wider, lanes), self.widen(v, lanes)) for v in (a, b)))
        return self.share(V(t.Cast(typed(a.dtype, lanes), exact), a.dtype, lanes))

    def add(self, a: V, b: V) -> V:
        return self._wrapping(t.Add, a, b)

    def sub(self, a: V, b: V) -> V:
        return self._wrapping(t.Sub, a, b)

    def mul(self, a: V, b: V) -> V:
        return self._wrapping(t.Mul, a, b)

    def div(self, a: V, b: V) -> V:
        return self._pair(t.Div, a, b, a.dtype)

    def idiv(self, a: V, b: V) -> V:
        return self._pair(t.Div, a, b, a.dtype)

    def irem(self, a: V, b: V) -> V:
        return self._pair(t.Rem, a, b, a.dtype)

    def fma(self, a: V, b: V, c: V) -> V:
        return self._intrinsic("llvm.fma", a, b, c)

    def neg(self, a: V) -> V:
        if a.dtype.startswith("float"):
            return self.mul(a, self.const(-1.0, a.dtype))
        return self.sub(self.const(0, a.dtype), a)

    def abs(self, a: V) -> V:
        if a.dtype.startswith("float"):
            return self._intrinsic("llvm.fabs", a)
        if a.dtype.startswith("u"):
            return a
        a = self.share(a)
        return self.select(self.lt(a, self.const(0, a.dtype)), self.neg(a), a)

    def minimum(self, a: V, b: V) -> V:
        if a.dtype.startswith("float"):
            return self._intrinsic("llvm.minimum", a, b)
        return self._pair(t.Min, a, b, a.dtype)

    def maximum(self, a: V, b: V) -> V:
        if a.dtype.startswith("float"):
            return self._intrinsic("llvm.maximum", a, b)
        return self._pair(t.Max, a, b, a.dtype)

    def floor(self, a: V) -> V:
        return self._intrinsic("llvm.floor", a)

    def ceil(self, a: V) -> V:
        return self._intrinsic("llvm.ceil", a)

    def trunc(self, a: V) -> V:
        return self._intrinsic("llvm.trunc", a)

    def round_even(self, a: V) -> V:
        return self._intrinsic("llvm.roundeven", a)

    def sqrt(self, a: V) -> V:
        return self._intrinsic("llvm.sqrt", a)

    # -- comparisons and logic --------------------------------------------------------------------------------
    def eq(self, a: V, b: V) -> V:
        return self._pair(t.EQ, a, b, "bool")

    def ne(self, a: V, b: V) -> V:
        if a.dtype.startswith("float"):  # LLVM's code generator compares ordered: NaN != NaN would be false
            return self.lnot(self.eq(a, b))
        return self._pair(t.NE, a, b, "bool")

    def lt(self, a: V, b: V) -> V:
        return self._pair(t.LT, a, b, "bool")

    def le(self, a: V, b: V) -> V:
        return self._pair(t.LE, a, b, "bool")

    def land(self, a: V, b: V) -> V:
        return self._pair(t.And, a, b, "bool")

    def lor(self, a: V, b: V) -> V:
        return self._pair(t.Or, a, b, "bool")

    def lnot(self, a: V) -> V:
        return self.share(V(t.Not(a.expr), "bool", a.lanes))

    def select(self, c: V, a: V, b: V) -> V:
        lanes = max(c.lanes, a.lanes, b.lanes)
        chosen = t.Select(self.widen(c, lanes), self.widen(a, lanes), self.widen(b, lanes))
        return self.share(V(chosen, a.dtype, lanes))

    # -- bits -------------------------------------------------------------------------------------------------
    def band(self, a: V, b: V) -> V:
        return self._pair(t.BitAnd, a, b, a.dtype)

    def bor(self, a: V, b: V) -> V:
        return self._pair(t.BitOr, a, b, a.dtype)

    def bxor(self, a: V, b: V) -> V:
        return self._pair(t.BitXor, a, b, a.dtype)

    def shl(self, a: V, b: V) -> V:
        return self._pair(t.ShiftLeft, a, b, a.dtype)

    def shr(self, a: V, b: V) -> V:
        return self._pair(t.ShiftRight, a, b, a.dtype)

    def bitcast(self, a: V, dtype: str) -> V:
        return self.share(V(t.reinterpret(typed(dtype, a.lanes), a.expr), dtype, a.lanes))

    def cast(self, a: V, dtype: str) -> V:
        if a.dtype == dtype:
            return a
        if dtype == "bool":
            return self.ne(a, self.const(0, a.dtype))
        if a.dtype == "bool":
            return self.select(a, self.const(1, dtype), self.const(0, dtype))
        return self.share(V(t.Cast(typed(dtype, a.lanes), a.expr), dtype, a.lanes))

    def libm(self, name: str, *args: V) -> V:
        lanes = max(a.lanes for a in args)
        dtype = args[0].dtype
        symbol = name + ("f" if dtype == "float32" else "")
        shared = [self.share(a) for a in args]
        if lanes == 1:
            return V(t.external(dtype, symbol, *(a.expr for a in shared)), dtype)
        results = []
        for k in range(lanes):
            parts = [a.expr if a.lanes == 1 else t.Shuffle([a.expr], [t.int_imm("int32", k)]) for a in shared]
            results.append(self.share(V(t.external(dtype, symbol, *parts), dtype)).expr)
        return V(t.Shuffle(results, [t.int_imm("int32", k) for k in range(lanes)]), dtype, lanes)

    # -- errors ---------------------------------------------------------------------------------------------------
    def require(self, holds: V, reason: str) -> None:
        """Notes a failure in a variable of the kernel; `checked` reports it at the end."""
        if reason not in self._failed:
            flag, allocate = t.local_buffer(f"failed{len(self._failed)}", "int32", 1)
            self._failed[reason] = flag
            self._before += [allocate, t.BufferStore(flag, t.int_imm("int32", 0), [t.int_imm("int64", 0)])]
        flag, at = self._failed[reason], t.int_imm("int64", 0)
        one, zero = (self.widen(V(t.int_imm("int32", k), "int32"), holds.lanes) for k in (1, 0))
        wrong = t.Select(holds.expr, zero, one)
        if holds.lanes > 1:
            wrong = t.intrinsic("int32", "llvm.vector.reduce.or", wrong)
        self.emit.append(t.BufferStore(flag, t.BitOr(t.BufferLoad(flag, [at]), wrong), [at]))

    def require_first(self, holds: t.Expr, reason: str) -> None:
        """The kernel begins with it and does nothing where it does not hold. `holds` knows the sizes only."""
        self._before.append(t.check(holds, reason))

    def checked(self, body: list[t.Stmt]) -> list[t.Stmt]:
        """`body`, the whole kernel, with what its `require`s need around it; nothing where there are none."""
        at = t.int_imm("int64", 0)
        reports = [t.check(t.EQ(t.BufferLoad(flag, [at]), t.int_imm("int32", 0)), reason)
                   for reason, flag in self._failed.items()]
        return [*self._before, *body, *reports]

    # -- reductions over lanes --------------------------------------------------------------------------------
    def folded(self, v: V, join: Callable[[V, V], V]) -> V:
        """All lanes joined to one, in halves as long as their number is even."""
        while v.lanes % 2 == 0:
            v = join(self.half(v, False), self.half(v, True))
        if v.lanes == 1:
            return v
        v = self.share(v)
        each = (V(t.Shuffle([v.expr], [t.int_imm("int32", k)]), v.dtype) for k in range(v.lanes))
        return functools.reduce(join, each)

    def half(self, v: V, upper: bool) -> V:
        """The lower or upper half of the lanes, of which there is an even number."""
        assert v.lanes % 2 == 0, v.lanes
        count = v.lanes // 2
        first = count if upper else 0
        if count == 1:
            return V(t.Shuffle([v.expr], [t.int_imm("int32", first)]), v.dtype)
        return V(t.Shuffle([v.expr], [t.int_imm("int32", first + k) for k in range(count)]), v.dtype, count)
