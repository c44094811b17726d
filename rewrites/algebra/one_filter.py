"""A pointwise convolution with one filter becomes a weighted sum over channels.

    Conv(x; w, b)[n, 0, p]  =  sum over c of w[c] x[n, c, p]  +  b          for a kernel of one element

by definition. It is how networks end that give one number for each position: a probability of speech, a score. As a
reduction it joins the pointwise nodes around it in one kernel, and a transpose in front of it costs nothing.

Handles: float32 and float64 Conv of constant weights [1, C, 1] with one spatial axis, and [1, C, 1, 1] over an image of
one element; at least 16 channels; a bias or none.

Refused: strides and padding; larger images, where blocked kernels are better; weights that are not constant.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.ops.prims import Decline
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.constants import Constants, floats
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.info import shape_of

_CHANNELS = 16


class OneFilter(Pass):
    name = "one-filter"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model):
            for node in list(graph):
                weights = floats(node.inputs[1]) if is_op(node, "Conv") else None
                if weights is None or weights.shape[0] != 1 or weights.size != weights.shape[1]:
                    continue
                try:
                    _rewrite(node, weights.shape, constants)
                except Decline as reason:
                    context.diagnostics.refused(self.name, node.name or "", reason.reason, op="Conv")
                    continue
                context.diagnostics.took(self.name, node.name or "", "is a weighted sum over channels", op="Conv")
                modified = True
        return PassResult(modified)


def _rewrite(node: ir.Node, weights: tuple[int, ...], constants: Constants) -> None:
    b = Build(node, constants.names, constants.model.graph.opset_imports.get("", 1))
    source, rank = b.needed(0, "its source"), len(weights)
    shape = shape_of(source.shape)
    if shape is None or len(shape) != rank or weights[1] < _CHANNELS:
        raise Decline(f"its source is of unknown rank, or has fewer than {_CHANNELS} channels")
    if any(v != 1 for v in b.attr("strides", ())) or any(v != 0 for v in b.attr("pads", ())):
        raise Decline("it has strides or padding")
    if b.attr("group", 1) != 1 or shape[1] is None or shape[1].as_int() != weights[1]:
        raise Decline("it has groups")
    if rank > 3 and any(d is None or d.as_int() != 1 for d in shape[2:]):
        raise Decline("its image has more than one element")
    given, bias = node.inputs[1], floats(b.input(2))
    array = floats(given)
    assert array is not None
    assert given is not None
    assert source.dtype is not None
    if b.input(2) is not None and bias is None:
        raise Decline("its bias is not constant")
    added = 0.0 if bias is None else bias.item()
    reason = constants.refusal(node, given, int(array.size * source.dtype.itemsize))
    if reason is not None:
        raise Decline(reason)
    constants.replace(node, 1, array[0], source.dtype)  # [C, 1]: it broadcasts over what is summed for each position
    total = b.op("ReduceSum", b.op("Mul", source, b.needed(1, "its filter")), b.ints(1), keepdims=1)
    result = b.op("Add", total, b.scalar(added, source)) if bias is not None else total
    for made in b.made:
        made.outputs[0].type = source.type
        made.outputs[0].shape = source.shape if made.op_type == "Mul" else node.outputs[0].shape
    b.finish([result], constants.model.graph, owned=False)
