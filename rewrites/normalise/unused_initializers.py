"""Initializers go when nothing uses them, in subgraphs too. Those that are graph inputs or outputs stay."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_used


class UnusedInitializers(Pass):
    name = "unused-initializers"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for name, value in list(graph.initializers.items()):
                if not is_used(value) and not value.is_graph_input():
                    del graph.initializers[name]
                    modified = True
        return PassResult(modified)
