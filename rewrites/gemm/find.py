"""The largest composite of a matrix product: what computes its matrix from constants, and the largest epilogue, nodes
that follow it point by point and end in one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.gemm import PRODUCTS, GemmSpace
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.rewrites.fusion.epilogue import between, followers, read_outside
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.gemm.stored import VIEWS, beside_nodes, integer_rows, matrix_nodes

_MAX_NODES = 40


@dataclass(frozen=True)
class Candidate:
    """A legal composite: its nodes in order, the product among them, and the matrix that it reads packed.

    `clones`: those of its nodes that others read too; copies of them join it.
    """

    product: ir.Node
    nodes: tuple[ir.Node, ...]
    output: ir.Value
    lowered: Lowered
    space: GemmSpace
    matrix: ir.Value
    clones: frozenset[ir.Node] = frozenset()


def is_product(node: ir.Node) -> bool:
    return (domain_of(node), node.op_type) in PRODUCTS


def find(product: ir.Node, view: GraphView, verdicts: Verdicts[GemmSpace], free: Callable[[ir.Node], bool]) \
        -> Candidate:
    """The candidate with the most nodes; `Decline` with the reason if the product alone cannot be a kernel.

    Nodes between the product and the end are read by nothing else, so the composite is convex, and as results leave it
    only at its end, no set of them can depend on one another in a circle.
    """
    before = (*matrix_nodes(product, view, free), *integer_rows(product, free))

    def examine(nodes: tuple[ir.Node, ...]) -> Candidate:
        """With what is small beside them, or without."""
        if beside := beside_nodes((*before, *nodes), free):
            try:
                return _examine(product, (*before, *beside, *nodes), view, verdicts)
            except Decline:
                pass
        return _examine(product, (*before, *nodes), view, verdicts)

    best = examine((product,))
    ends = followers(product, view, partial(_follows, free), _MAX_NODES)
    for count in range(1, len(ends) + 1):
        nodes = between(product, ends[count - 1], ends, view)
        if nodes is None:
            continue
        try:
            best = examine(nodes)
        except Decline:
            continue
    return best


def _examine(product: ir.Node, members: tuple[ir.Node, ...], view: GraphView,
             verdicts: Verdicts[GemmSpace]) -> Candidate:
    nodes = tuple(sorted(members, key=view.order.__getitem__))
    output = members[-1].outputs[0]
    lowered, space = verdicts.ask(nodes, [output])
    matrix: ir.Value = dict(lowered.inputs)[space.right_slot]
    packed = [value for slot, value in lowered.inputs if slot in space.constant_slots]
    if any(not v.is_initializer() or v.is_graph_input() or v.const_value is None for v in packed):
        raise Decline("the matrix is not constant")
    clones = frozenset(n for n in nodes if n.outputs[0] is not output and read_outside(n, set(nodes), view))
    return Candidate(product, nodes, output, lowered, space, matrix, clones)


def _follows(free: Callable[[ir.Node], bool], node: ir.Node) -> bool:
    """Whether a pointwise node or view may follow the product.

    What is computed of a result that was rounded to 8 bits is left to regions: they read a quarter of the bytes, and
    several vectors at a time.
    """
    if domain_of(node) == "" and node.op_type == "DequantizeLinear":
        return False
    return free(node) and (kind_of(node) == "pointwise" or (domain_of(node) == "" and node.op_type in VIEWS))


def readers_outside(matrix: ir.Value, taken: Set[ir.Node]) -> Iterator[ir.Node]:
    """Who reads the matrix beside `taken`, bodies of control flow included."""
    for use in matrix.uses():
        if use.node not in taken:
            yield use.node
