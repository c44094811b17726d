"""Models with convolutions or pools from before opset 11 are raised to it.

Their kernels work on channels in blocks, whose views (Slice, Pad) have inputs since opset 11 and attributes before.
`io.to_opset` raises what keeps its meaning and nothing else; where one node is in the way all stays, with the reason.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io import to_opset
from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.shapes import Shapes

OPSET = 11
_WINDOWS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})


class RaiseOpset(Pass):
    name = "raise-opset"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        old = model.graph.opset_imports.get("", OPSET) < OPSET
        if not old or not any(n.op_type in _WINDOWS and n.domain == "" for g in all_graphs(model) for n in g):
            return PassResult(False)
        modified = Shapes().run(model, PassContext()).modified  # some operators are raised where their types are known
        return PassResult(to_opset(model, OPSET, context.diagnostics) or modified)
