"""FlexAttention (ai.onnx.preview), as the function body of its definition: its two modifier graphs become plain nodes.

ONNX Runtime has no kernel for it, so it is always taken apart, whatever becomes of the attention.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.attention.operators.core import repeat_heads


def expand(b: Build) -> list[ir.Value | None]:
    q, k, v = b.needed(0, "Q"), b.needed(1, "K"), b.needed(2, "V")
    if q.dtype is None:
        raise Decline("the dtype of Q is unknown")
    given = b.attr("softmax_precision", None)
    usual = ir.DataType.DOUBLE if q.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    inner = usual if given is None else ir.DataType(given)
    batch, heads, groups, keys = b.extent(q, 0), b.extent(q, 1), b.extent(k, 1), b.extent(k, 2)
    k = repeat_heads(b, k, (batch, groups, keys, b.extent(k, 3)), heads)
    v = repeat_heads(b, v, (batch, groups, keys, b.extent(v, 3)), heads)
    root = _root(b, q)
    scores = b.op("MatMul", b.op("Mul", q, root), b.op("Transpose", b.op("Mul", k, root), perm=[0, 1, 3, 2]))
    scores = _modify(b, "score_mod", _cast(b, scores, q.dtype, inner))
    weights = _modify(b, "prob_mod", b.op("Softmax", scores, axis=-1))
    return [_cast(b, b.op("MatMul", weights, _cast(b, v, q.dtype, inner)), inner, q.dtype)]


def _cast(b: Build, value: ir.Value, have: ir.DataType, want: ir.DataType) -> ir.Value:
    return value if have == want else b.op("Cast", value, to=want)


def _root(b: Build, q: ir.Value) -> ir.Value:
    """The square root of the scale, computed in float32 as the definition does."""
    assert q.dtype is not None
    scale, depth = b.attr("scale", None), b.extent(q, 3)
    if scale is not None:
        return b.scalar(float(np.sqrt(np.float32(scale))), q.dtype)
    if isinstance(depth, int):
        return b.scalar(float(np.sqrt(1 / np.sqrt(np.float32(depth)))), q.dtype)
    size = b.op("Cast", depth, to=ir.DataType.FLOAT)
    root = b.op("Sqrt", b.op("Reciprocal", b.op("Sqrt", size)))
    return _cast(b, root, ir.DataType.FLOAT, q.dtype)


def _modify(b: Build, name: str, value: ir.Value) -> ir.Value:
    """The nodes of the modifier graph, applied to `value`."""
    body = b.attr(name, None)
    if body is None:
        return value
    graph: ir.Graph = body
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise Decline(f"{name} has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs, not one of each")
    copy = graph.clone(allow_outer_scope_values=True)
    for initializer in list(copy.initializers.values()):
        copy.initializers.pop(str(initializer.name))
        initializer.name = b.names.value(f"{b.node.name}/{initializer.name}")
        b.constants.append(initializer)
    given, result = copy.inputs[0], copy.outputs[0]
    made = result is given
    nodes = list(copy)
    copy.outputs.clear()
    copy.remove(nodes)
    given.replace_all_uses_with(value)
    for node in nodes:
        node.name = b.names.node(f"{b.node.name}/{node.name or node.op_type}")
        for output in node.outputs:
            output.name = b.names.value(f"{b.node.name}/{output.name}")
        b.made.append(node)
    return value if made else result


