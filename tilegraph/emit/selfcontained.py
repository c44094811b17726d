"""Tensors inside the model file instead of references to data files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from tilegraph.errors import InputError

MAX_BYTES = (1 << 31) - 1  # protobuf's limit for one message


def serialize(model: ir.Model, path: Path) -> bytes:
    """The model with all its weights as the bytes of one file. `model` is unchanged; `path` is for the message.

    Raises `InputError` if there would be more than 2 GB.
    """
    total = sum(v.const_value.nbytes for g in graphs(model) for v in g.initializers.values()
                if v.const_value is not None)
    if total > MAX_BYTES:
        raise _too_large(path, total)
    try:
        with inline_attributes(model), _inline_initializers(model):
            proto = ir.serde.serialize_model(model)
        size = proto.ByteSize()
        if size <= MAX_BYTES:
            return bytes(proto.SerializeToString(deterministic=True))
    except ValueError as error:  # protobuf's own complaint about its limit
        raise _too_large(path, total) from error
    raise _too_large(path, size)


@contextmanager
def inline_attributes(model: ir.Model) -> Iterator[None]:
    """Within the block, tensors in attributes that live in a data file are written into the model.

    (ONNX allows them there; a copied model would still point at the original's file.)
    """
    undo: list[tuple[ir.Node, ir.Attr]] = []
    try:
        for graph in graphs(model):
            for node in graph:
                for attribute in [*node.attributes.values()]:
                    inline = _inline_attribute(attribute)
                    if inline is not None:
                        undo.append((node, attribute))
                        node.attributes[attribute.name] = inline
        yield
    finally:
        for node, attribute in undo:
            node.attributes[attribute.name] = attribute


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the bodies of functions, and all graphs within them."""
    for root in (model.graph, *(f.graph for f in model.functions.values())):
        yield root
        yield from root.subgraphs()


@contextmanager
def _inline_initializers(model: ir.Model) -> Iterator[None]:
    undo: list[tuple[ir.Value, ir.ExternalTensor]] = []
    try:
        for graph in graphs(model):
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    undo.append((value, value.const_value))
                    value.const_value = _in_memory(value.const_value)
        yield
    finally:
        for value, tensor in undo:
            value.const_value = tensor


def _inline_attribute(attribute: ir.Attr) -> ir.Attr | None:
    if attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
        return ir.AttrTensor(attribute.name, _in_memory(attribute.value))
    if attribute.type == ir.AttributeType.TENSORS and any(isinstance(t, ir.ExternalTensor) for t in attribute.value):
        return ir.AttrTensors(attribute.name, [_in_memory(t) if isinstance(t, ir.ExternalTensor) else t
                                               for t in attribute.value])
    return None


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """The same tensor, not recognised as an external one; its bytes are read when the model is serialised."""
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name,
                         doc_string=tensor.doc_string)


def _too_large(path: Path, size: int) -> InputError:
    return InputError(f"{path}: the self-contained model would have {size / 1e9:.2f} GB, more than one file of this "
                      "format can hold (2 GB); leave out --embed")
