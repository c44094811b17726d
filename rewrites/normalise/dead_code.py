"""Nodes go when none of their outputs is used, in subgraphs too. Graph outputs and captures count as uses."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_used, remove


class DeadCode(Pass):
    name = "dead-code"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        return PassResult(_sweep(model.graph))


def _sweep(graph: ir.Graph) -> bool:
    """Backwards, so that what only fed a removed node is seen afterwards."""
    modified = False
    for node in reversed(list(graph)):
        if not any(is_used(o) for o in node.outputs):
            remove(node)
            modified = True
            continue
        for inner in subgraphs_of(node):
            modified |= _sweep(inner)
    return modified
