"""Which share of the score matrix a mask leaves, as far as the compiler can see it.

The modifier is evaluated with all scores 0, on positions and on constants; symbolic extents count `ASSUMED`. What is
made of a run's inputs is computed on inputs that hide nothing: floats are 0, and integers and bools all 1, all 0 or all
as many as there are positions, whichever shows most (`upstream`). With an example's inputs it is what these leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
import onnx_ir as ir

from tilegraph.ops.attention import AttentionSpace, Score
from tilegraph.ops.index import Ix, Quotient, Remainder, Var
from tilegraph.ops.prims import Lowered, Point
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place, insts
from tilegraph.rewrites.attention.upstream import Array, Runs, Unknown, Upstream, deciding
from tilegraph.spec.dims import Dim

BLOCK = 64  # as the kernel's
_HIDDEN = -1000.0
_MOST = 1 << 24  # elements: of larger masks some blocks of rows are looked at
_BATCHES = 16


@dataclass(frozen=True)
class Density:
    """Shares of the score matrix: of elements, and of blocks with a visible element."""

    elements: float
    blocks: float


def _divided(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray(a - np.fmod(a, b)) // b  # towards zero


_OPERATIONS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs, "And": np.logical_and,
    "Or": np.logical_or, "Not": np.logical_not, "Xor": np.logical_xor, "Where": np.where, "Less": np.less,
    "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Equal": np.equal,
    "Tanh": np.tanh, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Min": np.minimum, "Max": np.maximum,
    "IsInf": np.isinf, "IsNaN": np.isnan, "Div": _divided, "quotient": np.divide, "Floor": np.floor,
    "Ceil": np.ceil, "Sign": np.sign, "Round": np.rint, "Pow": np.power,
}


def _special(point: Point, operands: list[Array]) -> Array:
    """Operators whose attributes or absent operands matter; both are in the key."""
    name, _, rest = point.key.partition("<")
    if name == "Mod":
        a, b = operands
        return np.asarray(np.fmod(a, b) if "fmod=1" in rest or np.asarray(a).dtype.kind == "f" else np.mod(a, b))
    if name == "Clip" and "min=" not in rest and "max=" not in rest:
        x, low_is_absent = operands[0], rest.endswith("[0, 2]")
        limits = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
        low = limits.min if low_is_absent or len(operands) < 2 else operands[1]
        high = operands[-1] if low_is_absent or len(operands) > 2 else limits.max
        return np.asarray(np.minimum(np.maximum(x, low), high))
    raise Unknown(f"{name} is not computed here")


def density(lowered: Lowered, space: AttentionSpace, runs: Runs) -> Density | None:
    """The share that is visible, or None where nothing hides keys or nothing is known of what does."""
    kept = {*space.i.extent.symbols, *space.j.extent.symbols}
    single = frozenset(s for v in space.batch for s in v.extent.symbols if s not in kept)
    inputs = decided_by(lowered, space)
    for length in Runs.LENGTHS:  # a mask cut from a table is no longer than the table
        tried = [runs.assumed(flag, single, length) for flag in (Runs.FLAGS if inputs else Runs.FLAGS[:1])]
        found = [one for upstream in tried if (one := _share(space, _Reader(lowered, upstream))) is not None]
        if not any(upstream.short for upstream in tried):
            break
    return max(found, key=lambda d: d.elements, default=None)


def measured(lowered: Lowered, space: AttentionSpace, runs: Runs) -> Density | None:
    """The share that the example's inputs leave; None without any, or where it cannot be known."""
    upstream = runs.example()
    return None if upstream is None else _share(space, _Reader(lowered, upstream))


def decided_by(lowered: Lowered, space: AttentionSpace) -> tuple[str, ...]:
    """The graph's inputs whose values reach a mask: they may hide more in a run than `density` says."""
    values = dict(lowered.inputs)
    return deciding(values[one.slot] for one in insts(space.x) if isinstance(one, Load) and one.slot in values)


