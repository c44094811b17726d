"""Which share of the score matrix a mask leaves, as far as the compiler can see it.

The modifier is evaluated with all scores 0, on positions and on constants; symbolic extents count `ASSUMED`. What only
a run knows is taken to hide nothing: floats are 0, and integers and bools all 1 or all 0, whichever shows more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.ops.attention import AttentionSpace, Score
from tilegraph.ops.index import Ix, Quotient, Remainder, Var
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Lowered
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place, insts
from tilegraph.spec.dims import Dim

ASSUMED = 512
BLOCK = 64  # as the kernel's
_HIDDEN = -1000.0
_MOST = 1 << 24  # elements: larger masks are not looked at
_BATCHES = 16

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Density:
    """Shares of the score matrix: of elements, and of blocks with a visible element."""

    elements: float
    blocks: float


class _Unknown(Exception):
    """An operation that is not evaluated here."""


_OPERATIONS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs, "And": np.logical_and,
    "Or": np.logical_or, "Not": np.logical_not, "Xor": np.logical_xor, "Where": np.where, "Less": np.less,
    "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Equal": np.equal,
    "Tanh": np.tanh, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Min": np.minimum, "Max": np.maximum,
    "IsInf": np.isinf, "IsNaN": np.isnan,
}


def density(lowered: Lowered, space: AttentionSpace) -> Density | None:
    """The share that is visible, or None where nothing hides keys or nothing is known of what does."""
    rows, columns = _size(space.i.extent), _size(space.j.extent)
    if rows * columns > _MOST or not rows or not columns:
        return None
    used = set().union(*(_vars(inst) for inst in insts(space.x)))
    batch = [v for v in space.batch if v in used]
    found = []
    for flag in (1, 0):
        reader = _Reader(lowered, flag)
        shares: list[tuple[float, float]] = []
        try:
            for values in islice(product(*(range(_size(v.extent)) for v in batch)), _BATCHES):
                place: dict[Var, Array] = dict.fromkeys(space.batch, np.asarray(0))
                place |= {v: np.asarray(k) for v, k in zip(batch, values, strict=True)}
                place[space.i] = np.arange(rows)[:, None]
                place[space.j] = np.arange(columns)[None]
                with np.errstate(all="ignore"):
                    visible = ~(reader.value(space.x, place, {}) < _HIDDEN)
                shares.append(_shares(np.broadcast_to(visible, (rows, columns))))
        except _Unknown:
            return None
        found.append(Density(*(float(np.mean([s[k] for s in shares])) for k in (0, 1))))
        if not reader.assumed:
            break
    return max(found, key=lambda d: d.elements)


def _shares(visible: Array) -> tuple[float, float]:
    rows, columns = (-(-size // BLOCK) for size in visible.shape)
    padded = np.zeros((rows * BLOCK, columns * BLOCK), bool)
    padded[:visible.shape[0], :visible.shape[1]] = visible
    return float(visible.mean()), float(padded.reshape(rows, BLOCK, columns, BLOCK).any(axis=(1, 3)).mean())


class _Reader:
    """Evaluates modifier values. `flag`: what integers and bools are that only a run knows."""

    def __init__(self, lowered: Lowered, flag: int) -> None:
        self.values: dict[int, ir.Value] = dict(lowered.inputs)
        self.flag = flag
        self.assumed = False

    def value(self, inst: Inst, place: Mapping[Var, Array], memo: dict[int, Array]) -> Array:
        if id(inst) not in memo:
            memo[id(inst)] = self._value(inst, place, memo)
        return memo[id(inst)]

    def _value(self, inst: Inst, place: Mapping[Var, Array], memo: dict[int, Array]) -> Array:
        match inst:
            case Score():
                return np.float32(0)  # type: ignore[return-value]
            case Literal():
                return np.asarray(inst.value, inst.dtype)
            case Place():
                return _index(inst.index, place).astype(inst.dtype)
            case Load():
                array = constant_of(self.values[inst.slot])
                if array is None:
                    self.assumed = True
                    return np.asarray(0 if inst.dtype.startswith("float") else self.flag, inst.dtype)
                return np.asarray(array.reshape(-1)[_index(inst.address, place)]).astype(inst.dtype)
            case Apply():
                name = inst.point.key.partition("<")[0]
                operands = [self.value(a, place, memo) for a in inst.operands]
                if name == "Cast":
                    return operands[0].astype(inst.dtype)
                if name in _OPERATIONS:
                    return np.asarray(_OPERATIONS[name](*operands))
        raise _Unknown


def _index(ix: Ix, place: Mapping[Var, Array]) -> Array:
    total: Array = np.asarray(_size(ix.const), np.int64)
    for atom, coef in ix.terms:
        if isinstance(atom, Var):
            value = place[atom]
        elif not isinstance(atom, (Quotient, Remainder)):  # an index that a run computes
            raise _Unknown
        else:
            inner, by = _index(atom.of, place), _size(atom.by)
            value = inner // by if isinstance(atom, Quotient) else inner % by
        total = total + value * _size(coef)
    return total


def _size(dim: Dim) -> int:
    return dim.evaluate(dict.fromkeys(dim.symbols, ASSUMED))


def _vars(inst: Inst) -> set[Var]:
    match inst:
        case Load():
            return inst.address.vars()
        case Place():
            return inst.index.vars()
    return set()
