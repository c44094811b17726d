"""Models from the ONNX text format, with inferred shapes, as onnx_ir."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir

from tilegraph.ops.lower import lower_region
from tilegraph.ops.prims import Lowered


def proto(graph: str, opset: int = 20) -> onnx.ModelProto:
    opsets = f'"" : {opset}, "com.microsoft" : 1'
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]> g {graph}")


def model(graph: str, opset: int = 20) -> ir.Model:
    """`graph` such as "(float[4,8] x) => (float[4,8] y) { y = Relu(x) }". Shapes of inner values are inferred."""
    inferred: ir.Model = ir.from_proto(onnx.shape_inference.infer_shapes(proto(graph, opset), data_prop=True))
    for k, node in enumerate(inferred.graph):
        node.name = node.name or f"{node.op_type}_{k}"
    return inferred


def lowered(graph: str, opset: int = 20) -> Lowered:
    """The whole graph as one region."""
    made = model(graph, opset)
    return lower_region(list(made.graph), list(made.graph.outputs), {"": opset, "com.microsoft": 1})
