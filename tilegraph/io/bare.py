"""A model without its weights: for checks, dumps and viewers."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from tilegraph.io.walk import all_graphs

_WEIGHT_LIMIT = 1024  # bytes


def without_weights(model: ir.Model) -> onnx.ModelProto:
    """A ModelProto in which initializers of more than 1 KiB are only declared; `model` stays as it is.

    Those of the main graph become graph inputs of their type and shape, those of subgraphs empty tensors.
    """
    taken: list[tuple[ir.Value, ir.TensorProtocol]] = []
    declared: list[ir.Value] = []
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and (tensor.nbytes > _WEIGHT_LIMIT or isinstance(tensor, ir.ExternalTensor)):
                taken.append((value, tensor))
                if not value.is_graph_input() and graph is model.graph:
                    declared.append(value)
    try:
        for value, tensor in taken:
            value.const_value = _stub(value.name or "", tensor.dtype)
        proto: onnx.ModelProto = ir.serde.serialize_model(model)
    finally:
        for value, tensor in taken:
            value.const_value = tensor
    names = {v.name for v in declared}
    for entries in (proto.graph.initializer, proto.graph.value_info):
        kept = [e for e in entries if e.name not in names]
        del entries[:]
        entries.extend(kept)
    proto.graph.input.extend(ir.serde.serialize_value(v) for v in declared)
    return proto


def _stub(name: str, dtype: ir.DataType) -> ir.TensorProtocol:
    if dtype == ir.DataType.STRING:
        return ir.StringTensor([], shape=ir.Shape([0]), name=name)
    return ir.serde.deserialize_tensor(onnx.TensorProto(name=name, data_type=dtype.value, dims=[0]))
