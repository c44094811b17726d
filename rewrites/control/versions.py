"""Ifs whose branches give results of different ranks: the rest of the graph moves into both branches.

    y = If(c, f, g); z = h(y)     =     z = If(c, h . f, h . g)

by the meaning of If. Behind such an If no shape is known, so nothing there can be optimized; in each branch all is.
Exporters write them for optional batch dims: silero-vad has 25, which decide one another once the first is.

What the rest of the graph reads besides moves along if nothing else reads it. Shapes are inferred again, and conditions
that have become constant are decided. An If of which one branch fails on every input, and the other wherever the
condition chooses the first, is replaced by the other (see `failing`); an input that neither can run ends in an error
as before, in that of the branch that is left.

Handles: any If with an undecided condition, in the main graph and in bodies. Refused, with a reason: rests of more than
400 nodes, because both branches get a copy of them; more than 8 versions of a model; and what would make a model that
ONNX's inference refuses, where a branch fails that cannot be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from tilegraph.graph import bodies
from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.passes.invariants import inference_complaint
from tilegraph.passes.pipeline import Pipeline
from tilegraph.rewrites.control.failing import failing, needs_one, says_one
from tilegraph.rewrites.control.sink import BRANCHES, sink, tail_of
from tilegraph.rewrites.normalise import NORMALISE, Fold, Shapes
from tilegraph.rewrites.normalise.edit import Names, is_op, nodes_inside
from tilegraph.rewrites.normalise.fold import take_branch

_MOST_NODES = 400
_MOST_VERSIONS = 8
_VERSIONS = "tilegraph.versions"  # made so far, kept with the model


class VersionBranches(Pass):
    name = "version-branches"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        refused: set[str] = set()
        modified = False
        while True:
            node = next((n for n in _undecided(model) if n.name not in refused), None)
            if node is None:
                break
            name = node.name or ""
            reason = self._refusal(model, node, context)
            if reason is not None:
                refused.add(name)
                context.diagnostics.refused(self.name, name, reason, op="If")
                continue
            self._version(model, node, context)
            modified = True
        if modified:
            Pipeline(NORMALISE).run(model, PassContext(fold_limit_bytes=context.fold_limit_bytes))
        return PassResult(modified)

    def _refusal(self, model: ir.Model, node: ir.Node, context: PassContext) -> str | None:
        """Why the If stays as it is. The last reason takes a trial: ONNX Runtime does not load a model in which a
        branch contradicts itself, although it would never run."""
        if model.graph.meta.get(_VERSIONS, 0) >= _MOST_VERSIONS:
            return f"the model has {_MOST_VERSIONS} versions already"
        count = _count(tail_of(node))
        if count > _MOST_NODES:
            return f"{count} nodes behind it would be copied, more than {_MOST_NODES}"
        trial = model.clone()
        same = next(n for n in _undecided(trial) if n.name == node.name)
        self._version(trial, same, PassContext(fold_limit_bytes=context.fold_limit_bytes))
        complaint = inference_complaint(trial)
        return None if complaint is None or inference_complaint(model) is not None else \
            f"in one of its branches what follows contradicts itself: {complaint}"

    def _version(self, model: ir.Model, node: ir.Node, context: PassContext) -> None:
        tail, name = tail_of(node), node.name or ""
        context.diagnostics.took(self.name, name, f"{_count(tail)} nodes behind it move into both branches", op="If")
        sink(node, tail, Names(model))
        Pipeline([Shapes(), Fold()]).run(model, PassContext(fold_limit_bytes=context.fold_limit_bytes))
        self._without_failing(model, context)
        model.graph.meta[_VERSIONS] = model.graph.meta.get(_VERSIONS, 0) + 1

    def _without_failing(self, model: ir.Model, context: PassContext) -> None:
        """Replaces Ifs by the branch that is left where the other one always fails."""
        changed = False
        for graph in list(all_graphs(model)):
            for node in list(graph):
                if node.graph is not graph or not is_op(node, "If"):
                    continue
                for kept, other, truth in ((*BRANCHES, True), (*BRANCHES[::-1], False)):
                    reason = failing(node.attributes[other].as_graph())
                    extent = says_one(node.inputs[0], truth)
                    if reason is None or extent is None:
                        continue
                    if extent in set(needs_one(node.attributes[kept].as_graph())):
                        name = node.name or ""
                        take_branch(node, kept, model.graph)
                        context.diagnostics.took(self.name, name, f"{kept} is left: the other one always fails "
                                                 f"({reason}), and this one unless {extent} is 1", op="If")
                        changed = True
                        break
        if changed:
            Pipeline([Shapes(), Fold()]).run(model, PassContext(fold_limit_bytes=context.fold_limit_bytes))


def _undecided(model: ir.Model) -> Iterator[ir.Node]:
    """Ifs whose results have different ranks in their branches, and something depends on them."""
    for graph in all_graphs(model):
        for node in graph:
            if is_op(node, "If") and any(v.uses() and _ranks_differ(node, k) for k, v in enumerate(node.outputs)):
                yield node


def _ranks_differ(node: ir.Node, index: int) -> bool:
    shapes = [node.attributes[key].as_graph().outputs[index].shape for key in BRANCHES]
    ranks = [None if s is None else len(s) for s in shapes]
    return None not in ranks and ranks[0] != ranks[1]


def _count(nodes: Sequence[ir.Node]) -> int:
    return sum(1 + sum(1 for body in bodies(n) for _ in nodes_inside(body)) for n in nodes)
