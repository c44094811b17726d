"""An extent that is read off an intermediate value is read off a graph input that has the same extent.

Gather of one element of Shape(x) needs only one extent. Where a graph input has that extent, reading it there cuts the
dependency on x, which would keep the nodes around x apart (a mask's size read off the hidden state, say). Equal reads
then become one. A sum of such extents and a number, as the length of a key cache with new keys, is read and added up.

Refused: extents that graph inputs do not have by themselves; several elements; positions that are not constant; values
that are graph inputs already.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op, replace
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
    terms = () if dim is None else dim.terms
    symbols = [homes[m[0]] for m, factor in terms if factor == 1 and len(m) == 1 and isinstance(m[0], str)
               and m[0] in homes]
    number = sum(factor for m, factor in terms if m == ())
    if not symbols or len(symbols) + (number != 0) != len(terms) or any(value is source for value, _ in symbols):
        return False
    assert node.graph is not None
    form = tuple(position.shape.numpy())
    read = [_read(node, value, _number(axis, form, names.value(f"{node.name}_axis"), root), names)
            for value, axis in symbols]
    nodes = [made for pair in read for made in pair]
    total = nodes[-1].outputs[0]
    added = [pair[-1].outputs[0] for pair in read[:-1]]
    if number:
        added.append(_number(number, form, names.value(f"{node.name}_more"), root))
    for one in added:
        add = ir.node("Add", [total, one], name=names.node(f"{node.name}_sum"))
        total = _typed(add, f"{node.outputs[0].name}_sum", form, names)
        nodes.append(add)
    node.graph.insert_before(node, nodes)
    replace(node.outputs[0], total, root)
    node.graph.remove(node, safe=True)
    return True


def _read(node: ir.Node, value: ir.Value, axis: ir.Value, names: Names) -> tuple[ir.Node, ir.Node]:
    """What reads one extent of a graph input."""
    shape = ir.node("Shape", [value], name=names.node(f"{node.name}_shape"))
    _typed(shape, f"{value.name}_shape", (len(value.shape or ()),), names)
    gather = ir.node("Gather", [shape.outputs[0], axis], attributes={"axis": 0}, name=names.node(f"{node.name}_extent"))
    _typed(gather, f"{value.name}_extent", tuple(axis.shape.numpy()) if axis.shape is not None else (), names)
    return shape, gather


def _number(number: int, form: tuple[int, ...], name: str, root: ir.Graph) -> ir.Value:
    tensor = ir.tensor(np.asarray(number, np.int64).reshape(form), name=name)
    value = ir.Value(name=name, shape=ir.Shape(form), type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    root.register_initializer(value)
    return value


def _typed(node: ir.Node, name: str, form: tuple[int, ...], names: Names) -> ir.Value:
    result = node.outputs[0]
    result.name, result.type, result.shape = names.value(name), ir.TensorType(ir.DataType.INT64), ir.Shape(form)
    return result
