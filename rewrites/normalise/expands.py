"""Operators that broadcast read what an Expand repeats, and not its copies.

Exporters write `x * s.expand_as(x)` as Shape, Expand and Mul (squeeze and excite, channel attention). Where another
operand has the shape of the Expand's result for certain, the operator broadcasts to the same result, bit for bit, and
x * s with one number a channel can be part of a convolution's kernel.

Refused: operators other than sums, differences, products and quotients (masks stay as they are written); shapes that
are not proved equal.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.info import same_shape

_BROADCAST = ("Add", "Sub", "Mul", "Div")


class Expands(Pass):
    name = "expands"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for node in graph:
                if not any(is_op(node, op) for op in _BROADCAST):
                    continue
                for here, other in ((0, 1), (1, 0)):
                    value, beside = node.inputs[here], node.inputs[other]
                    expand = None if value is None else value.producer()
                    if expand is None or beside is None or not is_op(expand, "Expand"):
                        continue
                    if value is not beside and same_shape(expand.outputs[0], beside):
                        node.replace_input_with(here, expand.inputs[0])
                        modified = True
                        break
        return PassResult(modified)
