"""Where a graph holds attention: a matrix product whose weights come from a softmax of another matrix product.

Nothing is matched by pattern. What lies between the two products is any set of pointwise, view-like and reducing
nodes; whether it is a softmax of modified scores is for `tilegraph.ops.attention` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.attention import CONTRACTIONS
from tilegraph.ops.lower import domain_of, kind_of

_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_CONE = 160  # nodes: a longer way back from the weights is not followed


@dataclass(frozen=True)
class Core:
    """The nodes that must be in the composite: the products, and everything on a path from one to the other.

    `weights`: which input of `second` the softmax feeds. `guard`: what decides from the mask alone that a row has no
    key, as ONNX's Attention does; several attentions may share it. `others`: cores with another first product, for
    where this one makes no attention.
    """

    first: ir.Node
    second: ir.Node
    weights: int
    between: frozenset[ir.Node]
    guard: frozenset[ir.Node] = frozenset()
    others: tuple[Core, ...] = ()

    @property
    def nodes(self) -> frozenset[ir.Node]:
        return self.between | {self.first, self.second}


def is_product(node: ir.Node) -> bool:
    return (domain_of(node), node.op_type) in CONTRACTIONS and len(node.inputs) == 2


def has_softmax(nodes: Set[ir.Node]) -> bool:
    """Whether the nodes may hold a softmax: the operator, or an exponential and a sum."""
    ops = {node.op_type for node in nodes}
    return bool(ops & _SOFTMAX) or ("Exp" in ops and bool(ops & {"ReduceSum", "ReduceLogSumExp"}))


def cores(view: GraphView, free: Callable[[ir.Node], bool]) -> Iterator[Core]:
    """Every place that looks like attention, in order."""
    for node in view.nodes:
        if not is_product(node) or not free(node):
            continue
        for index, value in enumerate(node.inputs):
            found = None if value is None else _behind(node, index, value, free)
            if found is not None:
                yield found
                break


def _behind(second: ir.Node, index: int, value: ir.Value, free: Callable[[ir.Node], bool]) -> Core | None:
    """The attention whose weights `value` is: of the products behind it, the nearest with a softmax on the way."""
    cone: set[ir.Node] = set()
    products: list[ir.Node] = []
    stack = [value.producer()]
    while stack:
        node = stack.pop()
        if node is None or node in cone or node in products or not free(node):
            continue
        if is_product(node):
            products.append(node)
        elif kind_of(node) is not None and len(cone) < _CONE:
            cone.add(node)
            stack.extend(v.producer() for v in node.inputs if v is not None)
    if not has_softmax(cone):  # nor then what lies between: long chains of residuals end here
        return None
    found = [Core(first, second, index, between, frozenset(_guard(between)))
             for first in products if has_softmax(between := frozenset(_between(first, cone)))]
    # The nearest first: others make a bias, as scores of relative positions that are padded and shifted.
    found.sort(key=lambda core: len(core.between))
    return replace(found[0], others=tuple(found[1:])) if found else None


def _guard(between: frozenset[ir.Node]) -> Iterator[ir.Node]:
    """Comparisons of a greatest value that choose between weights and 0, and their reductions."""
    for node in between:
        test = node.inputs[0].producer() if node.op_type == "Where" and node.inputs[0] is not None else None
        if test is None or test.op_type != "Equal" or test in between:
            continue
        peak = next((p for v in test.inputs if v is not None and (p := v.producer()) is not None
                     and p.op_type == "ReduceMax"), None)
        if peak is not None:
            yield from (test, peak)


def _between(first: ir.Node, cone: set[ir.Node]) -> set[ir.Node]:
    reached: set[ir.Node] = set()
    stack = [first]
    while stack:
        node = stack.pop()
        for output in node.outputs:
            for use in output.uses():
                if use.node in cone and use.node not in reached:
                    reached.add(use.node)
                    stack.append(use.node)
    return reached
