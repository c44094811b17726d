"""Which share of the score matrix a mask leaves, as far as the compiler can see it.

The modifier is evaluated with all scores 0, on positions and on constants; symbolic extents count `ASSUMED`. What only
a run knows counts as visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.ops.attention import AttentionSpace, Score, insts
from tilegraph.ops.index import Ix, Quotient, Var
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Lowered
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place
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
    """Something that only a run knows."""


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
    reader = _Reader(lowered, space)
    shares: list[tuple[float, float]] = []
    try:
        for values in islice(product(*(range(_size(v.extent)) for v in batch)), _BATCHES):
            place: dict[Var, Array] = {v: np.asarray(k) for v, k in zip(batch, values, strict=True)}
            place |= {v: np.asarray(0) for v in space.batch if v not in batch}
            place[space.i] = np.arange(rows)[:, None]
            place[space.j] = np.arange(columns)[None]
            shares.append(_shares(np.broadcast_to(reader.visible(place), (rows, columns))))
    except _Unknown:
        return None
    elements, blocks = (float(np.mean([s[k] for s in shares])) for k in (0, 1))
    return Density(elements, blocks)


def _shares(visible: Array) -> tuple[float, float]:
    rows, columns = (-(-size // BLOCK) for size in visible.shape)
    padded = np.zeros((rows * BLOCK, columns * BLOCK), bool)
    padded[:visible.shape[0], :visible.shape[1]] = visible
    return float(visible.mean()), float(padded.reshape(rows, BLOCK, columns, BLOCK).any(axis=(1, 3)).mean())


class _Reader:
    def __init__(self, lowered: Lowered, space: AttentionSpace) -> None:
        self.space = space
        self.values: dict[int, ir.Value] = dict(lowered.inputs)

    def visible(self, place: Mapping[Var, Array]) -> Array:
        """Where the modified score of 0 is not far below 0; unknown parts of a sum or of a choice count as visible."""
        found = self._visible(self.space.x, place)
        if found is None:
            raise _Unknown
        return found

    def _visible(self, inst: Inst, place: Mapping[Var, Array]) -> Array | None:
        """None: nothing is known."""
        try:
            with np.errstate(all="ignore"):
                value = self.value(inst, place, {})
            return np.asarray(~(value < _HIDDEN))
        except _Unknown:
            pass
        if isinstance(inst, Apply):
            name = inst.point.key.partition("<")[0]
            if name == "Add":
                parts = [p for p in (self._visible(a, place) for a in inst.operands) if p is not None]
                return None if not parts else parts[0] if len(parts) == 1 else parts[0] & parts[1]
            if name == "Where":
                a, b = (self._visible(one, place) for one in inst.operands[1:])
                try:
                    condition = self.value(inst.operands[0], place, {})
                except _Unknown:
                    return None
                return np.where(condition, True if a is None else a, True if b is None else b)
        return None

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
                if array is None or not all(_is_known(c) for _, c in inst.address.terms):
                    raise _Unknown
                return np.asarray(array.reshape(-1)[_index(inst.address, place)]).astype(inst.dtype)
            case Apply():
                name = inst.point.key.partition("<")[0]
                operands = [self.value(a, place, memo) for a in inst.operands]
                if name == "Cast":
                    return operands[0].astype(inst.dtype)
                if name in _OPERATIONS:
                    return np.asarray(_OPERATIONS[name](*operands))
        raise _Unknown


def _is_known(dim: Dim) -> bool:
    return dim.is_static


def _index(ix: Ix, place: Mapping[Var, Array]) -> Array:
    total: Array = np.asarray(_size(ix.const), np.int64)
    for atom, coef in ix.terms:
        if isinstance(atom, Var):
            value = place[atom]
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
