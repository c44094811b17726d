"""The nodes that compute a product's matrix from constants: transposes, casts, scales, zero points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.lower.base import constant_of

VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze"})
_MAX_NODES = 16
_SMALL = 1 << 16  # elements: computed again for each row


def matrix_nodes(product: ir.Node, view: GraphView, free: Callable[[ir.Node], bool]) -> tuple[ir.Node, ...]:
    """The nodes through which the product reads initializers as its matrix; none where it reads one as it is, or where
    the matrix is not constant. Others may read what they make.

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
    return tuple(sorted(found, key=view.order.__getitem__))


def has_constant_matrix(product: ir.Node) -> bool:
    """Whether the second operand of a MatMul or Gemm is made from constants alone."""
    stack = [product.inputs[1]] if product.op_type in ("MatMul", "Gemm") and len(product.inputs) > 1 else [None]
    while stack:
        value = stack.pop()
        node = None if value is None else value.producer()
        if value is None or (node is None and constant_of(value) is None):
            return False
        if node is not None and node.op_type != "Constant":
            if not _computes(node):
                return False
            stack += [v for v in node.inputs if v is not None]
    return True


def integer_rows(product: ir.Node, free: Callable[[ir.Node], bool]) -> tuple[ir.Node, ...]:
    """The DequantizeLinear of a product's rows whose matrix is dequantized too: such products are ones of integers,
    here and in ONNX Runtime."""
    if product.op_type not in ("MatMul", "Gemm") or len(product.inputs) < 2:
        return ()
    rows, matrix = (None if v is None else v.producer() for v in product.inputs[:2])
    if matrix is not None and matrix.op_type == "Transpose" and matrix.inputs[0] is not None:
        matrix = matrix.inputs[0].producer()
    both = [n for n in (rows, matrix) if n is not None and domain_of(n) == "" and n.op_type == "DequantizeLinear"]
    return (both[0],) if len(both) == 2 and free(both[0]) else ()


def beside_nodes(nodes: Sequence[ir.Node], free: Callable[[ir.Node], bool]) -> tuple[ir.Node, ...]:
    """Small computations that `nodes` read: of constants and single numbers, such as the product of two scales, or a
    bias that is dequantized."""
    found: dict[ir.Node, None] = {}
    stack = list(nodes)
    while stack:
        for value in stack.pop().inputs:
            node = None if value is None else value.producer()
            if node is None or node in found or node in nodes or not free(node) or not _computes(node):
                continue
            if all(v is None or constant_of(v) is not None or _elements(v) == 1 for v in node.inputs) \
                    and 0 < _elements(node.outputs[0]) <= _SMALL:
                found[node] = None
                stack.append(node)
    return tuple(found)


def _elements(value: ir.Value) -> int:
    """0 where a dim is not known."""
    if value.shape is None:
        return 0
    return math.prod(d if isinstance(d, int) else 0 for d in value.shape)


def _computes(node: ir.Node) -> bool:
    if len(node.outputs) != 1:
        return False
    return kind_of(node) == "pointwise" or (domain_of(node) == "" and node.op_type in VIEWS)
