"""Products in a lower precision on request: Casts of both operands, which the product's kernel does itself.

So the body of the composite says in standard ONNX what is computed: operands rounded to bfloat16, products summed in
float32. Any ONNX Runtime that runs the body makes the error that the kernel makes.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.rewrites.gemm.find import Candidate

_DTYPES = {"bf16": ir.DataType.BFLOAT16}
PRECISIONS = ("float32", *_DTYPES)


def rounded_nodes(candidate: Candidate, precision: str) -> tuple[ir.Node, ...]:
    """The candidate's nodes with Casts before the product, which are put into its graph; as they are for float32
    and for matrices that the kernel computes from integers."""
    if precision not in _DTYPES or candidate.space.matrix is not None \
            or candidate.space.quantized is not None:
        return candidate.nodes
    nodes = candidate.nodes
    for product in candidate.products:
        at = nodes.index(product)
        nodes = (*nodes[:at], *_rounded(product, _DTYPES[precision]), *nodes[at:])
    return nodes


def _rounded(product: ir.Node, dtype: ir.DataType) -> list[ir.Node]:
    """Casts of both operands of `product` to `dtype` and back, which it now reads."""
    casts: list[ir.Node] = []
    for place in (0, 1):
        value = product.inputs[place]
        assert value is not None
        for to in (dtype, ir.DataType.FLOAT):
            node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(to))], name=f"{product.name}_cast{len(casts)}")
            made = node.outputs[0]
            made.name, made.shape, made.type = f"{node.name}_out", value.shape, ir.TensorType(to)
            casts.append(node)
            value = made
        product.replace_input_with(place, value)
    assert product.graph is not None
    product.graph.insert_before(product, casts)
    return casts
