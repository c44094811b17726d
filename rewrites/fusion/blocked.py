"""What ONNX Runtime keeps in its blocked convolution layout, and what a kernel in the middle costs.

ONNX Runtime runs two-dimensional float32 convolutions on channels in blocks of 8 or 16, and converts where a value
leaves or enters that layout. These stay inside: pooling, BatchNormalization, activations, sums and products of two
blocked values of one shape, Concat of channels. These do not: everything that broadcasts (the scales of
squeeze-and-excite, a constant), x * Sigmoid(x), which becomes its QuickGelu, and views. A kernel reads and writes plain
values, so it costs a conversion only where ONNX Runtime alone would have made none.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.rewrites.normalise.edit import groups_of

_CONVS = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_ACTIVATIONS = frozenset({"Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish"})
_JOINS = frozenset({"Add", "Sum", "Mul"})
_BLOCK = 16  # channels, with AVX-512
_DEPTH = 32  # of chains of sums that are followed


def is_blocked(value: ir.Value, depth: int = _DEPTH) -> bool:
    """Whether ONNX Runtime alone would make `value` in the blocked layout."""
    node = value.producer()
    if node is None or node.domain != "" or value.shape is None or len(value.shape) != 4 or depth == 0:
        return False
    if value.dtype != ir.DataType.FLOAT:
        return False
    if node.op_type in ("Conv", "BatchNormalization") or node.op_type in _CONVS:
        source = node.inputs[0]
        if node.op_type == "Conv":
            return not has_small_groups(node)
        return source is not None and is_blocked(source, depth - 1)
    gated = gate_of(node)
    if gated is not None:
        return gated.op_type == "HardSigmoid" and _all_blocked(gated.inputs, depth)
    if node.op_type in _ACTIVATIONS:
        return _all_blocked(node.inputs[:1], depth)
    if node.op_type in _JOINS:
        return _all_blocked(node.inputs, depth) and len({str(v.shape) for v in node.inputs if v is not None}) == 1
    if node.op_type == "Concat":
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        return axis in (1, -3) and _all_blocked(node.inputs, depth)
    return False


def has_small_groups(node: ir.Node) -> bool:
    """Whether `node` is a Conv in groups that are no whole blocks and not depthwise: on plain values, then."""
    weights = node.inputs[1] if node.op_type == "Conv" else None
    groups = groups_of(node)
    if groups == 1 or weights is None or weights.shape is None or len(weights.shape) < 2:
        return False
    filters, depth = weights.shape[0], weights.shape[1]
    if not isinstance(filters, int) or not isinstance(depth, int):
        return False
    depthwise = depth == 1 and filters == groups
    return filters % _BLOCK != 0 or not (depthwise or depth % _BLOCK == filters // groups % _BLOCK == 0)


def _all_blocked(values: Iterable[ir.Value | None], depth: int) -> bool:
    return all(v is not None and is_blocked(v, depth - 1) for v in values)


def gate_of(node: ir.Node) -> ir.Node | None:
    """The sigmoid, hard or not, of x where `node` is x times it."""
    if node.op_type != "Mul" or len(node.inputs) != 2:
        return None
    for gate, other in ((0, 1), (1, 0)):
        value = node.inputs[gate]
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type in ("Sigmoid", "HardSigmoid") and (
                producer.inputs[0] is node.inputs[other]):
            return producer
    return None


def _stays(reader: ir.Node, view: GraphView) -> bool:
    """Whether `reader`, one of a blocked value, works on that layout."""
    if reader.op_type in _CONVS:
        return True
    if reader.op_type in ("Sigmoid", "HardSigmoid"):
        # The gate of a product: what the product becomes decides.
        products = [u for u in view.users(reader.outputs[0]) if gate_of(u) is reader]
        if products:
            return all(is_blocked(u.outputs[0]) for u in products)
    return is_blocked(reader.outputs[0])


def cut_out(inputs: Iterable[ir.Value], outputs: Iterable[ir.Value], members: set[ir.Node],
            view: GraphView) -> list[ir.Value]:
    """The values at the edge of a kernel of `members` for which it adds a conversion."""
    found = [v for v in inputs if is_blocked(v) and all(_stays(u, view) for u in view.users(v))
             and v not in view.outputs]
    found += [v for v in outputs if is_blocked(v) and any(_stays(u, view) for u in view.users(v) if u not in members)]
    return found


def free_in_runtime(node: ir.Node, view: GraphView) -> bool:
    """What ONNX Runtime folds into a convolution: padding, an activation, hard swish, a residual sum."""
    if node.op_type == "Pad":
        users = view.users(node.outputs[0])
        return bool(users) and all(u.op_type in _CONVS for u in users)
    gate = gate_of(node)
    if gate is None and node.op_type == "HardSigmoid":
        products = [u for u in view.users(node.outputs[0]) if gate_of(u) is node]
        gate = node if products and len(view.users(node.outputs[0])) == 1 else None
    if gate is not None and gate.op_type == "HardSigmoid" and gate.inputs[0] is not None:
        producer = gate.inputs[0].producer()
        return producer is not None and producer.op_type == "Conv" and len(view.users(producer.outputs[0])) == 2
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type != "Conv" or len(view.users(producer.outputs[0])) != 1:
            continue
        if node.op_type == "Add" and has_small_groups(producer):
            continue
        if node.op_type in _ACTIVATIONS:
            return True
        if node.op_type == "Add" and not any(v is not None and v.const_value is not None for v in node.inputs):
            return True
    return False
