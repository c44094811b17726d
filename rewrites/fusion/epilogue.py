"""What follows an anchor node and may be computed before its result is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set

import onnx_ir as ir

from tilegraph.graph import GraphView


def followers(anchors: Collection[ir.Node], view: GraphView, accepts: Callable[[ir.Node], bool], most: int) \
        -> list[ir.Node]:
    """Accepted nodes of one output that `anchors` reach through such nodes alone, in order; about `most` of them."""
    found: set[ir.Node] = set()
    stack = list(anchors)
    while stack and len(found) < most:
        for node in view.consumers(stack.pop()):
            if node not in found and len(node.outputs) == 1 and accepts(node):
                found.add(node)
                stack.append(node)
    return sorted(found, key=view.order.__getitem__)


def between(anchors: Collection[ir.Node], end: ir.Node, following: Sequence[ir.Node], view: GraphView) \
        -> tuple[ir.Node, ...] | None:
    """The nodes on the ways from `anchors` to `end`, one of `following`; None if one of the anchors does not lead
    there, or another node reads what they make."""
    allowed = {*anchors, *following}
    inside: set[ir.Node] = {end}
    stack = [end]
    while stack:
        for node in view.producers(stack.pop()):
            if node in allowed and node not in inside:
                inside.add(node)
                stack.append(node)
    if not inside.issuperset(anchors) or any(read_outside(node, inside, view) for node in inside if node is not end):
        return None
    return tuple(sorted(inside, key=view.order.__getitem__))


def read_outside(node: ir.Node, inside: Set[ir.Node], view: GraphView) -> bool:
    """Whether something outside of `inside`, a graph output included, reads what `node` makes."""
    return any(v in view.outputs or any(user not in inside for user in view.users(v)) for v in node.outputs)
