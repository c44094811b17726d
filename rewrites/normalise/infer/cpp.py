"""onnx's own shape inference, one node at a time, for ops that have no rule here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx
import onnx_ir as ir

from tilegraph.rewrites.normalise.infer.info import Info, Shape
from tilegraph.spec.dims import Dim

_DATA_LIMIT = 4096  # bytes of a constant input that the inference may look at


@lru_cache(maxsize=4096)
def _schema(domain: str, op: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def knows(domain: str, op: str, version: int) -> bool:
    """Whether onnx has a schema of this op."""
    return _schema(domain, op, version) is not None


def infer_node(node: ir.Node, infos: Mapping[ir.Value, Info], opsets: Mapping[str, int]) -> list[Info] | None:
    """The outputs of `node`, or None when onnx cannot say (no schema, unknown input types, or an error)."""
    schema = _schema(node.domain, node.op_type, opsets.get(node.domain, 1))
    if schema is None:
        return None
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    names: list[str] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            names.append("")
            continue
        name = f"i{index}"
        names.append(name)
        made = _type_proto(value, infos.get(value))
        if made is None:
            return None
        types[name] = made
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input() and tensor.nbytes <= _DATA_LIMIT:
            data[name] = ir.serde.serialize_tensor(tensor)
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names)
    proto.output.extend(f"o{i}" if o.name else "" for i, o in enumerate(node.outputs))
    for attribute in node.attributes.values():
        if attribute.is_ref() or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        proto.attribute.append(ir.serde.serialize_attribute(attribute))
    imports = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except Exception:  # its errors have no common base; an answer that it cannot give is "unknown"
        return None
    return [_info(found.get(f"o{i}")) for i in range(len(node.outputs))]


def _type_proto(value: ir.Value, info: Info | None) -> onnx.TypeProto | None:
    if isinstance(value.type, (ir.SequenceType, ir.OptionalType, ir.SparseTensorType)):
        return ir.serde.serialize_type(value.type)
    if info is not None and info.dtype is not None:
        proto = onnx.TypeProto()
        proto.tensor_type.elem_type = info.dtype.value
        if info.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in info.shape:
                made = proto.tensor_type.shape.dim.add()
                as_int = None if dim is None else dim.as_int()
                if as_int is not None:
                    made.dim_value = as_int
                elif dim is not None:
                    made.dim_param = str(dim)
        return proto
    return ir.serde.serialize_type(value.type) if value.type is not None else None


def _info(proto: onnx.TypeProto | None) -> Info:
    if proto is None or not proto.HasField("tensor_type"):
        return Info()
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Info(dtype)
    shape: Shape = tuple(
        Dim.of(d.dim_value) if d.HasField("dim_value") else Dim.of(d.dim_param) if d.dim_param else None
        for d in tensor.shape.dim
    )
    return Info(dtype, shape)
