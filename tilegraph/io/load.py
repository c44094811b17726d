"""Load an ONNX model: checked, memory-mapped, functions inlined, names unique."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from tilegraph.errors import InputError
from tilegraph.io.bare import without_weights
from tilegraph.io.check import OF_RUNTIME, check_opset, check_sizes, check_types, complaint_of
from tilegraph.io.external import check_external, map_externals
from tilegraph.io.freeze import freeze_dims
from tilegraph.io.inline import inline_functions
from tilegraph.io.names import fix_names, name_dims
from tilegraph.io.own import own_tensors
from tilegraph.io.parse import parse_proto, read_proto
from tilegraph.io.sparse import densify
from tilegraph.io.walk import all_graphs
from tilegraph.spec.given import GivenDims

# Functions need IR 8, shapes inside them IR 10; nothing between 4 and 10 changes what a model means.
_MIN_IR_VERSION = 10

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


def load(source: ModelSource, *, dims: GivenDims | None = None) -> ir.Model:
    """The model in `source`: a path, the bytes of a file, a ModelProto or an ir.Model (neither of which is changed).

    Weights in external data stay memory-mapped. `dims` gives integers for symbolic extents of the graph inputs, or
    what they are made of (`{"total": "past+seq"}`).
    The result has: functions inlined except those of domain `ai.tilegraph`; a unique name for every node and value;
    a symbol for every extent of a graph input that is not an integer; the default domain spelled ""; IR version 10 or
    later; before IR version 4, initializers that were listed as inputs no longer are.

    Raises InputError (exit code 2) that names the object, the reason and the fix: a file that is missing, truncated
    or not ONNX; external data that is missing, short or outside the folder; an invalid graph; opsets outside 7 to
    28; no outputs; UsageError for wrong `dims`.
    """
    if isinstance(source, ir.Model):
        model, name = source.clone(), source.graph.name or "the model"
        if not model.graph.outputs:
            raise InputError(f"{name} has no graph outputs; export it with at least one")
        check_opset(_imports_only(model), name)
    else:
        path = None
        if isinstance(source, onnx.ModelProto):
            proto, name = source, source.graph.name or "the model"
        elif isinstance(source, bytes):
            proto, name = parse_proto(source, "the given bytes"), "the model"
        else:
            path = Path(source)
            proto, name = read_proto(path), str(path)
        model = _from_proto(proto, path, name)
    if isinstance(source, (ir.Model, onnx.ModelProto)):
        own_tensors(model)
    _settle_domains(model)
    _settle_norms(model)
    _settle_inputs(model)
    inline_functions(model)
    fix_names(model)
    aliases = name_dims(model)
    if dims:
        freeze_dims(model, dims, aliases)
    return model


def _from_proto(proto: onnx.ModelProto, path: Path | None, name: str) -> ir.Model:
    check_opset(proto, name)
    if not proto.graph.output:
        raise InputError(f"{name} has no graph outputs; export it with at least one")
    check_types(proto, name)
    check_external(proto, path)
    if any(proto.graph.sparse_initializer):
        proto = densify(proto, name)
    complaint = complaint_of(proto)
    unsorted = "topologically sorted" in complaint
    if complaint and not unsorted:
        raise InputError(f"{name} is not a valid model: {complaint}")
    check_sizes(proto, name)
    try:
        model = ir.serde.deserialize_model(proto)
    except ir.serde.SerdeError as error:
        raise InputError(f"{name} is not a valid model: {error.__cause__ or error}") from error
    _keep_input_shapes(model, proto)
    if unsorted:
        _sort(model, complaint, name)
    if path is not None:
        map_externals(model, path.parent)
    return model


def _keep_input_shapes(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Inputs that are outputs, too, keep the shapes that they have as inputs: outputs often declare none."""
    outputs = {o.name for o in proto.graph.output}
    for value, info in zip(model.graph.inputs, proto.graph.input, strict=True):
        if info.name in outputs:
            value.shape = ir.serde.deserialize_type_proto_for_shape(info.type)


def _sort(model: ir.Model, complaint: str, name: str) -> None:
    """Orders the nodes; the same complaint can also mean a value that nobody makes, or a cycle."""
    try:
        model.graph.sort()
    except ValueError:
        raise InputError(f"{name} is not a valid model: its nodes form a cycle; export it again") from None
    if complaint_of(without_weights(model)):
        raise InputError(f"{name} is not a valid model: {complaint}")


def _imports_only(model: ir.Model) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    return proto


def _settle_domains(model: ir.Model) -> None:
    """One spelling, "", for the default domain, in imports and nodes."""
    scopes = [model.graph.opset_imports, *(f.opset_imports for f in model.functions.values())]
    for imports in scopes:
        if "ai.onnx" in imports:
            version = imports.pop("ai.onnx")
            imports.setdefault("", version)
    for graph, _ in _scopes(model):
        for node in graph:
            if node.domain == "ai.onnx":
                node.domain = ""


def _settle_norms(model: ir.Model) -> None:
    """ONNX Runtime's own normalisations get the attribute that is optional: version 1.32 ends the process where one
    without it stands in a function, as in the body of a fused op."""
    for graph, opset in _scopes(model):
        for node in graph:
            if node.op_type in ("LayerNormalization", "SimplifiedLayerNormalization") and node.domain == "" \
                    and opset < OF_RUNTIME[node.op_type] and "stash_type" not in node.attributes:
                node.attributes.add(ir.AttrInt64("stash_type", int(ir.DataType.FLOAT)))


def _scopes(model: ir.Model) -> Iterator[tuple[ir.Graph, int]]:
    """Every graph, those of functions and bodies included, and its opset."""
    yield from ((graph, model.opset_imports.get("", 0)) for graph in all_graphs(model))
    for function in model.functions.values():
        yield from ((graph, function.opset_imports.get("", 0)) for graph in (function.graph, *function.subgraphs()))


def _settle_inputs(model: ir.Model) -> None:
    """Before IR version 4 initializers had to be inputs too; nothing may feed them, so they are plain constants."""
    if model.ir_version < 4:
        kept = [v for v in model.graph.inputs if not v.is_initializer()]
        model.graph.inputs.clear()
        model.graph.inputs.extend(kept)
    model.ir_version = max(model.ir_version or 0, _MIN_IR_VERSION)
