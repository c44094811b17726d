"""FlexAttention becomes the standard nodes that it is defined as, before anything else looks at the graph."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.graph import all_graphs
from tilegraph.ops.prims import Decline
from tilegraph.passes import Pass, PassContext, PassResult
from tilegraph.rewrites.attention.operators.table import is_flex, take_apart
from tilegraph.rewrites.normalise.edit import Names
from tilegraph.rewrites.normalise.shapes import Shapes


class FlexBodies(Pass):
    """ONNX Runtime has no kernel for FlexAttention and does not inline it either."""

    name = "flex-attention"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        while found := [n for g in all_graphs(model.graph) for n in g if is_flex(n)]:
            Shapes().run(model, PassContext())
            names = Names(model)
            left: list[tuple[ir.Node, str]] = []
            for node in found:
                op = node.op_type
                try:
                    count = take_apart(model, node, names, owned=False)
                except Decline as reason:
                    left.append((node, reason.reason))
                    continue
                context.diagnostics.took(self.name, node.name or "", f"{count} standard nodes", op=op)
                modified = True
            if len(left) == len(found):  # else what follows those that are apart now may have a dtype
                for node, text in left:
                    context.diagnostics.refused(self.name, node.name or "", text, op=node.op_type)
                break
        return PassResult(modified)
