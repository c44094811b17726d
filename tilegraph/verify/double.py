"""A float model turned into a double one: the first choice of reference.

Every float16, bfloat16 and float tensor becomes double: inputs, initializers, constants, the targets of casts,
the bodies of If, Loop and Scan. Integers and bools keep their type. A few ops are defined on float only and are
exact or quantising (QuantizeLinear, NonMaxSuppression, the scales of Resize): these keep their type, between two
casts. So does what makes integers of integers by way of floats, as T5's buckets of distances (a logarithm, cut to an
integer): with other roundings it decides otherwise, and what follows is another computation. An op that computes in
float and has no double form makes the model unfit: `NoDoubleForm` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx_ir as ir

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Ops that may stay in float: what they compute is a choice or a rounding to integers, not accumulated arithmetic.
_ISLANDS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "NonMaxSuppression",
    "TfIdfVectorizer",
})
# Attributes that name a floating type to compute or produce in.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "softmax_precision", "output_dtype")
# Both engines compute these in double whatever their stash_type says, and onnx.reference knows only stash_type 1.
_KEEPS_STASH_TYPE = ("LayerNormalization", "RMSNormalization")


class NoDoubleForm(Exception):
    """The model cannot be computed in double; the message names the op."""


def to_double(model: ir.Model) -> None:
    """Converts `model` (functions inlined, types inferred) in place."""
    originals = {id(v): v.dtype for v in _values(model.graph)}
    decisions = _decisions(model.graph, originals)
    for node in tuple(model.graph.all_nodes()):
        if node in decisions:
            _keep(node, decisions, originals)
        else:
            _convert_node(node, model, originals)
    for graph in _graphs(model.graph):
        for value in tuple(graph.initializers.values()):
            tensor = value.const_value
            if tensor is not None and tensor.dtype in _FLOATS:
                value.const_value = ir.Tensor(tensor.numpy().astype(np.float64), name=value.name)
    for value in _values(model.graph):
        if value.dtype in _FLOATS and not value.meta.get("stays_float"):
            value.dtype = ir.DataType.DOUBLE


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    yield graph
    yield from (g for g in graph.subgraphs() if isinstance(g, ir.Graph) and g is not graph)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for inner in _graphs(graph):
        yield from inner.inputs
        yield from inner.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def _decisions(graph: ir.Graph, originals: dict[int, ir.DataType | None]) -> set[ir.Node]:
    """Nodes that compute in floats, from integers and constants alone, what ends in integers and bools alone."""
    def floats(values: Iterable[ir.Value | None]) -> list[ir.Value]:
        return [v for v in values if v is not None and originals.get(id(v)) in _FLOATS]

    order = [node for node in graph.all_nodes() if _is_plain(node, originals)]
    found, before = set(order), -1
    while len(found) != before:  # what is left out takes what reads it and what it reads along
        before = len(found)
        for node in order:
            if any(v.producer() not in found and not _is_constant(v) for v in floats(node.inputs)):
                found.discard(node)
        for node in reversed(order):
            if any(v.is_graph_output() or any(use.node not in found for use in v.uses()) for v in floats(node.outputs)):
                found.discard(node)
    return {node for node in found if floats((*node.inputs, *node.outputs))}


def _is_plain(node: ir.Node, originals: dict[int, ir.DataType | None]) -> bool:
    """Whether the node is no body, nothing random, nothing that keeps its type anyway, and of known types."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    return (node.domain == "" and node.op_type not in _ISLANDS and not node.op_type.startswith("Random")
            and not any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
            and all(originals.get(id(v)) is not None for v in values))


def _is_constant(value: ir.Value) -> bool:
    maker = value.producer()
    return maker.op_type == "Constant" if maker is not None else value.is_initializer() and not value.is_graph_input()


def _keep(node: ir.Node, decisions: set[ir.Node], originals: dict[int, ir.DataType | None]) -> None:
    for index, value in enumerate(node.inputs):
        if value is not None and originals.get(id(value)) in _FLOATS and value.producer() not in decisions:
            _cast_operand(node, index, value, originals)
    for value in node.outputs:
        value.meta["stays_float"] = True


