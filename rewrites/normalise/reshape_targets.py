"""Reshape targets that are computed in the graph become constants where the extents say so.

Exporters write x.view(batch, seq, heads, -1) as Shape, Gather, Unsqueeze and Concat around a Reshape. Where its
target is known as expressions, a constant says the same: a number, 0 for "as in the input", or one -1. The shape
computation is then dead, and with it the dependency that it puts between the Reshape and the nodes before it.

Refused: targets with unknown elements; more than one extent that is neither a number nor the input's at its place; a -1
beside extents that may be 0 (nothing could be inferred then); allowzero.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op
from tilegraph.rewrites.normalise.infer.info import shape_of
from tilegraph.rewrites.normalise.shapes import symbolic_contents
from tilegraph.spec.dims import Dim


class ReshapeTargets(Pass):
    name = "reshape-targets"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        names = Names(model)
        modified = False
        for graph in all_graphs(model):
            for node in list(graph):
                target = _constant_target(node)
                if target is None:
                    continue
                tensor = ir.tensor(np.asarray(target, np.int64), name=names.value(f"{node.outputs[0].name}_target"))
                value = ir.Value(name=tensor.name, shape=ir.Shape([len(target)]),
                                 type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
                model.graph.register_initializer(value)
                node.replace_input_with(1, value)
                modified = True
        return PassResult(modified)


def _constant_target(node: ir.Node) -> list[int] | None:
    """The target that replaces the computed one of a Reshape, or None."""
    if not is_op(node, "Reshape") or len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    allow_zero = node.attributes.get("allowzero")
    if constant_of(node.inputs[1]) is not None or (allow_zero is not None and allow_zero.as_int()):
        return None
    contents = symbolic_contents(node.inputs[1])
    source = shape_of(node.inputs[0].shape)
    if contents is None or source is None or any(d is None for d in contents):
        return None
    return constant_target([d for d in contents if d is not None], source)


def constant_target(wanted: list[Dim], source: tuple[Dim | None, ...]) -> list[int] | None:
    """`wanted` (a Reshape's target, for an input of shape `source`) as numbers, 0 and at most one -1; None if it cannot
    be said so for every binding of the symbols."""
    target: list[int] = []
    for k, dim in enumerate(wanted):
        number = dim.as_int()
        if number is not None:
            target.append(number)
        elif k < len(source) and source[k] == dim:
            target.append(0)
        else:
            target.append(-1)
    if target.count(-1) > 1 or (-1 in target and any(n == 0 for n in target)):
        return None
    return target
