"""Which spellings are changed: those of attentions that a trial on a copy of the model takes."""

from __future__ import annotations

from collections.abc import Callable, Container

import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics
from tilegraph.graph import GraphView, all_graphs
from tilegraph.passes import PassContext
from tilegraph.rewrites.attention.find import cores
from tilegraph.rewrites.attention.respell.biases import beside_views
from tilegraph.rewrites.attention.respell.blocks import blocks_together
from tilegraph.rewrites.attention.respell.contractions import sums_of_products
from tilegraph.rewrites.attention.respell.differences import product_for_each
from tilegraph.rewrites.attention.respell.edit import Site
from tilegraph.rewrites.attention.respell.einsums import einsums_as_products
from tilegraph.rewrites.attention.respell.gemms import gemms_as_products
from tilegraph.rewrites.attention.respell.repeats import repeated
from tilegraph.rewrites.attention.respell.shared import side_by_side
from tilegraph.rewrites.attention.respell.sides import weights_first
from tilegraph.rewrites.attention.respell.skew import unskewed
from tilegraph.rewrites.normalise.dead_code import DeadCode
from tilegraph.rewrites.normalise.edit import Names

_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Exp"})
_LISTS = 13  # the opset from which sizes and axes of every operator are inputs
_RULES = (repeated, gemms_as_products, einsums_as_products, sums_of_products, blocks_together, unskewed, weights_first,
          product_for_each, side_by_side, beside_views)


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
    decisions = scratch.diagnostics.of(stage)
    winners = {name for d in decisions if d.taken for name in d.data["nodes"]}
    only_there = _seconds(trial) - _seconds(model)
    for decision in decisions:
        if not decision.taken and decision.subject in only_there:
            # Only another spelling shows it: what follows here gives the reasons of its parts.
            context.diagnostics.refused(stage, decision.subject, f"in another spelling: {decision.reason}",
                                        op=decision.op, kind="", density=None)
    return bool(winners) and _respell(model, winners)


def _seconds(model: ir.Model) -> set[str]:
    """The names of the second products of whatever looks like attention."""
    views = [GraphView(graph) for graph in all_graphs(model.graph)]
    return {core.second.name or "" for view in views for core in cores(view, lambda n: True)}


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
