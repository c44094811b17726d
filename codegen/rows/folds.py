"""Reductions over the columns: accumulators in registers, one horizontal reduction a row."""

from __future__ import annotations

from collections.abc import Sequence

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.tir_math import TirMath, V
from tilegraph.ops.space import Fold, Running

Accumulators = dict[int, dict[int, t.Buffer]]  # of each fold of a pass by identity, by width in lanes

_IDENTITY = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "peak": float("-inf"), "min": float("inf")}
_INT_RANGE = {"int8": (-(1 << 7), (1 << 7) - 1), "int16": (-(1 << 15), (1 << 15) - 1),
              "int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1),
              "uint8": (0, (1 << 8) - 1), "uint16": (0, (1 << 16) - 1), "uint32": (0, (1 << 32) - 1),
              "uint64": (0, (1 << 64) - 1)}


def _identity(e: Emitter, fold: Fold | Running) -> V:
    if fold.dtype.startswith("float"):
        if isinstance(fold, Running) and fold.kind == "sum" and not fold.exclusive:
            return e.math.const(-0.0, fold.dtype)  # so that a first value of -0.0 stays that
        return e.math.const(_IDENTITY[fold.kind], fold.dtype)
    low, high = _INT_RANGE[fold.dtype]
    return e.math.const({"sum": 0, "prod": 1, "max": low, "min": high}[fold.kind], fold.dtype)


def _combine(m: TirMath, fold: Fold | Running, a: V, b: V) -> V:
    if fold.kind == "peak":
        return m.select(m.lt(a, b), b, a)
    return {"sum": m.add, "prod": m.mul, "max": m.maximum, "min": m.minimum}[fold.kind](a, b)


def accumulators(e: Emitter, fold: Fold | Running, widths: Sequence[int]) -> dict[int, t.Buffer]:
    """One accumulator for each of `widths` (in lanes), on the stack and initialised."""
    made: dict[int, t.Buffer] = {}
    for width in dict.fromkeys(widths):
        made[width] = e.local("acc", fold.dtype, width)
    restart(e, fold, made)
    return made


def restart(e: Emitter, fold: Fold | Running, accumulators: dict[int, t.Buffer]) -> None:
    for width, buffer in accumulators.items():
        e.write(buffer, 0, _identity(e, fold), width)


def accumulate(e: Emitter, fold: Fold | Running, accumulators: dict[int, t.Buffer], value: V, lanes: int) -> None:
    buffer = accumulators[lanes]
    now = e.read(buffer, fold.dtype, 0, lanes)
    e.write(buffer, 0, _combine(e.math, fold, now, value), lanes)


def finish(e: Emitter, fold: Fold, accumulators: dict[int, t.Buffer]) -> V:
    """All lanes of all accumulators combined, pairwise."""
    m = e.math
    total: V | None = None
    width = max(accumulators)
    while True:
        if width in accumulators:
            part = m.share(e.read(accumulators[width], fold.dtype, 0, width))
            total = part if total is None else _combine(m, fold, total, part)
        assert total is not None
        if width == 1:
            return total
        total = _combine(m, fold, m.half(total, False), m.half(total, True))
        width //= 2
