"""A mean over height and width next to a convolution becomes GlobalAveragePool.

    ReduceMean(x; axes 2 and 3)  =  GlobalAveragePool(x),   with a Flatten behind it without keepdims

by definition. ONNX Runtime keeps GlobalAveragePool in its blocked layout (docs/decisions.md has the figures).

Handles: float32 [n, c, h, w] from a convolution, perhaps with an activation, or from a Concat of channels of such
values (GhostNet); axes as attribute or input, in any order and negative too.

Refused: other axes, ranks and types; values that do not come from a convolution; axes that are not constant.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.channel_norm import blocked
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op, remove, replace


class GlobalPool(Pass):
    name = "global-pool"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        names = Names(model)
        for graph in all_graphs(model):
            for node in list(graph):
                if is_op(node, "ReduceMean") and _over_image(node):
                    _rewrite(node, names, model.graph)
                    context.diagnostics.took(self.name, node.name or "", "is a global average pool", op="ReduceMean")
                    modified = True
        return PassResult(modified)


def _over_image(node: ir.Node) -> bool:
    source = node.inputs[0]
    if source is None or source.dtype != ir.DataType.FLOAT or source.shape is None or len(source.shape) != 4:
        return False
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    else:
        given = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = [] if given is None else [int(a) for a in given.numpy().reshape(-1)]
    return sorted(a % 4 for a in axes) == [2, 3] and _from_convolutions(source)


def _from_convolutions(value: ir.Value) -> bool:
    node = value.producer()
    if node is not None and is_op(node, "Concat") and node.attributes["axis"].as_int() in (1, -3):
        return all(v is not None and blocked(v) for v in node.inputs)
    return blocked(value)


def _rewrite(node: ir.Node, names: Names, root: ir.Graph) -> None:
    source, old = node.inputs[0], node.outputs[0]
    assert source is not None
    assert source.shape is not None
    keep = node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1
    pool = ir.node("GlobalAveragePool", [source], name=names.node(f"{node.name}_pool"))
    result = pool.outputs[0]
    result.name, result.type = names.value(f"{old.name}_pool"), old.type
    result.shape = ir.Shape([*list(source.shape)[:2], 1, 1])
    made = [pool]
    if keep != 1:
        flat = ir.node("Flatten", [result], {"axis": 1}, name=names.node(f"{node.name}_flat"))
        result = flat.outputs[0]
        result.name, result.type, result.shape = names.value(f"{old.name}_flat"), old.type, old.shape
        made.append(flat)
    node.append(made)
    replace(old, result, root)
    remove(node)
