"""The pass that makes each attention a composite of its own.

Cases: a softmax over the keys between two matrix products, as an operator or spelled out, with any pointwise
modifier of the scores between: scale, additive masks, Where, masks computed from positions, soft caps, NaN guards.
Views of queries, keys, values and result become index maps, heads that are repeated for grouped queries included.
Operators that are attention by themselves are taken apart first where that leads to one (`operators`).
Refused, with a reason each: scores or weights that are read elsewhere, several products in the scores, reductions
other than the softmax's, operands that are not float32, depths that are symbolic or above 256, and what ONNX Runtime
does as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx_ir as ir

from tilegraph.cost import CostModel
from tilegraph.graph import GraphView, Reach, all_graphs
from tilegraph.ops.attention import lower_attention, plan_attention
from tilegraph.ops.prims import Decline
from tilegraph.passes import PassContext
from tilegraph.rewrites.attention.candidate import Candidate
from tilegraph.rewrites.attention.density import Density, decided_by, density, measured
from tilegraph.rewrites.attention.extend import Extender
from tilegraph.rewrites.attention.extents import expand, read_elsewhere, settle
from tilegraph.rewrites.attention.find import Core, cores
from tilegraph.rewrites.attention.missed import is_projection, missed, why_projection
from tilegraph.rewrites.attention.operators import Owner, owner_of, take_winners
from tilegraph.rewrites.attention.positions import introduce, introduce_switches, put_back
from tilegraph.rewrites.attention.price import AttentionCost, kind_of_mask, price
from tilegraph.rewrites.attention.respell import respell_winners
from tilegraph.rewrites.attention.upstream import Runs
from tilegraph.rewrites.fusion.base import CompositePass, opsets_of
from tilegraph.rewrites.fusion.composite import make_composite
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.normalise.edit import Names

STAGE = "attention"
_Found = tuple[Candidate, dict[str, Any]]  # and what its mask leaves, for the report


class AttentionFusion(CompositePass):
    """Finds attentions and takes those that are expected to win, or with offload "all" every one that it can.

    `trust_hidden`: keys that a mask hides, and their values, are finite; then composites are of a kind of their own.
    """

    name = "fuse-attention"

    def __init__(self, offload: str = "auto", cost_model: CostModel | None = None, trust_hidden: bool = False) -> None:
        super().__init__(offload)
        self.trust_hidden = trust_hidden
        self.cost_model = cost_model or CostModel()

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        modified = take_winners(model, STAGE, context, self._plain)
        modified |= respell_winners(model, STAGE, context, self._plain)
        return self._plain(model, context) or modified

    def _plain(self, model: ir.Model, context: PassContext) -> bool:
        modified = False
        for graph in list(all_graphs(model.graph)):
            if next(cores(GraphView(graph), lambda n: True), None) is None:
                self._list_missed(GraphView(graph), [], context)
                continue
            modified |= _prepare(model, graph)
            counting = introduce(graph) + introduce_switches(graph, _between(graph))
            found = self._attentions(model, graph, context)
            for candidate, share in found:
                call = make_composite(model, graph, candidate.nodes, candidate.outputs, candidate.clones,
                                      "AttentionTrust" if self.trust_hidden else "Attention")
                context.diagnostics.took(STAGE, call.name or "", f"{len(candidate.nodes)} nodes in one kernel",
                                         op=call.op_type, kind=kind_of_mask(candidate.space), **share,
                                         nodes=[n.name for n in candidate.nodes],
                                         **_operator(candidate.owner))
                modified = True
            if found:
                _drop_unread(graph, {node for candidate, _ in found for node in candidate.clones})
            put_back(graph, counting)
            if found:
                graph.sort()
        return modified

    def _attentions(self, model: ir.Model, graph: ir.Graph, context: PassContext) -> list[_Found]:
        view = GraphView(graph)
        reach = Reach(view.nodes, ((a, b) for a, b in view.graph.edges()))
        verdicts = Verdicts(opsets_of(model), plan_attention, lower_attention)
        taken: set[ir.Node] = set()
        pinned: set[ir.Value] = set()
        found: list[_Found] = []
        runs = Runs(model.graph, opsets_of(model).get("", 1), context.sample)
        tried = list(cores(view, lambda n: True))
        for core in tried:
            try:
                extender = partial(Extender, view=view, verdicts=verdicts, pinned=pinned, convex=reach.is_convex)
                candidate, share, cost = self._priced(core, taken, extender, runs)
                if self.offload == "auto" and not cost.wins:
                    candidate, share, cost = self._priced(core, taken, partial(extender, outside=True), runs)
                if self.offload == "auto" and not cost.wins:
                    raise Decline(f"ONNX Runtime keeps it: {cost}")
            except Decline as reason:
                self._refuse(context, core, reason)
                continue
            own = [node for node in candidate.nodes if node not in candidate.clones]
            taken.update(own)
            reach.contract(own)
            pinned.update(v for node in candidate.clones for v in node.inputs if v is not None)
            given = measured(candidate.lowered, candidate.space, runs)
            found.append((candidate, {
                "density": 1.0 if share is None else round(share.elements, 4),
                "inputs": list(decided_by(candidate.lowered, candidate.space)),
                "measured": None if given is None else round(given.elements, 4)}))
        self._list_missed(view, tried, context)
        return found

    def _list_missed(self, view: GraphView, tried: list[Core], context: PassContext) -> None:
        nodes = {node for core in tried for one in (core, *core.others) for node in one.nodes}
        for one in missed(view, nodes):
            context.diagnostics.refused(STAGE, one.product.name or "", one.reason, op=one.product.op_type, kind="",
                                        density=None)

    def _priced(self, core: Core, taken: set[ir.Node], extender: Callable[..., Extender],
                runs: Runs) -> tuple[Candidate, Density | None, AttentionCost]:
        candidate = self._candidate(core, taken, extender)
        share = density(candidate.lowered, candidate.space, runs)
        return candidate, share, price(candidate, share, self.cost_model)

    def _candidate(self, core: Core, taken: set[ir.Node], extender: Callable[..., Extender]) -> Candidate:
        """The attention with the first of the products behind its softmax that makes one; else the nearest's reason."""
        reason: Decline | None = None
        for one in (core, *core.others):
            try:
                if one.nodes & taken:
                    raise Decline("part of it belongs to another attention")
                return extender(one, free=partial(_is_free, taken, owner_of(one.first))).run()
            except Decline as why:
                reason = reason or why
        assert reason is not None
        if is_projection(core.first):
            raise Decline(why_projection(core.first))
        raise reason

    def _refuse(self, context: PassContext, core: Core, reason: Decline) -> None:
        where = f" (at {reason.node})" if reason.node and reason.node not in reason.reason else ""
        context.diagnostics.refused(STAGE, core.second.name or "", reason.reason + where, op=core.second.op_type,
                                    kind="", density=None, **_operator(owner_of(core.first)))


def _prepare(model: ir.Model, graph: ir.Graph) -> bool:
    """What an attention needs to know of extents, see `extents`; whether that changed the model."""
    names, changed = Names(model), False
    for core in list(cores(GraphView(graph), lambda n: True)):
        changed |= settle(core)
        changed |= read_elsewhere(core, graph, names)
        changed |= expand(core, graph, names)
    return changed


def _between(graph: ir.Graph) -> list[ir.Node]:
    """What lies between the products of anything that looks like attention."""
    found = {node: None for core in cores(GraphView(graph), lambda n: True) for one in (core, *core.others)
             for node in one.between}
    return list(found)


def _is_free(taken: set[ir.Node], owner: Owner | None, node: ir.Node) -> bool:
    """Whether an attention may take the node: what an operator became belongs to that operator's attention."""
    return node not in taken and owner_of(node) in (None, owner)


def _operator(owner: Owner | None) -> dict[str, Any]:
    return {} if owner is None else {"operator": owner.name}


def _drop_unread(graph: ir.Graph, clones: set[ir.Node]) -> None:
    """Removes nodes of which every reader took a copy."""
    for node in reversed([n for n in graph if n in clones]):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
