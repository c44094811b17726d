"""Where the rows of a product's operand come from: a value that holds each of them once, if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.attention.respell.skew.moves import Tracer, moves
from tilegraph.rewrites.attention.respell.skew.places import extents_of
from tilegraph.rewrites.attention.respell.skew.traced import Array, Traced, Untraceable, transposed


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


def base_of(operand: ir.Value, axes: tuple[int, ...], lanes: int) -> Base:
    """`axes`: batch.., row, depth of the operand, the first batch axis holding `lanes` lanes if those are more than 1.

    Raises `Untraceable` only where the operand's shape is unknown.
    """
    shape = extents_of(operand)
    for value in _upwards(operand):
        if prod(extents_of(value)) >= prod(shape):
            continue
        try:
            return _base(value, transposed(Tracer(value).trace(operand), axes), lanes)
        except Untraceable:
            continue
    count = prod(shape[k] for k in axes[:-1]) // lanes
    perm = None if axes == tuple(range(len(axes))) else axes
    return Base(operand, np.arange(count), count, shape[axes[-1]], perm)


def _upwards(value: ir.Value) -> Iterator[ir.Value]:
    """What `value` is made from by moves, by way of first operands."""
    node = value.producer()
    while node is not None and moves(node) and node.inputs and node.inputs[0] is not None:
        yield node.inputs[0]
        node = node.inputs[0].producer()


def _base(value: ir.Value, operand: Traced, lanes: int) -> Base:
    ids, depth = operand.full_ids(), operand.shape[-1]
    start = ids[..., :1]
    if (ids < 0).any() or (ids != start + np.arange(depth)).any() \
            or set(operand.steps) != ({0} if lanes > 1 else set()):
        raise Untraceable("rows are not whole")
    size, step = prod(extents_of(value)), operand.steps.get(0, 0)
    flat = start.reshape(-1)
    count = size // (lanes * depth)
    if count * lanes * depth != size:
        raise Untraceable("rows do not fill the value")
    if (lanes == 1 or step == count * depth) and not (flat % depth).any() and flat.max() < count * depth:
        return Base(value, flat // depth, count, depth)
    if step == depth and not (flat % (lanes * depth)).any():
        return Base(value, flat // (lanes * depth), count, depth, between=True)
    raise Untraceable("rows of one lane lie among those of others")
