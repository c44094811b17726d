"""The nodes that compute a product's matrix from constants: transposes, casts, scales, zero points."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.fusion.epilogue import read_outside

VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze"})
_MAX_NODES = 16


def matrix_nodes(product: ir.Node, view: GraphView, free: Callable[[ir.Node], bool]) -> tuple[ir.Node, ...]:
    """The nodes, in order, through which the product alone reads initializers as its matrix; none where it reads one as
    it is, or where the matrix is not constant.

    Exporters write a linear layer as MatMul(x, Transpose(weight)), quantizers as MatMul(x, DequantizeLinear(weight)) or
    MatMul(x, Cast(weight) * scale); what is small was folded before.
    """
    if len(product.inputs) < 2 or product.inputs[1] is None:  # Einsum takes any number of operands
        return ()
    found: set[ir.Node] = set()
    stack = [product.inputs[1]]
    while stack:
        value = stack.pop()
        node = value.producer()
        if node is None:
            if constant_of(value) is None:
                return ()
            continue
        if node in found:
            continue
        if not _computes(node) or not free(node) or len(found) == _MAX_NODES:
            return ()
        found.add(node)
        stack += [v for v in node.inputs if v is not None]
    if any(read_outside(node, {product, *found}, view) for node in found):
        return ()
    return tuple(sorted(found, key=view.order.__getitem__))


def _computes(node: ir.Node) -> bool:
    if len(node.outputs) != 1:
        return False
    return kind_of(node) == "pointwise" or (domain_of(node) == "" and node.op_type in VIEWS)
