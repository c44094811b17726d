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
_MOST_OTHERS = 8


@dataclass(frozen=True)
class Candidate:
    """A legal composite: its nodes in order, the products among them, and the matrices that it reads packed.

    `clones`: those of its nodes that others read too; copies of them join it. `apart`: why it is not joined with other
    products of its rows, where there are any.
    """

    products: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]
    outputs: tuple[ir.Value, ...]
    lowered: Lowered
    space: GemmSpace
    matrices: tuple[ir.Value, ...]
    clones: frozenset[ir.Node] = frozenset()
    apart: str = ""


def is_product(node: ir.Node) -> bool:
    return (domain_of(node), node.op_type) in PRODUCTS


def find(product: ir.Node, view: GraphView, verdicts: Verdicts[GemmSpace], free: Callable[[ir.Node], bool]) \
        -> Candidate:
    """The candidate with the most nodes; `Decline` with the reason if the product alone cannot be a kernel.

    Nodes between the product and the end are read by nothing else, so the composite is convex, and as results leave it
    only at its end, no set of them can depend on one another in a circle.
    """
    best = _largest((product,), view, verdicts, free)
    assert best is not None
    return best


def find_joined(first: Candidate, view: GraphView, verdicts: Verdicts[GemmSpace], free: Callable[[ir.Node], bool]) \
        -> Candidate:
    """`first` with the products of the same rows that meet it in one result point by point, as a gate and what it lets
    through do; `first` itself where there are none.

    Neither product is stored then, and a group of rows is read once. A matrix that something else reads too would keep
    both from being taken, so such a product joins no other. Of many products of the rows the nearest are tried.
    """
    best, (product,) = first, first.products
    rows = product.inputs[0]
    if rows is None or not alone(first):
        return first
    others = [n for n in view.users(rows) if is_product(n) and n is not product and n.inputs[0] is rows and free(n)]
    others.sort(key=lambda n: abs(view.order[n] - view.order[product]))
    for other in others[:_MOST_OTHERS]:
        found = _largest((*best.products, other), view, verdicts, free)
        if found is not None and alone(found):
            best = found
    return best


def alone(candidate: Candidate) -> bool:
    """Whether nothing else reads its matrices."""
    nodes = frozenset(candidate.nodes)
    return not candidate.clones and not any(m.is_graph_output() or next(readers_outside(m, nodes), None) is not None
                                            for m in candidate.matrices)


def _largest(products: tuple[ir.Node, ...], view: GraphView, verdicts: Verdicts[GemmSpace],
             free: Callable[[ir.Node], bool]) -> Candidate | None:
    """The candidate of the products with the most nodes; None where several do not end in one value, `Decline` if a
    single one cannot be a kernel."""
    def joins(node: ir.Node) -> bool:
        return free(node) and not is_product(node)

    before = tuple(n for p in products for n in (*matrix_nodes(p, view, joins), *integer_rows(p, joins)))

    def examine(nodes: tuple[ir.Node, ...]) -> Candidate:
        """With what is small beside them, or without."""
        if beside := beside_nodes((*before, *nodes), joins):
            try:
                return _examine(products, (*before, *beside, *nodes), view, verdicts)
            except Decline:
                pass
        return _examine(products, (*before, *nodes), view, verdicts)

    best = examine(products) if len(products) == 1 else None
    ends = followers(products, view, partial(_follows, joins), _MAX_NODES)
    for end in ends:
        nodes = between(products, end, ends, view)
        if nodes is None:
            continue
        try:
            best = examine(nodes)
        except Decline:
            continue
    return best


def _examine(products: tuple[ir.Node, ...], members: tuple[ir.Node, ...], view: GraphView,
             verdicts: Verdicts[GemmSpace]) -> Candidate:
    nodes = tuple(sorted(members, key=view.order.__getitem__))
    output = members[-1].outputs[0]
    lowered, space = verdicts.ask(nodes, [output])
    inputs: dict[int, ir.Value] = dict(lowered.inputs)
    packed = [value for slot, value in lowered.inputs if slot in space.constant_slots]
    if any(not v.is_initializer() or v.is_graph_input() or v.const_value is None for v in packed):
        raise Decline("the matrix is not constant")
    own = set(nodes)
    for node in reversed(nodes):
        if node.outputs[0] is not output and read_outside(node, own, view):
            own.remove(node)  # it stays for others, and so does what it reads
    clones = frozenset(nodes) - own
    return Candidate(products, nodes, (output,), lowered, space, tuple(inputs[m.slot] for m in space.matrices), clones)


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
