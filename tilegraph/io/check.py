"""Validity of a model as a graph, without its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import onnx

from tilegraph.errors import InputError
from tilegraph.io.external import iter_node_tensors, iter_tensors

MIN_OPSET, MAX_OPSET = 7, 28
_HIDDEN = "hidden"  # the domain under which the checker does not look at an op
# Ops that ONNX Runtime itself defines in the default domain, and the opset from which ONNX does, or from which they are
# gone. Its own tools write the first two: the transformer optimizer at any opset, the model builder for Llama and such.
OF_RUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": MAX_OPSET + 1, "MeanVarianceNormalization": 9,
               **dict.fromkeys(("Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "ScaledTanh",
                                "ThresholdedRelu"), 10)}
_SMALL = 1024  # bytes; larger tensors are replaced by empty ones before the checker sees the model


def check_opset(proto: onnx.ModelProto, name: str) -> None:
    """Raises InputError when the default domain's opset lies outside 7 to 28, or is stated twice differently."""
    versions = {o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")}
    if len(versions) > 1:
        listing = ", ".join(map(str, sorted(versions)))
        raise InputError(f"{name} imports opsets {listing} of the default domain at once; export it again")
    for version in versions:
        if not MIN_OPSET <= version <= MAX_OPSET:
            fix = "convert it with onnx.version_converter" if version < MIN_OPSET else "export it with an older opset"
            raise InputError(f"{name} uses opset {version}; tilegraph knows opsets {MIN_OPSET} to {MAX_OPSET}: {fix}")


def complaint_of(proto: onnx.ModelProto) -> str:
    """The first complaint of onnx's checker about `proto` without its weights, on one line; empty if there is none.

    More is accepted than the checker accepts alone, because ONNX Runtime runs it: functions of another opset than the
    model's, outputs without type or shape, deprecated ops, ops of its own in the default domain, old initializers that
    are no inputs.
    """
    bare = _without_weights(proto)
    own = [f for f in bare.functions if f.domain not in ("", "ai.onnx")]
    others = [f for f in bare.functions if f.domain in ("", "ai.onnx")]
    # Before IR version 4 every initializer had to be an input too; many exporters did not care, nor does the runtime.
    bare.ir_version = max(bare.ir_version, 4)
    models = [bare, *(_around(f, proto.ir_version) for f in own)]
    del bare.functions[:]
    bare.functions.extend(others)
    for model in models:
        _hide_known(model)
        try:
            onnx.checker.check_model(model.SerializeToString())
        except onnx.checker.ValidationError as error:
            return " ".join(str(error).split())
    return ""


def _around(function: onnx.FunctionProto, ir_version: int) -> onnx.ModelProto:
    """A model that holds only `function`, with the opsets that it asks for."""
    model = onnx.ModelProto(ir_version=max(ir_version, 8), functions=[function], opset_import=function.opset_import)
    if function.domain not in {o.domain for o in function.opset_import}:
        model.opset_import.add(domain=function.domain, version=1)
    model.graph.name = function.name
    return model


def _hide_known(model: onnx.ModelProto) -> None:
    """From the checker, which refuses what ONNX Runtime runs."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in _with_bodies(nodes):
            if node.domain in ("", "ai.onnx") and (opset < OF_RUNTIME.get(node.op_type, 0)
                                                   or _is_deprecated(node.op_type, opset)):
                node.domain = _HIDDEN
                if _HIDDEN not in {o.domain for o in model.opset_import}:
                    model.opset_import.add(domain=_HIDDEN, version=1)
                for function in model.functions:
                    if _HIDDEN not in {o.domain for o in function.opset_import}:
                        function.opset_import.add(domain=_HIDDEN, version=1)


def _with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _with_bodies(graph.node)


@lru_cache(maxsize=4096)
def _is_deprecated(op: str, opset: int) -> bool:
    try:
        return bool(onnx.defs.get_schema(op, opset, "").deprecated)
    except onnx.defs.SchemaError:
        return False


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    bare = onnx.ModelProto()
    for field, content in proto.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(bare, field.name).extend(content)
        else:
            setattr(bare, field.name, content)
    bare.graph.SetInParent()
    for field, content in proto.graph.ListFields():
        if field.name == "initializer":
            for tensor in content:
                _add_bare(bare.graph, tensor)
        elif field.name == "sparse_initializer":
            continue  # densified before the checker runs
        elif field.is_repeated:
            getattr(bare.graph, field.name).extend(content)
        else:
            setattr(bare.graph, field.name, content)
    _complete(bare.graph)
    for node in bare.graph.node:
        for tensor in iter_node_tensors(node):
            _empty(tensor)
    for function in bare.functions:
        for node in function.node:
            for tensor in iter_node_tensors(node):
                _empty(tensor)
    return bare


def _complete(graph: onnx.GraphProto) -> None:
    """The checker wants a type and a shape where a model may leave them to inference; it does not compare them."""
    for value in graph.output:
        if not value.type.WhichOneof("value"):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in (*graph.input, *graph.output):
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()


def _add_bare(graph: onnx.GraphProto, tensor: onnx.TensorProto) -> None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.raw_data) > _SMALL:
        graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
    else:
        graph.initializer.add().CopyFrom(tensor)


def _empty(tensor: onnx.TensorProto) -> None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        stub = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
        tensor.CopyFrom(stub)


def check_types(proto: onnx.ModelProto, name: str) -> None:
    """Raises InputError for inputs or outputs of map type: a ZipMap makes them, for hosts in Python."""
    for value in (*proto.graph.input, *proto.graph.output):
        kind = value.type
        while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = getattr(kind, kind.WhichOneof("value")).elem_type
        if kind.WhichOneof("value") == "map_type":
            raise InputError(f"{name}: '{value.name}' is a map, which tilegraph does not support; export the model "
                             "without ZipMap (skl2onnx: options zipmap=False)")


def check_sizes(proto: onnx.ModelProto, name: str) -> None:
    """Raises InputError for a tensor whose raw bytes do not fit its type and shape (the checker skips large ones)."""
    for tensor in iter_tensors(proto.graph):
        if not tensor.HasField("raw_data") or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        bits = _BITS.get(tensor.data_type)
        if bits is None:
            continue
        count = 1
        for d in tensor.dims:
            count *= d
        if len(tensor.raw_data) != (count * bits + 7) // 8:
            raise InputError(
                f"{name}: tensor '{tensor.name}' of shape {list(tensor.dims)} should have {(count * bits + 7) // 8} "
                f"bytes and has {len(tensor.raw_data)}; export the model again"
            )


def _bit_widths() -> dict[int, int]:
    import onnx_ir as ir

    return {t.value: t.bitwidth for t in ir.DataType if t not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}


_BITS = _bit_widths()