def _convert_node(node: ir.Node, model: ir.Model, originals: dict[int, ir.DataType | None]) -> None:
    _convert_attributes(node)
    floats_in = [(i, v) for i, v in enumerate(node.inputs) if v is not None and originals.get(id(v)) in _FLOATS]
    floats_out = [(i, v) for i, v in enumerate(node.outputs) if originals.get(id(v)) in _FLOATS]
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.name and originals.get(id(value)) is None:
            raise NoDoubleForm(f"the type of {value.name!r} is not known (near {_spelled(node)})")
    if not floats_in and not floats_out:
        return
    version = node.graph.opset_imports.get(node.domain) if node.graph is not None else None
    version = model.opset_imports.get(node.domain, version)
    try:
        schema = onnx.defs.get_schema(node.op_type, version or 1, node.domain)
    except onnx.defs.SchemaError:
        raise NoDoubleForm(f"{_spelled(node)} has no double form") from None
    if "stash_type" in schema.attributes and node.op_type not in _KEEPS_STASH_TYPE:
        node.attributes["stash_type"] = ir.AttrInt64("stash_type", int(ir.DataType.DOUBLE))  # the default is float
    stays = node.op_type in _ISLANDS and node.domain == ""
    for index, value in floats_in:
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if "tensor(double)" in formal.types or any(t.startswith("seq(") for t in formal.types):
            if not stays:
                continue
        elif not stays and formal.type_str != "tensor(float)":
            raise NoDoubleForm(f"{_spelled(node)} has no double form")
        _cast_operand(node, index, value, originals)
    for index, value in floats_out:
        formal = schema.outputs[min(index, len(schema.outputs) - 1)]
        if stays:
            _cast_result(node, value, originals)
        elif "tensor(double)" not in formal.types and not any(t.startswith(("seq(", "opt")) for t in formal.types):
            raise NoDoubleForm(f"{_spelled(node)} has no double form")


def _spelled(node: ir.Node) -> str:
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{name} {node.name!r}" if node.name else name


def _cast_operand(node: ir.Node, index: int, value: ir.Value, originals: dict[int, ir.DataType | None]) -> None:
    dtype = originals[id(value)]
    assert dtype is not None
    assert node.graph is not None
    cast = ir.node("Cast", [value], {"to": ir.AttrInt64("to", int(dtype))})
    narrow = cast.outputs[0]
    narrow.dtype, narrow.meta["stays_float"] = dtype, True
    node.graph.insert_before(node, cast)
    node.replace_input_with(index, narrow)


def _cast_result(node: ir.Node, value: ir.Value, originals: dict[int, ir.DataType | None]) -> None:
    """The node's float output under a new name, cast to double under the old one."""
    dtype = originals[id(value)]
    assert dtype is not None
    assert node.graph is not None
    cast = ir.node("Cast", [value], {"to": ir.AttrInt64("to", int(ir.DataType.DOUBLE))})
    wide = cast.outputs[0]
    node.graph.insert_after(node, cast)
    name = value.name
    value.replace_all_uses_with(wide, replace_graph_outputs=True)
    cast.replace_input_with(0, value)
    value.name, wide.name = f"{name}__float", name
    wide.dtype, wide.shape = ir.DataType.DOUBLE, value.shape
    value.meta["stays_float"] = True
    originals[id(wide)] = dtype


def _convert_attributes(node: ir.Node) -> None:
    if node.op_type in _ISLANDS or node.domain != "":
        return
    attributes = node.attributes
    for name in _TYPE_ATTRIBUTES:
        attr = attributes.get(name)
        if attr is not None and attr.type == ir.AttributeType.INT and attr.as_int() in [int(f) for f in _FLOATS]:
            attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
    # ONNX's defaults are float.
    if node.op_type in ("RandomNormal", "RandomUniform", "HannWindow", "HammingWindow", "BlackmanWindow",
                        "MelWeightMatrix", "SequenceEmpty"):
        name = "dtype" if node.op_type in ("RandomNormal", "RandomUniform", "SequenceEmpty") else "output_datatype"
        if name not in attributes:
            attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
    if node.op_type == "ConstantOfShape" and "value" not in attributes:
        attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.zeros(1)))
    if node.op_type not in ("Constant", "ConstantOfShape"):
        return
    for name in ("value_float", "value_floats"):
        attr = attributes.pop(name, None)
        if attr is not None:
            attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.array(attr.value, dtype=np.float64)))
    attr = attributes.get("value")
    if attr is not None:
        tensor = attr.as_tensor()
        if tensor.dtype in _FLOATS:
            attributes["value"] = ir.AttrTensor("value", ir.Tensor(tensor.numpy().astype(np.float64)))
