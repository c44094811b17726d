"""Which operators are taken apart: those whose attention a trial on a copy of the model takes.

ONNX Runtime's own kernels are faster than the standard nodes, so an operator whose attention stays with it stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics
from tilegraph.graph import all_graphs
from tilegraph.ops.prims import Decline
from tilegraph.passes import PassContext
from tilegraph.rewrites.attention.operators.table import is_operator, take_apart
from tilegraph.rewrites.normalise.dead_code import DeadCode
from tilegraph.rewrites.normalise.edit import Names
from tilegraph.rewrites.normalise.reshape_targets import ReshapeTargets
from tilegraph.rewrites.normalise.shape_sources import ShapeSources
from tilegraph.rewrites.normalise.shapes import Shapes

# No merging of equal nodes: what one operator became must not be shared with another. No folding: positions are worth
# more to a kernel than a table.
_AFTER = (Shapes(), ReshapeTargets(), ShapeSources(), DeadCode())


def take_winners(model: ir.Model, stage: str, context: PassContext,
                 fuse: Callable[[ir.Model, PassContext], object]) -> bool:
    """Takes apart the operators of which `fuse` then makes composites, of both branches where a run decides; the others
    are refused with the reason.

    `fuse` must say in its decisions' data which `operator` (by name) an attention came from. Returns whether the model
    changed.
    """
    found = {n.name or "": n for g in all_graphs(model.graph) for n in g if is_operator(n)}
    if not found:
        return False
    reasons: dict[str, str] = {}
    scratch = PassContext(Diagnostics(), context.fold_limit_bytes)
    trial = model.clone()
    winners: set[str] = set()
    if _apart(trial, found, reasons):
        fuse(trial, scratch)
        for decision in scratch.diagnostics.of(stage):
            name = decision.data.get("operator")
            if name in found and decision.taken:
                winners.add(name)
            elif name in found:
                reasons[name] = decision.reason
    winners -= reasons.keys()
    for name, node in found.items():
        if name not in winners:
            reason = reasons.get(name, "no attention was found in what it stands for")
            context.diagnostics.refused(stage, name, reason, op=node.op_type, kind="", density=None)
    return bool(winners) and _apart(model, winners, reasons)


def _apart(model: ir.Model, wanted: Iterable[str], reasons: dict[str, str]) -> bool:
    chosen = frozenset(wanted)
    names = Names(model)
    modified = False
    for node in [n for g in all_graphs(model.graph) for n in g if n.name in chosen and is_operator(n)]:
        try:
            take_apart(model, node, names)
            modified = True
        except Decline as reason:
            reasons[node.name or ""] = reason.reason
    if modified:
        for step in _AFTER:
            step.run(model, PassContext())
    return modified
