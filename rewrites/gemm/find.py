"""The largest composite of a matrix product: what computes its matrix from constants, and the largest epilogue, nodes
that follow it point by point and end in one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.gemm import PRODUCTS, GemmSpace, lower_gemm, plan_gemm
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.rewrites.fusion.epilogue import between, followers
from tilegraph.rewrites.gemm.stored import VIEWS, matrix_nodes

_MAX_NODES = 40


@dataclass(frozen=True)
class Candidate:
    """A legal composite: its nodes in order, the product among them, and the matrix that it reads packed."""

    product: ir.Node
    nodes: tuple[ir.Node, ...]
    output: ir.Value
    lowered: Lowered
    space: GemmSpace
    matrix: ir.Value


def is_product(node: ir.Node) -> bool:
    return (domain_of(node), node.op_type) in PRODUCTS


def find(product: ir.Node, view: GraphView, opsets: Mapping[str, int], free: Callable[[ir.Node], bool]) -> Candidate:
    """The candidate with the most nodes; `Decline` with the reason if the product alone cannot be a kernel.

    Nodes between the product and the end are read by nothing else, so the composite is convex, and as results leave it
    only at its end, no set of them can depend on one another in a circle.
    """
    matrix = matrix_nodes(product, view, free)
    best = _examine(product, (*matrix, product), opsets)
    ends = followers(product, view, partial(_follows, free), _MAX_NODES)
    for count in range(1, len(ends) + 1):
        nodes = between(product, ends[count - 1], ends, view)
        if nodes is None:
            continue
        try:
            best = _examine(product, (*matrix, *nodes), opsets)
        except Decline:
            continue
    return best


def _examine(product: ir.Node, nodes: tuple[ir.Node, ...], opsets: Mapping[str, int]) -> Candidate:
    output = nodes[-1].outputs[0]
    lowered = lower_gemm(nodes, [output], opsets)
    space = plan_gemm(lowered)
    matrix: ir.Value = dict(lowered.inputs)[space.right_slot]
    packed = [value for slot, value in lowered.inputs if slot in space.constant_slots]
    if any(not v.is_initializer() or v.is_graph_input() or v.const_value is None for v in packed):
        raise Decline("the matrix is not constant")
    return Candidate(product, nodes, output, lowered, space, matrix)


def _follows(free: Callable[[ir.Node], bool], node: ir.Node) -> bool:
    """Whether a pointwise node or view may follow the product."""
    return free(node) and (kind_of(node) == "pointwise" or (domain_of(node) == "" and node.op_type in VIEWS))


def readers_outside(matrix: ir.Value, taken: Set[ir.Node]) -> Iterator[ir.Node]:
    """Who reads the matrix beside `taken`, bodies of control flow included."""
    for use in matrix.uses():
        if use.node not in taken:
            yield use.node
