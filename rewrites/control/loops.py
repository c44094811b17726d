"""What is known of a Loop: how often it runs, and which of its steps a number of its body points to.

ONNX runs iteration i of a Loop while i < M and the condition holds: before the first iteration the one given, after
each the one that the body gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.arith import is_nonnegative
from tilegraph.rewrites.normalise.infer.info import shape_of
from tilegraph.rewrites.normalise.shapes import symbolic_contents
from tilegraph.spec.dims import Dim

_ONE = Dim.of(1)


@dataclass(frozen=True)
class Position:
    """sign * i + offset in iteration i. `sign` is 1 or -1."""

    sign: int
    offset: Dim

    def moved(self, by: Dim) -> Position:
        return Position(self.sign, self.offset + by)


def body_of(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


def trips(loop: ir.Node) -> Dim | str:
    """How often the Loop runs, or why that is not known. A negative number stands for 0."""
    limit = number(loop.inputs[0] if loop.inputs else None)
    if limit is None:
        return "its trip count is not an expression of the extents"
    if loop.inputs[0] is None or loop.inputs[0].shape is None or len(loop.inputs[0].shape):
        return "its trip count is no scalar"  # ONNX Runtime gives the iteration number the shape of it
    first = loop.inputs[1] if len(loop.inputs) > 1 else None
    if first is not None and not _holds(first, loop, limit, before=True):
        return "its condition may end it before the first step"
    if not _holds(body_of(loop).outputs[0], loop, limit, before=False):
        return "its condition may end it early"
    return limit


def position(value: ir.Value | None, loop: ir.Node) -> Position | None:
    """Which number `value`, of one element, is in iteration i. A counter that is carried along counts, too."""
    body = body_of(loop)
    if value is None:
        return None
    if value is body.inputs[0]:
        return Position(1, Dim.of(0))
    if value in body.inputs[2:]:
        return _counter(value, loop)
    node = value.producer()
    if node is None or node.graph is not body or node.domain != "" or elements(value) != _ONE:
        return None
    if is_op(node, "Identity", "Unsqueeze", "Squeeze", "Reshape") or (
            is_op(node, "Cast") and value.dtype in (ir.DataType.INT64, ir.DataType.INT32)):
        return position(node.inputs[0], loop)
    if not is_op(node, "Add", "Sub"):
        return None
    one, two = (number(v) for v in node.inputs)
    at = position(node.inputs[0 if one is None else 1], loop) if (one is None) != (two is None) else None
    if at is None:
        return None
    if one is not None:
        return at.moved(one) if node.op_type == "Add" else Position(-at.sign, one - at.offset)
    assert two is not None
    return at.moved(two if node.op_type == "Add" else -two)


def number(value: ir.Value | None) -> Dim | None:
    """The one element of `value` as an expression of the extents."""
    contents = None if value is None else symbolic_contents(value)
    return contents[0] if contents is not None and len(contents) == 1 else None


def elements(value: ir.Value) -> Dim | None:
    """How many elements `value` has."""
    shape = shape_of(value.shape)
    if shape is None:
        return None
    known = [d for d in shape if d is not None]
    return Dim.product(known) if len(known) == len(shape) else None


def _counter(value: ir.Value, loop: ir.Node) -> Position | None:
    """A carried number that grows by one in each step."""
    body = body_of(loop)
    index = list(body.inputs).index(value)
    start, step = number(loop.inputs[index]), body.outputs[index - 1].producer()
    if start is None or step is None or step.graph is not body or not is_op(step, "Add"):
        return None
    others = [v for v in step.inputs if v is not value]
    return Position(1, start) if len(others) == 1 and number(others[0]) == _ONE else None


def _holds(value: ir.Value, loop: ir.Node, limit: Dim, *, before: bool) -> bool:
    """Whether the condition `value` is true as long as the trip count `limit` lets the Loop go on.

    `before`: the condition that is given to the Loop; otherwise the one that the body gives.
    """
    truth = number(value)
    if truth is not None:
        return truth == _ONE
    if not before and value is body_of(loop).inputs[1]:
        return True
    node = value.producer()
    if node is None:
        return False
    if is_op(node, "Identity", "And"):
        return all(v is not None and _holds(v, loop, limit, before=before) for v in node.inputs)
    if not is_op(node, "Less"):
        return False
    bound = number(node.inputs[1])
    if before:
        # The first step runs if limit >= 1: then start < bound follows from start + limit <= bound.
        start = number(node.inputs[0])
        return bound is not None and start is not None and is_nonnegative(bound - start - limit)
    at = position(node.inputs[0], loop)
    if bound is None or at is None or at.sign != 1:
        return False
    # Asked after iterations 0 to limit - 2, of which the last counts most.
    return is_nonnegative(bound - at.offset - limit + 1)
