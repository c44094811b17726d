"""Concat without the operands that have no elements.

Exporters write the part of a head that is not rotated, `x[..., rotary:]`, also where all of it is rotated (Phi-3). What
is left of a Concat of one operand is an identity, and gone with those.

Handles: operands whose extent along the axis is 0 for certain, beside others. Refused: operands whose other extents are
not equal for certain to those of a kept one (a Concat that fails must fail as before), and Concats of nothing but
empty operands.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.info import shape_of


class EmptyOperands(Pass):
    name = "empty-operands"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for node in graph:
                modified |= is_op(node, "Concat") and _shorten(node)
        return PassResult(modified)


def _shorten(node: ir.Node) -> bool:
    axis = node.attributes.get("axis")
    shapes = [None if v is None else shape_of(v.shape) for v in node.inputs]
    if axis is None or axis.is_ref() or not shapes or None in shapes:
        return False
    known = [s for s in shapes if s is not None]
    rank, at = len(known[0]), axis.as_int()
    if any(len(s) != rank for s in known) or not -rank <= at < rank:
        return False
    at %= rank
    around = [(*s[:at], *s[at + 1:]) for s in known]
    first = next((k for k, s in enumerate(known) if s[at] != 0), None)
    if first is None or None in around[first]:
        return False
    kept = [k for k, s in enumerate(known) if s[at] != 0 or around[k] != around[first]]
    if len(kept) == len(known):
        return False
    values = [node.inputs[k] for k in kept]
    node.resize_inputs(len(kept))
    for index, value in enumerate(values):
        node.replace_input_with(index, value)
    return True
