"""What ONNX Runtime makes part of a product or a convolution of integers.

It joins the DequantizeLinear before such a node, and a QuantizeLinear behind it, to one kernel that is several times as
fast as floats. A region that took one of them would leave the node to floats.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.lower import domain_of

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_BETWEEN = frozenset({"Relu", "Clip"})  # what ONNX Runtime drops before a QuantizeLinear, as rounding saturates

REASON = "ONNX Runtime makes it part of a product of integers"


def parts_of_integers(view: GraphView, ours: Callable[[ir.Node], bool] = lambda node: False) -> set[ir.Node]:
    """The nodes that surround the products and convolutions that ONNX Runtime computes in integers, which are not
    `ours`."""
    found: set[ir.Node] = set()
    for node in view.nodes:
        if domain_of(node) != "" or node.op_type not in _PRODUCTS or ours(node):
            continue
        before = [None if v is None else v.producer() for v in node.inputs]
        if any(n is None or not _is(n, "DequantizeLinear") for n in before[:2]):
            continue
        found.update(n for n in before if n is not None and _is(n, "DequantizeLinear"))
        behind: list[ir.Node] = []
        readers = view.consumers(node)
        while len(readers) == 1 and _is(readers[0], *_BETWEEN) and len(behind) < len(_BETWEEN):
            behind.append(readers[0])
            readers = view.consumers(readers[0])
        if len(readers) == 1 and _is(readers[0], "QuantizeLinear"):
            found.update((*behind, readers[0]))
    return found


def _is(node: ir.Node, *ops: str) -> bool:
    return domain_of(node) == "" and node.op_type in ops
