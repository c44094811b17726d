"""An extent that is read off an intermediate value is read off a graph input that has the same extent.

Gather of one element of Shape(x) needs only one extent. Where a graph input has that extent, reading it there cuts the
dependency on x, which would keep the nodes around x apart (a mask's size read off the hidden state, say). Equal reads
then become one.

Refused: extents that no graph input has by itself; several elements; positions that are not constant; values that are
graph inputs already.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op
from tilegraph.rewrites.normalise.infer.info import shape_of


class ShapeSources(Pass):
    name = "shape-sources"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        names = Names(model)
        homes: dict[str, tuple[ir.Value, int]] = {}
        for value in model.graph.inputs:
            if isinstance(value.type, ir.TensorType) and not value.is_initializer():
                for axis, dim in enumerate(shape_of(value.shape) or ()):
                    symbol = None if dim is None else dim.bare_symbol
                    if symbol is not None:
                        homes.setdefault(symbol, (value, axis))
        modified = False
        for graph in all_graphs(model):
            for node in list(graph):
                modified |= _move(node, homes, names, model.graph)
        return PassResult(modified)


def _move(node: ir.Node, homes: dict[str, tuple[ir.Value, int]], names: Names, root: ir.Graph) -> bool:
    """Rewires one Gather(Shape(x), constant)."""
    if not is_op(node, "Gather") or node.inputs[0] is None:
        return False
    shape = node.inputs[0].producer()
    if shape is None or not is_op(shape, "Shape") or shape.attributes or shape.inputs[0] is None:
        return False
    source, position = shape.inputs[0], constant_of(node.inputs[1])
    if source.is_graph_input() or position is None or position.numpy().size != 1:
        return False
    dims = shape_of(source.shape)
    index = int(position.numpy().reshape(-1)[0])
    if dims is None or not -len(dims) <= index < len(dims):
        return False
    dim = dims[index]
    home = None if dim is None or dim.bare_symbol is None else homes.get(dim.bare_symbol)
    if home is None or home[0] is source:
        return False
    reader = ir.node("Shape", [home[0]], name=names.node(f"{node.name}_shape"))
    reader.outputs[0].name = names.value(f"{home[0].name}_shape")
    reader.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    reader.outputs[0].shape = ir.Shape([len(home[0].shape or ())])
    assert node.graph is not None
    node.graph.insert_before(node, reader)
    tensor = ir.tensor(np.asarray(home[1], np.int64).reshape(position.shape.numpy()),
                       name=names.value(f"{node.name}_axis"))
    value = ir.Value(name=tensor.name, shape=ir.Shape(position.shape.numpy()), type=ir.TensorType(ir.DataType.INT64),
                     const_value=tensor)
    root.register_initializer(value)
    node.replace_input_with(0, reader.outputs[0])
    node.replace_input_with(1, value)
    return True
