"""Constant nodes become initializers, so that every constant is found in one place.

Left alone: sparse constants, attributes that are parameters of a function, and constants that are graph outputs as
they stand (a subgraph may not give an initializer back).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_op, remove


class LiftConstants(Pass):
    name = "lift-constants"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for node in list(graph):
                if is_op(node, "Constant"):
                    modified |= _lift(graph, node)
        return PassResult(modified)


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    output = node.outputs[0]
    tensor = _tensor_of(node)
    if tensor is None or output.is_graph_output() or not output.name:
        return False
    value = ir.Value(name=output.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype),
                     const_value=tensor)
    for user, index in list(output.uses()):
        user.replace_input_with(index, value)
    remove(node)
    graph.register_initializer(value)
    return True


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    if len(node.attributes) != 1:
        return None
    (attribute,) = node.attributes.values()
    if attribute.is_ref():
        return None
    if attribute.name == "value":
        return attribute.as_tensor()
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if attribute.name in kinds:
        return ir.tensor(np.array(attribute.value, dtype=kinds[attribute.name]))
    if attribute.name in ("value_string", "value_strings"):
        given = attribute.value if attribute.name == "value_strings" else [attribute.value]
        raw = [s.encode() if isinstance(s, str) else s for s in given]
        return ir.StringTensor(raw, shape=ir.Shape([len(raw)] if attribute.name == "value_strings" else []))
    return None
