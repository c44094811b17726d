"""Tensors whose names are the model's own.

Renaming a value renames its tensor, and a tensor that wraps a TensorProto renames that too. What a caller passed in
must stay as it is, so the model gets tensors of its own, with the contents of the caller's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.io.walk import all_graphs


def own_tensors(model: ir.Model) -> None:
    """Replaces every tensor of initializers and attributes by one that shares its contents but not its name."""
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _own(value.const_value)
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    own = ir.AttrTensor(attribute.name, _own(attribute.as_tensor()))
                elif attribute.type == ir.AttributeType.TENSORS:
                    own = ir.AttrTensors(attribute.name, [_own(t) for t in attribute.as_tensors()])
                else:
                    continue
                node.attributes[attribute.name] = own


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from all_graphs(model)
    for function in model.functions.values():
        yield function.graph
        yield from function.subgraphs()


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, ir.TensorProtoTensor):
        return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    return copy.copy(tensor)
