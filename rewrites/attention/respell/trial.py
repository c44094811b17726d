"""Which spellings are changed: those of attentions that a trial on a copy of the model takes."""

from __future__ import annotations

from collections.abc import Callable, Container

import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics
from tilegraph.graph import all_graphs
from tilegraph.passes import PassContext
from tilegraph.rewrites.attention.respell.biases import beside_views
from tilegraph.rewrites.attention.respell.blocks import blocks_together
from tilegraph.rewrites.attention.respell.contractions import sums_of_products
from tilegraph.rewrites.attention.respell.edit import Site
from tilegraph.rewrites.attention.respell.repeats import repeated
from tilegraph.rewrites.attention.respell.shared import side_by_side
from tilegraph.rewrites.attention.respell.sides import weights_first
from tilegraph.rewrites.normalise.dead_code import DeadCode
from tilegraph.rewrites.normalise.edit import Names

_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Exp"})
_LISTS = 13  # the opset from which sizes and axes of every operator are inputs
_RULES = (repeated, sums_of_products, blocks_together, weights_first, side_by_side, beside_views)


def respell_winners(model: ir.Model, stage: str, context: PassContext,
                    fuse: Callable[[ir.Model, PassContext], object]) -> bool:
    """Changes spellings where `fuse` then makes a composite of the product; whether the model changed.

    `fuse` must give the names of the `nodes` of what it took in its decisions' data.
    """
    if not any(node.op_type in _SOFTMAX for graph in all_graphs(model.graph) for node in graph):
        return False
    trial = model.clone()
    if not _respell(trial, _All()):
        return False
    scratch = PassContext(Diagnostics(), context.fold_limit_bytes)
    fuse(trial, scratch)
    winners = {name for decision in scratch.diagnostics.of(stage, taken=True) for name in decision.data["nodes"]}
    return bool(winners) and _respell(model, winners)


class _All(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True


def _respell(model: ir.Model, wanted: Container[str]) -> bool:
    """`wanted`: the names of products, or of the sums that become some."""
    changed = False
    if model.opset_imports.get("", 0) >= _LISTS:
        names = Names(model)
        for graph in list(all_graphs(model.graph)):
            for rule in _RULES:
                changed = rule(Site(graph, names, wanted)) or changed
    if changed:
        DeadCode().run(model, PassContext())
    return changed
