"""Common subexpressions: of two nodes with the same op, inputs and attributes, the later gives way to the earlier.

Refused: random ops, ops with subgraphs, ops of domains whose meaning is unknown (they may draw random numbers or keep
state), attributes that are parameters, and Identity (see `identity`). Only nodes of one graph are compared: a branch
that uses a node of the outer graph instead of its own would make the outer one run when it was not needed.
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import PURE_DOMAINS, is_op, is_random, is_used, remove, replace

_TENSOR_LIMIT = 4096  # bytes; larger attribute tensors are compared by identity


class CommonSubexpressions(Pass):
    name = "cse"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        opset = model.graph.opset_imports.get("", 1)
        for graph in all_graphs(model):
            seen: dict[Hashable, ir.Node] = {}
            for node in list(graph):
                key = _key(node, opset)
                if key is None:
                    continue
                first = seen.setdefault(key, node)
                if first is node:
                    continue
                for old, new in zip(node.outputs, first.outputs, strict=True):
                    if is_used(old):
                        replace(old, new, model.graph)
                remove(node)
                modified = True
        return PassResult(modified)


def _key(node: ir.Node, opset: int) -> Hashable | None:
    """Equal for nodes that compute the same; None for nodes that must not be merged."""
    if node.domain not in PURE_DOMAINS or is_random(node, opset) or is_op(node, "Identity"):
        return None
    attributes: list[Hashable] = []
    for name in sorted(node.attributes):
        content = _attribute_key(node.attributes[name])
        if content is None:
            return None
        attributes.append((name, content))
    present = tuple(bool(o.name) for o in node.outputs)
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return node.domain, node.op_type, tuple(id(v) for v in inputs), present, tuple(attributes)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    kinds = ir.AttributeType
    if attribute.is_ref():
        return None
    value = attribute.value
    if attribute.type in (kinds.INT, kinds.STRING):
        return attribute.type, value
    if attribute.type == kinds.FLOAT:
        return attribute.type, float(value).hex()  # tells 0.0 from -0.0
    if attribute.type in (kinds.INTS, kinds.STRINGS):
        return attribute.type, tuple(value)
    if attribute.type == kinds.FLOATS:
        return attribute.type, tuple(float(v).hex() for v in value)
    if attribute.type == kinds.TENSOR:
        if value.nbytes > _TENSOR_LIMIT or value.dtype == ir.DataType.STRING:
            return attribute.type, id(value)
        return attribute.type, value.dtype, tuple(value.shape.numpy()), value.tobytes()
    return None
