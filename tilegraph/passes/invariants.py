"""What must hold of a model between any two stages. Tests call it after every stage; `CheckInstrument` after a pass."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from tilegraph.errors import InternalError
from tilegraph.io.bare import without_weights
from tilegraph.io.check import complaint_of
from tilegraph.io.walk import subgraphs_of


def check_model(model: ir.Model, *, onnx_checker: bool = True, types: bool = True) -> None:
    """Checks single assignment, order, producers, ownership, names, constants and outputs of `model`.

    With `onnx_checker`, also onnx's own checker on the serialized model without weights; with `types` as well, onnx's
    strict inference: types and shapes that the model states must be possible ones.
    Raises InternalError that lists every violation, one a line. The model is not changed.
    """
    found = list(violations(model))
    if onnx_checker and not found:
        bare = without_weights(model)
        complaint = complaint_of(bare)
        if complaint:
            found.append(f"onnx's checker: {complaint}")
        elif types:
            inferred = inference_complaint(model)
            if inferred:
                found.append(f"onnx's inference: {inferred}")
    if found:
        raise InternalError("the model is inconsistent:\n" + "\n".join(found))


def inference_complaint(model: ir.Model) -> str | None:
    """What onnx's strict inference of types and shapes says against `model`, in one line; None where it agrees."""
    try:
        onnx.shape_inference.infer_shapes(without_weights(model), check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        return " ".join(str(error).split())
    return None


def violations(model: ir.Model) -> Iterator[str]:
    """What is wrong with the structure of `model`, one sentence each."""
    graph = model.graph
    if not graph.outputs:
        yield "the graph has no outputs"
    nodes: dict[str, ir.Node] = {}
    yield from _scope(graph, {}, nodes, "graph")
    for function in model.functions.values():
        yield from _scope(function.graph, {}, {}, f"function {function.name}")
    for domain in {n.domain for n in nodes.values()}:
        if domain not in model.graph.opset_imports:
            yield f"domain '{domain}' is used but its opset is not imported"


def _scope(graph: ir.Graph, outer: dict[str, ir.Value], nodes: dict[str, ir.Node], where: str) -> Iterator[str]:
    visible = dict(outer)

    def define(value: ir.Value, what: str) -> Iterator[str]:
        if not value.name:
            yield f"{where}: {what} has no name"
        elif visible.get(value.name) is not value:
            if value.name in visible:
                yield f"{where}: the name '{value.name}' is assigned twice ({what})"
            visible[value.name] = value

    for value in graph.inputs:
        yield from define(value, "an input")
    for name, value in graph.initializers.items():
        yield from define(value, "an initializer")
        yield from _initializer(name, value, where)
    for node in graph:
        label = f"{where}: node '{node.name}' ({node.op_type})"
        if not node.name:
            yield f"{label} has no name"
        elif nodes.setdefault(node.name, node) is not node:
            yield f"{label}: its name is used twice"
        if node.graph is not graph:
            yield f"{label} belongs to another graph"
        for index, given in enumerate(node.inputs):
            if given is None:
                continue
            if not given.name or visible.get(given.name) is not given:
                yield f"{label}: input {index} '{given.name}' is not defined before it"
            if (node, index) not in given.uses():
                yield f"{label}: input {index} '{given.name}' does not know this use"
        for inner in subgraphs_of(node):
            yield from _scope(inner, visible, nodes, f"subgraph {inner.name} of '{node.name}'")
        for index, value in enumerate(node.outputs):
            if value.producer() is not node:
                yield f"{label}: output {index} names another producer"
            if value.name:
                yield from define(value, f"output {index} of '{node.name}'")
            elif value.uses():
                yield f"{label}: output {index} is used and has no name"
    for value in graph.outputs:
        if not value.name or visible.get(value.name) is not value:
            yield f"{where}: output '{value.name}' is not defined"
        elif value.name in outer:
            yield f"{where}: output '{value.name}' belongs to an outer graph"


def _initializer(name: str, value: ir.Value, where: str) -> Iterator[str]:
    tensor = value.const_value
    if name != value.name:
        yield f"{where}: initializer '{value.name}' is filed under '{name}'"
    if tensor is None:
        yield f"{where}: initializer '{name}' has no data"
        return
    if value.dtype is not None and value.dtype != tensor.dtype:
        yield f"{where}: initializer '{name}' is {tensor.dtype.name} but its value says {value.dtype.name}"
    if value.shape is not None:
        declared = tuple(value.shape)
        actual = tuple(tensor.shape.numpy())
        if len(declared) != len(actual) or any(isinstance(d, int) and d != a
                                               for d, a in zip(declared, actual, strict=False)):
            yield f"{where}: initializer '{name}' has shape {list(actual)} but its value says {value.shape}"
