"""Which operators are attention, and what takes each apart."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from tilegraph.ops.lower import domain_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators import flex, group_query, multi_head, onnx_attention, packed
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.normalise.edit import Names

Expander = Callable[[Build], list[ir.Value | None]]

_EXPANDERS: dict[tuple[str, str], Expander] = {
    ("", "Attention"): onnx_attention.expand,
    ("com.microsoft", "Attention"): packed.expand,
    ("com.microsoft", "MultiHeadAttention"): multi_head.expand,
    ("com.microsoft", "GroupQueryAttention"): group_query.expand,
}
_FLEX = frozenset({("", "FlexAttention"), ("ai.onnx.preview", "FlexAttention")})
OPERATORS = frozenset({*_EXPANDERS, *(("com.microsoft", name) for name in (
    "QAttention", "PackedMultiHeadAttention", "DecoderMaskedMultiHeadAttention", "SparseAttention"))})


def is_operator(node: ir.Node) -> bool:
    return (domain_of(node), node.op_type) in OPERATORS


def is_flex(node: ir.Node) -> bool:
    return (domain_of(node), node.op_type) in _FLEX


def take_apart(model: ir.Model, node: ir.Node, names: Names, owned: bool = True) -> int:
    """Replaces `node` by standard nodes and says how many; `Decline` with the reason, and the graph as it was."""
    expand = flex.expand if is_flex(node) else _EXPANDERS.get((domain_of(node), node.op_type))
    if expand is None:
        raise Decline(f"the operator {node.op_type} is not taken apart")
    b = Build(node, names, model.graph.opset_imports.get("", 1))
    try:
        results = expand(b)
    except Decline:
        b.abandon()
        raise
    b.finish(results, model.graph, owned)
    return len(b.made)
