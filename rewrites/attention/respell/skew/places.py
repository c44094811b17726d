"""Tables of places, as Gather and ScatterND read them, along lanes without writing them out.

Exporters compute such tables from Range, Add, Expand and Concat. At the lengths that matter they are hundreds of
megabytes, so they are not folded; of a lane, the first entry and the growth are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.respell.edit import whole
from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable, size_of
from tilegraph.rewrites.attention.respell.skew.traced import MOST, groups

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Places:
    """Integers of `shape`: at p, `first[p]` with 0 for lanes, plus `growth[k][p] * p[k]` for each lane k.

    first, growth[k]: int64, of a shape that is broadcast to `shape` with lanes of 1.
    """

    shape: tuple[int, ...]
    first: Array
    growth: Mapping[int, Array]

    @property
    def plain(self) -> tuple[int, ...]:
        return tuple(1 if k in self.growth else d for k, d in enumerate(self.shape))


def extents_of(value: ir.Value) -> tuple[int, ...]:
    shape = whole(value)
    if shape is None:
        raise Untraceable(f"only a run knows the shape of {value.name}")
    return tuple(size_of(d) for d in shape)


def places(value: ir.Value, lanes: frozenset[int] = frozenset()) -> Places:
    """What `value` holds, with `lanes` for those of its axes; `Untraceable` where it is not known or not even there."""
    array = constant_of(value)
    if array is not None:
        return _cut(np.asarray(array), lanes)
    node = value.producer()
    shape = extents_of(value)
    if prod(1 if k in lanes else d for k, d in enumerate(shape)) > MOST:
        raise Untraceable(f"the table {value.name} is too large")
    if node is None or node.domain != "":
        raise Untraceable(f"only a run knows the places {value.name}")
    match node.op_type:
        case "Range" | "NonZero" | "Transpose":
            return _counted(node, shape, lanes)
        case "Identity" | "Cast":
            return places(_given(node, 0), lanes)
        case "Expand":
            return _expanded(_given(node, 0), shape, lanes)
        case "Unsqueeze" | "Reshape" | "Squeeze":
            return _reshaped(_given(node, 0), shape, lanes)
        case "Concat":
            return _joined(node, shape, lanes)
        case "Add" | "Sub" | "Mul":
            return _combined(node, shape, lanes)
    raise Untraceable(f"the places {value.name} come from {node.op_type}, which is not followed")


def _counted(node: ir.Node, shape: tuple[int, ...], lanes: frozenset[int]) -> Places:
    """0, 1, 2, ..: Range, or the places of what is 0 nowhere, transposed perhaps."""
    source = _given(node, 0)
    if node.op_type == "Transpose":
        inside = source.producer()
        if inside is None or inside.op_type != "NonZero" or 1 not in shape or len(shape) != 2:
            raise Untraceable("a table of places is transposed")
        return _reshaped(source, shape, lanes)
    if node.op_type == "Range":
        start, step = (constant_of(_given(node, k)) for k in (0, 2))
        even = start is not None and step is not None and int(start) == 0 and int(step) == 1
    else:
        made = source.producer()
        fill = None if made is None or made.op_type != "ConstantOfShape" else made.attributes.get("value")
        even = fill is not None and bool(fill.as_tensor().numpy().all()) and len(extents_of(source)) == 1
    if not even:
        raise Untraceable(f"{node.op_type} {node.name} does not count from 0 by 1")
    axis, ones = len(shape) - 1, (1,) * len(shape)
    first = np.zeros(ones, np.int64) if axis in lanes else np.arange(shape[axis]).reshape(shape)
    return Places(shape, first, {k: np.full(ones, int(k == axis), np.int64) for k in lanes})


def _given(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise Untraceable(f"{node.op_type} {node.name} lacks an input")
    return value


def _cut(array: Array, lanes: frozenset[int]) -> Places:
    if array.dtype.kind not in "iu":
        raise Untraceable("places that are no integers")
    table = array.astype(np.int64)
    first = _entry(table, lanes, None)
    growth = {axis: _entry(table, lanes, axis) - first for axis in sorted(lanes)}
    along = [g * np.arange(table.shape[k]).reshape([-1 if m == k else 1 for m in range(table.ndim)])
             for k, g in growth.items()]
    if not (sum(along, first) == table).all():
        raise Untraceable("places do not grow evenly through batch or heads")
    return Places(table.shape, first, growth)


def _entry(table: Array, lanes: frozenset[int], second: int | None) -> Array:
    """The first entry of each lane, of the lane `second` the second one (the first, if it has only one)."""
    for axis in lanes:
        table = table.take([min(1, table.shape[axis] - 1) if axis == second else 0], axis)
    return table


def _expanded(value: ir.Value, shape: tuple[int, ...], lanes: frozenset[int]) -> Places:
    have = extents_of(value)
    more = len(shape) - len(have)
    kept = frozenset(k - more for k in lanes if k >= more and have[k - more] == shape[k])
    source = places(value, kept)
    ones = (1,) * more
    growth = {k + more: g.reshape(ones + g.shape) for k, g in source.growth.items()}
    first = source.first.reshape(ones + source.first.shape)
    growth |= {k: np.zeros((1,) * len(shape), np.int64) for k in lanes if k not in growth}
    return Places(shape, first, growth)


def _reshaped(value: ir.Value, shape: tuple[int, ...], lanes: frozenset[int]) -> Places:
    have = extents_of(value)
    if not prod(shape):
        raise Untraceable("an empty table of places")
    moved: dict[int, int] = {}
    for before, after in groups(have, shape):
        for lane in lanes & set(after):
            match = [k for k in before if have[k] == shape[lane]]
            if not match or prod(have[k] for k in before) != shape[lane]:
                raise Untraceable("a table of places is reshaped across batch or heads")
            moved[match[0]] = lane
    source = places(value, frozenset(moved))
    plain = tuple(1 if k in lanes else d for k, d in enumerate(shape))

    def laid(table: Array) -> Array:
        return table.reshape((1,) * len(plain)) if table.size == 1 else \
            np.broadcast_to(table, source.plain).reshape(plain)

    return Places(shape, laid(source.first), {moved[k]: laid(g) for k, g in source.growth.items()})


def _joined(node: ir.Node, shape: tuple[int, ...], lanes: frozenset[int]) -> Places:
    axis = node.attributes["axis"].as_int() % len(shape)
    if axis in lanes:
        raise Untraceable("a table of places is put together along batch or heads")
    parts = [places(_given(node, k), lanes) for k in range(len(node.inputs))]
    return Places(shape, np.concatenate([np.broadcast_to(p.first, p.plain) for p in parts], axis),
                  {k: np.concatenate([np.broadcast_to(p.growth[k], p.plain) for p in parts], axis) for k in lanes})


def _combined(node: ir.Node, shape: tuple[int, ...], lanes: frozenset[int]) -> Places:
    a, b = (_expanded(_given(node, k), shape, lanes) for k in (0, 1))
    if node.op_type == "Mul":
        if any(g.any() for g in b.growth.values()):
            a, b = b, a
        if any(g.any() for g in b.growth.values()):
            raise Untraceable("places grow with a square")
        return Places(shape, a.first * b.first, {k: g * b.first for k, g in a.growth.items()})
    sign = 1 if node.op_type == "Add" else -1
    return Places(shape, a.first + sign * b.first, {k: g + sign * b.growth[k] for k, g in a.growth.items()})
