"""Where the rows of a product's operand come from: a value that holds each of them once, if there is one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.attention.respell.skew.moves import Tracer, moves
from tilegraph.rewrites.attention.respell.skew.places import extents_of
from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable
from tilegraph.rewrites.attention.respell.skew.traced import Array, Traced, transposed


@dataclass(frozen=True)
class Base:
    """Row p of an operand, counted through its batch axes without lanes, is row `rows[p]` of `value` in each lane.

    value is laid out as [lanes, count, depth], or with `between` as [count, lanes, depth]; `perm`, if any, leads there.
    rows: int64, flat.
    """

    value: ir.Value
    rows: Array
    count: int
    depth: int
    perm: tuple[int, ...] | None = None
    between: bool = False

    @property
    def key(self) -> Hashable:
        return self.value, self.rows.tobytes(), self.count, self.depth, self.perm, self.between


def base_of(operand: ir.Value, axes: tuple[int, ...], lanes: int) -> Base:
    """`axes`: batch.., row, depth of the operand, the first batch axis holding `lanes` lanes if those are more than 1.

    Raises `Untraceable` only where the operand's shape is unknown.
    """
    shape = extents_of(operand)
    for value in _upwards(operand):
        if prod(extents_of(value)) >= prod(shape):
            continue
        try:
            starts = _starts(transposed(Tracer(value).trace(operand), axes), lanes)
        except Untraceable:
            continue
        return _base(value, *starts, lanes, shape[axes[-1]]) or _itself(operand, axes, lanes, starts[0])
    return _itself(operand, axes, lanes, None)


def _itself(operand: ir.Value, axes: tuple[int, ...], lanes: int, starts: Array | None) -> Base:
    """The operand, where equal rows, those of equal `starts`, count as the first of them."""
    shape = extents_of(operand)
    rows = np.arange(prod(shape[k] for k in axes[:-1]) // lanes)
    if starts is not None:
        _, first, same = np.unique(starts, return_index=True, return_inverse=True)
        rows = first[same.reshape(-1)]
    perm = None if axes == tuple(range(len(axes))) else axes
    return Base(operand, rows, rows.size, shape[axes[-1]], perm)


def _upwards(value: ir.Value) -> Iterator[ir.Value]:
    """What `value` is made from by moves, by way of first operands."""
    node = value.producer()
    while node is not None and moves(node) and node.inputs and node.inputs[0] is not None:
        yield node.inputs[0]
        node = node.inputs[0].producer()


def _starts(operand: Traced, lanes: int) -> tuple[Array, int]:
    """The element that each row of a lane begins with, flat, and how it grows through the lanes."""
    ids = operand.full_ids()
    start = ids[..., :1]
    if (ids < 0).any() or (ids != start + np.arange(operand.shape[-1])).any() \
            or set(operand.steps) != ({0} if lanes > 1 else set()):
        raise Untraceable("rows are not whole")
    return start.reshape(-1), operand.steps.get(0, 0)


def _base(value: ir.Value, starts: Array, step: int, lanes: int, depth: int) -> Base | None:
    """None where rows of one lane lie among those of others in a way of their own."""
    size = prod(extents_of(value))
    count = size // (lanes * depth)
    if count * lanes * depth != size:
        return None
    if (lanes == 1 or step == count * depth) and not (starts % depth).any() and starts.max() < count * depth:
        return Base(value, starts // depth, count, depth)
    if step == depth and not (starts % (lanes * depth)).any() and starts.max() < size:
        return Base(value, starts // (lanes * depth), count, depth, between=True)
    return None
