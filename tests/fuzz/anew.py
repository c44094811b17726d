"""The same model in other words: with other names and constants, or for another opset, its kernels are the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from tests.fuzz.graphs import captured_names, free_names
from tilegraph.io.check import complaint_of


def symbols(made: Any) -> Counter[str]:
    """The kernels that a compiled model calls, and how often."""
    return Counter(c.symbol for p in made.manifest.programs.values() for c in p.calls)


def _inner_reads(graph: onnx.GraphProto) -> set[str]:
    return {i for n in graph.node for i in captured_names(n)}


def renamed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Other names for all inner values and nodes, Identity nodes on some edges, and constants that several nodes read
    copied for each."""
    rng = np.random.default_rng(seed + 2)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    outside = {v.name for v in (*graph.input, *graph.output)}
    constants = {t.name: t for t in graph.initializer if t.name not in outside}
    captured = _inner_reads(graph)
    nodes: list[onnx.NodeProto] = []
    new: dict[str, str] = {}
    for index, node in enumerate(graph.node):
        for k, name in enumerate(node.input):
            if name in constants and name not in captured:
                twin = onnx.TensorProto()
                twin.CopyFrom(constants[name])
                twin.name = f"constant_{index}_{k}"
                graph.initializer.append(twin)
                node.input[k] = twin.name
            elif name and name not in constants:
                node.input[k] = new.get(name, name)
                if rng.random() < 0.15:
                    nodes.append(helper.make_node("Identity", [node.input[k]], [f"same_{index}_{k}"]))
                    node.input[k] = f"same_{index}_{k}"
        for k, name in enumerate(node.output):
            if name and name not in outside and name not in captured:
                new[name] = f"renamed_{index}_{k}"
                node.output[k] = new[name]
        node.name = f"other_{index}"
        nodes.append(node)
    read = {i for n in nodes for i in n.input} | captured | outside
    kept = [t for t in graph.initializer if t.name in read]
    for info in graph.value_info:
        info.name = new.get(info.name, info.name)
    return _with(copy, nodes, kept)


def reordered(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The nodes in another order that respects what each of them reads."""
    rng = np.random.default_rng(seed + 4)
    waiting, ready = list(model.graph.node), []
    made_here = {o for n in waiting for o in n.output}
    known: set[str] = set()
    while waiting:
        free = [n for n in waiting if not (set(free_names(n)) & made_here) - known]
        chosen = free[int(rng.integers(len(free)))]
        waiting.remove(chosen)
        ready.append(chosen)
        known |= set(chosen.output)
    return _with(model, ready, list(model.graph.initializer))


def split_constants(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Some constants as a Concat of their two halves."""
    rng = np.random.default_rng(seed + 5)
    nodes, kept = [], []
    outside = {v.name for v in (*model.graph.input, *model.graph.output)}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name in outside or array.ndim == 0 or array.shape[0] < 2 or rng.random() < 0.5:
            kept.append(tensor)
            continue
        half = array.shape[0] // 2
        parts = [array[:half], array[half:]]
        kept += [numpy_helper.from_array(np.ascontiguousarray(p), f"{tensor.name}_{k}") for k, p in enumerate(parts)]
        nodes.append(helper.make_node("Concat", [f"{tensor.name}_0", f"{tensor.name}_1"], [tensor.name], axis=0))
    return _with(model, [*nodes, *model.graph.node], kept)


def raised(model: onnx.ModelProto, seed: int) -> onnx.ModelProto | None:
    """For the next opset by onnx's converter, and nothing more said of shapes; None where that cannot, makes no valid
    model (Pad keeps an attribute that Pad-11 lacks), or would leave out functions."""
    (opset,) = (o.version for o in model.opset_import if o.domain == "")
    if model.functions or any(a.type == onnx.AttributeProto.GRAPH for n in model.graph.node for a in n.attribute):
        return None
    try:
        made = version_converter.convert_version(model, opset + 1)
    except RuntimeError:
        return None
    again = _with(made, list(made.graph.node), list(made.graph.initializer), model)
    return None if complaint_of(again) else again


def _with(model: onnx.ModelProto, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto],
          declared: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """`declared`: where the inputs, the outputs and the shapes are from, if not from the model itself."""
    outside = (declared or model).graph
    graph = helper.make_graph(nodes, "anew", outside.input, outside.output, constants, value_info=outside.value_info)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version,
                             functions=model.functions)


SPELLINGS = (renamed, split_constants, raised)
