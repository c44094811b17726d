"""A scale and shift between convolutions that cannot be folded becomes BatchNormalization.

    scale_c x + shift_c  =  BatchNormalization(x; scale, shift, mean 0, variance 1, epsilon 0)

Equal in floating point too, but for one rounding that a fused multiply-add may save. Nothing is computed less; the
gain is the layout: ONNX Runtime keeps BatchNormalization in its blocked convolution layout, and leaves that layout for
Add or Mul by a constant, which costs a copy on either side (figures in docs/decisions.md).

Handles: chains of Add, Sub, Mul, Div by scalars or one number for each channel, on float32 [n, c, h, w], that come
from a convolution through activations (x * Sigmoid(x), x * HardSigmoid(x) included) and that a convolution or pooling
reads.
Opsets below 9 are left alone (BatchNormalization had other attributes).

Refused: other types and ranks; an unknown number of channels; chains that touch no convolution on one of the two sides.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.affine import chain_below, per_channel
from tilegraph.rewrites.algebra.constants import Constants, fits
from tilegraph.rewrites.normalise.edit import is_op, remove, replace
from tilegraph.rewrites.normalise.infer.info import shape_of

_READERS = ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Clip")


class ChannelNorm(Pass):
    name = "channel-norm"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        if model.graph.opset_imports.get("", 1) < 9:
            return PassResult(False)
        constants = Constants(model, context)
        for graph in all_graphs(model):
            done: set[ir.Node] = set()
            for node in list(graph):
                if node in done or node.graph is not graph:
                    continue
                chain = _chain_at(node, graph, constants)
                done.update(chain)
                if chain:
                    context.diagnostics.took(self.name, chain[-1].name or "", "stays in the layout of convolutions",
                                             op=chain[-1].op_type, nodes=[n.name for n in chain])
                    modified = True
        return PassResult(modified)


def _chain_at(node: ir.Node, graph: ir.Graph, constants: Constants) -> list[ir.Node]:
    """Rewrites the chain that starts right after `node`; returns the nodes that went."""
    if len(node.outputs) != 1 or not blocked(node.outputs[0]):
        return []
    value = node.outputs[0]
    if value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != 4:
        return []
    chain, total = chain_below(value, graph, norms=False)
    channels = (shape_of(value.shape) or (None,) * 4)[1]
    if not chain or channels is None or not channels.is_static:
        return []
    count = channels.value
    scale, shift = (per_channel(a, 4, 1, count) for a in (total.scale, total.shift))
    last = chain[-1]
    if scale is None or shift is None or not any(
            is_op(user, *_READERS) and index == 0 for user, index in last.outputs[0].uses()):
        return []
    if not (fits(scale, ir.DataType.FLOAT) and fits(shift, ir.DataType.FLOAT)):
        return []
    parts = {"scale": scale, "shift": shift, "mean": np.zeros(count), "variance": np.ones(count)}
    inputs = [constants.make(f"{last.name}_{name}", array, ir.DataType.FLOAT) for name, array in parts.items()]
    norm = ir.node("BatchNormalization", [value, *inputs], {"epsilon": 0.0},
                   name=constants.names.node(f"{last.name}_norm"))
    result = norm.outputs[0]
    result.name = constants.names.value(f"{last.outputs[0].name}_norm")
    result.type, result.shape = last.outputs[0].type, last.outputs[0].shape
    last.append(norm)
    replace(last.outputs[0], result, constants.model.graph)
    for gone in reversed(chain):
        remove(gone)
    return chain


def blocked(value: ir.Value) -> bool:
    """Whether ONNX Runtime has `value` in its blocked layout: a convolution made it, perhaps with an activation."""
    node = value.producer()
    while node is not None:
        if is_op(node, "Conv"):
            return True
        source = _activated(node)
        node = None if source is None else source.producer()
    return False


def _activated(node: ir.Node) -> ir.Value | None:
    """x, where `node` is an activation of x: a single op, or x times a sigmoid of x."""
    if is_op(node, *_ACTIVATIONS):
        return node.inputs[0]
    if is_op(node, "Mul"):
        for gate, other in ((0, 1), (1, 0)):
            value, x = node.inputs[gate], node.inputs[other]
            producer = None if value is None else value.producer()
            if producer is not None and is_op(producer, "Sigmoid", "HardSigmoid") and producer.inputs[0] is x:
                return x
    return None
