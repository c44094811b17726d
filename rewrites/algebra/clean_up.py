"""What algebra leaves behind goes: nodes without readers, and the weights that folded ones have replaced."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise import DeadCode, UnusedInitializers


class CleanUp(Pass):
    """`DeadCode` and `UnusedInitializers` of `normalise`, once more under a name of its own."""

    name = "algebra-clean-up"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        nodes = DeadCode().run(model, context).modified
        return PassResult(UnusedInitializers().run(model, context).modified or nodes)