def _share(space: AttentionSpace, reader: _Reader) -> Density | None:
    """What `reader` finds, over the batch loops that the mask changes with (the first few of many)."""
    try:
        columns = reader.size(space.j.extent)
        lines = _lines(reader.size(space.i.extent), columns)
        if not lines.size or not columns:
            return None
        used = set().union(*(_vars(inst) for inst in insts(space.x)))
        batch = [v for v in space.batch if v in used]
        shares: list[tuple[float, float]] = []
        for values in islice(product(*(range(reader.size(v.extent)) for v in batch)), _BATCHES):
            place: dict[Var, Array] = dict.fromkeys(space.batch, np.asarray(0))
            place |= {v: np.asarray(k) for v, k in zip(batch, values, strict=True)}
            place[space.i] = lines[:, None]
            place[space.j] = np.arange(columns)[None]
            with np.errstate(all="ignore"):
                x = np.broadcast_to(reader.value(space.x, place, {}), (lines.size, columns))
                # Where a number that hides keys hides all of a row, none of them has less weight than the others. Of
                # inputs that are made up, such ones hide more than needed.
                if np.isnan(x).any() or (x == np.inf).any():
                    raise Unknown("no mask has such numbers")
                peak = np.float32(0) if reader.upstream.sample is None else x.max(axis=1, keepdims=True)
                hidden = (x == -np.inf) | (x - peak < _HIDDEN)
                if reader.upstream.sample is None:
                    hidden = hidden | _idle(x, reader.value(space.x, place, {}, 1.0))
            shares.append(_shares(~hidden))
    except (Unknown, KeyError, IndexError):  # an extent that has no name among the inputs; a mask shorter than scores
        return None
    return Density(*(float(np.mean([s[k] for s in shares])) for k in (0, 1))) if shares else None


def _lines(rows: int, columns: int) -> Array:
    """The rows that are looked at: all, or of a large mask whole blocks at equal distances."""
    blocks = -(-rows // BLOCK)
    most = max(1, _MOST // (BLOCK * max(columns, 1)))
    if blocks <= most:
        return np.arange(rows)
    first = (np.arange(most) * blocks + blocks // 2) // most * BLOCK
    chosen: Array = (first[:, None] + np.arange(BLOCK)).reshape(-1)
    return chosen[chosen < rows]


def _idle(x: Array, other: Array) -> Array:
    """Rows [rows, 1] whose weights no score has a part in, `other` being x of other scores: inputs that give up rows do
    not show more than others do."""
    return np.asarray((np.broadcast_to(other, x.shape) == x).all(axis=1, keepdims=True))


def _shares(visible: Array) -> tuple[float, float]:
    rows, columns = (-(-size // BLOCK) for size in visible.shape)
    padded = np.zeros((rows * BLOCK, columns * BLOCK), bool)
    padded[:visible.shape[0], :visible.shape[1]] = visible
    return float(visible.mean()), float(padded.reshape(rows, BLOCK, columns, BLOCK).any(axis=(1, 3)).mean())


class _Reader:
    """Evaluates modifier values; what lies in memory is asked of `upstream`."""

    def __init__(self, lowered: Lowered, upstream: Upstream) -> None:
        self.values: dict[int, ir.Value] = dict(lowered.inputs)
        self.upstream = upstream

    def size(self, dim: Dim) -> int:
        return dim.evaluate(self.upstream.sizes)

    def value(self, inst: Inst, place: Mapping[Var, Array], memo: dict[int, Array], score: float = 0.0) -> Array:
        """`score`: what all scores are."""
        if id(inst) not in memo:
            memo[id(inst)] = self._value(inst, place, memo, score)
        return memo[id(inst)]

    def _value(self, inst: Inst, place: Mapping[Var, Array], memo: dict[int, Array], score: float) -> Array:
        match inst:
            case Score():
                return np.float32(score)  # type: ignore[return-value]
            case Literal():
                return np.asarray(inst.value, inst.dtype)
            case Place():
                return self._index(inst.index, place).astype(inst.dtype)
            case Load():
                array = self.upstream.array_or_stand_in(self.values[inst.slot])
                if not array.ndim:
                    return array.astype(inst.dtype)
                return np.asarray(array.reshape(-1)[self._index(inst.address, place)]).astype(inst.dtype)
            case Apply():
                name = inst.point.key.partition("<")[0]
                operands = [self.value(a, place, memo, score) for a in inst.operands]
                if name == "Cast":
                    return operands[0].astype(inst.dtype)
                if name in _OPERATIONS:
                    return np.asarray(_OPERATIONS[name](*operands))
                return _special(inst.point, operands)
        raise Unknown("a value of another kind")

    def _index(self, ix: Ix, place: Mapping[Var, Array]) -> Array:
        total: Array = np.asarray(self.size(ix.const), np.int64)
        for atom, coef in ix.terms:
            if isinstance(atom, Var):
                value = place[atom]
            elif not isinstance(atom, (Quotient, Remainder)):  # an index that a run computes
                raise Unknown("an index is computed")
            else:
                inner, by = self._index(atom.of, place), self.size(atom.by)
                value = inner // by if isinstance(atom, Quotient) else inner % by
            total = total + value * self.size(coef)
        return total


def _vars(inst: Inst) -> set[Var]:
    match inst:
        case Load():
            return inst.address.vars()
        case Place():
            return inst.index.vars()
    return set()
