"""What looks like attention but is none of the cores that were tried: each softmax between two products is listed.

A softmax counts where values flow to it from a product, and its weights, or pieces of them, to another one. The reason
names the first node on the way that no attention kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

import onnx_ir as ir

from tilegraph.cost import estimate
from tilegraph.graph import GraphView
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.find import is_product
from tilegraph.rewrites.attention.respell.edit import whole
from tilegraph.rewrites.attention.respell.skew import Untraceable, read
from tilegraph.spec.dims import Dim

_WAY = 1000  # nodes
_MOVES = frozenset({"Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "Scatter", "Identity",
                    "Dropout", "Trilu", "Pad", "Concat", "Slice", "Split", "Reshape", "Transpose"})


PROJECTION = "{} {} multiplies by a constant: the softmax is one of a projection, not of scores of queries and keys"


MIXED = "{} {} mixes the scores of several heads, which {} {} makes: a kernel computes one head at a time"
_MIXED = 16  # nodes between the two


@dataclass(frozen=True)
class Missed:
    """`product` would be the second one; `reason` says what is in the way."""

    softmax: ir.Node
    product: ir.Node
    reason: str


def missed(view: GraphView, tried: Set[ir.Node]) -> Iterator[Missed]:
    """The softmaxes of `view` that none of the cores holds whose nodes are `tried`."""
    for node in view.nodes:
        if node in tried or not _is_softmax(node):
            continue
        before = _way(node, _producers, lambda n, source: True)
        if before is None:
            continue
        after = _way(node, _users, _keeps_weights)
        if after is not None:
            yield Missed(node, after[-1], _reason(before, after))


def is_projection(product: ir.Node) -> bool:
    """Whether one operand of a product is a constant."""
    return any(v is not None and constant_of(v) is not None for v in product.inputs[:2])


def why_projection(product: ir.Node) -> str:
    """What a softmax behind a product with a constant is: one of scores that the product mixes, as talking heads do, or
    of a projection."""
    made = whole(product.outputs[0])
    stack, reached = [product], set[ir.Node]()
    while stack:
        for maker in _producers(stack.pop()):
            if maker in reached:
                continue
            reached.add(maker)
            if is_product(maker):
                scores = whole(maker.outputs[0])
                if made and scores and len(made) == len(scores) > 2 and made[-2:] == scores[-2:] \
                        and not is_projection(maker):
                    return MIXED.format(product.op_type, product.name, maker.op_type, maker.name)
            elif kind_of(maker) in ("view", "pointwise") and len(reached) < _MIXED:
                stack.append(maker)
    return PROJECTION.format(product.op_type, product.name)


def _is_softmax(node: ir.Node) -> bool:
    if domain_of(node) != "":
        return False
    if node.op_type == "Softmax":
        return True
    readers = {use.node.op_type for use in node.outputs[0].uses()} if node.op_type == "Exp" else set()
    return "ReduceSum" in readers and bool(readers & {"Div", "Mul"})


def _any_product(node: ir.Node) -> bool:
    return is_product(node) or (domain_of(node), node.op_type) == ("", "Gemm")


def _producers(node: ir.Node) -> Iterable[ir.Node]:
    return [p for v in node.inputs if v is not None and (p := v.producer()) is not None]


def _users(node: ir.Node) -> Iterable[ir.Node]:
    return [use.node for v in node.outputs for use in v.uses()]


def _way(start: ir.Node, step: Callable[[ir.Node], Iterable[ir.Node]],
         passes: Callable[[ir.Node, ir.Node], bool]) -> list[ir.Node] | None:
    """The nodes from `start`, which is not among them, to a product, the last: the nearest, of others than projections
    if there are any. None if there is none."""
    reached: dict[ir.Node, ir.Node] = {}
    queue, products = [start], []
    for node in queue:
        for near in step(node):
            if near in reached or near is start:
                continue
            reached[near] = node
            if _any_product(near):
                products.append(near)
            elif len(queue) < _WAY and passes(near, node):
                queue.append(near)
    last = next((p for p in products if not is_projection(p)), products[0] if products else None)
    if last is None:
        return None
    way = [last]
    while reached[way[-1]] is not start:
        way.append(reached[way[-1]])
    return way[::-1]


def _keeps_weights(node: ir.Node, source: ir.Node) -> bool:
    """Whether what `node` makes may still be the weights that come from `source`: moved, or changed one by one."""
    if domain_of(node) != "":
        return False
    if node.op_type in _MOVES or kind_of(node) == "view":
        return True
    given = [_elements(v) for v in node.inputs if v is not None and v.producer() is source]
    made = _elements(node.outputs[0])
    if made is None or None in given:
        return node.op_type in ("Where", "Cast")
    return kind_of(node) == "pointwise" and any(g is not None and made <= g for g in given)


def _unproven(second: ir.Node) -> str:
    """Why element numbers do not make it attention either, where moves alone lie in the way."""
    try:
        read(second)
    except Untraceable as reason:
        return f"; followed element by element: {reason}"
    return ""


def _elements(value: ir.Value) -> int | None:
    shape = whole(value)
    return None if shape is None else estimate(Dim.product(shape))


def _reason(before: list[ir.Node], after: list[ir.Node]) -> str:
    first, second = before[-1], after[-1]
    if is_projection(first):
        return why_projection(first)
    for node in (*before, *after):
        if kind_of(node) is None and not is_product(node):
            return f"{node.op_type} {node.name} between the products is nothing that attention kernels compute" \
                + _unproven(second)
    for node in (*before[:-1], *after[:-1]):
        if node.op_type in ("Concat", "Slice", "Split", "Pad", "Gather"):
            return f"{node.op_type} {node.name} takes scores or weights of {first.name} and {second.name} apart"
    return f"the way from {first.op_type} {first.name} to {second.op_type} {second.name} is too long or too wide"
