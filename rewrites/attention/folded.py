"""Attentions that are gone before any is looked for: scores of constants, as the first of DETR's decoder, whose queries
and keys are zeros and learned positions. Constant folding makes a constant of them; the report says so.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.graph import GraphView, all_graphs
from tilegraph.passes import Pass, PassContext, PassResult
from tilegraph.rewrites.attention.find import Core, cores
from tilegraph.rewrites.attention.fuse import STAGE

REASON = "queries and keys are constants: their scores were folded into one"


class NoteAttentions(Pass):
    """Runs before constant folding. `found`: attentions whose scores are of constants."""

    name = "note-attentions"

    def __init__(self) -> None:
        self.found: list[Core] = []

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        self.found = []
        for graph in all_graphs(model.graph):
            if not any(node.op_type == "Softmax" for node in graph):
                continue
            known: dict[ir.Value, bool] = {}
            for core in cores(GraphView(graph), lambda n: True):
                if all(_is_constant(v, known) for v in core.first.inputs if v is not None):
                    self.found.append(core)
        return PassResult(False)


class ListFolded(Pass):
    """Runs after constant folding: lists those of `noted` whose first product is no longer there."""

    name = "list-folded-attentions"

    def __init__(self, noted: NoteAttentions) -> None:
        self.noted = noted

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        for core in self.noted.found:
            if core.first.graph is None:
                context.diagnostics.refused(STAGE, core.second.name or "", REASON, op=core.second.op_type, kind="",
                                            density=None)
        return PassResult(False)


def _is_constant(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether no input of a run reaches `value`, nodes with bodies and random ones left out."""
    stack = [value]
    while stack:
        one = stack[-1]
        maker = one.producer()
        if one in known:
            stack.pop()
        elif maker is None:
            known[one] = one.const_value is not None and not one.is_graph_input()
        elif maker.op_type.startswith("Random") or any(a.type in _BODIES for a in maker.attributes.values()):
            known[one] = False
        else:
            left = [v for v in maker.inputs if v is not None and v not in known]
            if not left:
                known[one] = all(known[v] for v in maker.inputs if v is not None)
            stack.extend(left)
    return known[value]


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
