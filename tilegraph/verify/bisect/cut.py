"""Pieces of a model that run by themselves: some of its nodes, fed with the values that the whole model had there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph import io
from tilegraph.verify.run import Feeds, ModelRun, open_runner

Array = np.ndarray[Any, Any]


def record(model: ir.Model, feeds: Feeds, threads: int | None, folder: Path) -> dict[str, Array]:
    """Every tensor of the main graph by name, as ONNX Runtime computes it without optimizations from `feeds`.

    `folder` takes the file that runs. Raises RunFailure.
    """
    copy = model.clone()
    have = {v.name for v in copy.graph.outputs}
    for node in copy.graph:
        for value in node.outputs:
            if value.name and value.name not in have and not isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
                copy.graph.outputs.append(value)
    path = folder / "recorded.onnx"
    io.save(copy, path)
    runner = open_runner(ModelRun(str(path), threads=threads), isolate=False)
    try:
        names = [name for name, _ in runner.signature[1]]
        found = {k: v for k, v in zip(names, runner.run(feeds), strict=True) if isinstance(v, np.ndarray)}
    finally:
        runner.close()
    return {**{k: v for k, v in feeds.items() if isinstance(v, np.ndarray)}, **found}


def ancestors(outputs: Iterable[ir.Value]) -> set[ir.Node]:
    """The nodes that `outputs` depend on, those that feed bodies of control flow included."""
    found: set[ir.Node] = set()
    queue = [v.producer() for v in outputs]
    while queue:
        node = queue.pop()
        if node is None or node in found:
            continue
        found.add(node)
        queue += [v.producer() for v in _reads(node)]
    return found


def constant_nodes(graph: ir.Graph) -> set[ir.Node]:
    """Nodes whose results do not depend on the graph's inputs. They stay with whoever reads them: a shape or an axis
    that became an input would be another model."""
    fixed: set[ir.Node] = set()
    for node in graph:
        made = [v.producer() for v in _reads(node)]
        if not any(v.is_graph_input() for v in _reads(node)) and all(p is None or p in fixed for p in made):
            fixed.add(node)
    return fixed


def cut(model: ir.Model, keep: Collection[str], outputs: Sequence[str], values: Mapping[str, Array],
        ) -> tuple[ir.Model, Feeds] | None:
    """A model of the nodes named `keep` that gives `outputs`, and what to feed it with; None where that needs a value
    that cannot be an input (a sequence, or one that `values` lacks).

    Values that the kept nodes read from others become inputs, with the shape that the model states if it has one.
    """
    copy = model.clone()
    graph = copy.graph
    made = {v.name: v for n in graph for v in n.outputs if v.name}
    if any(name not in made for name in outputs):
        return None
    graph.outputs.clear()
    graph.outputs.extend(made[name] for name in outputs)
    kept = set(keep)
    gone = [n for n in graph if n.name not in kept]
    if any(v.is_graph_output() for n in gone for v in n.outputs):
        return None
    for node in gone:
        for value in node.outputs:
            if not any(use.node.name in kept or _inside(use.node, kept, graph) for use in value.uses()):
                continue
            array = values.get(value.name or "")
            if array is None:
                return None
            entry = _input_like(value, array)
            value.name = None
            value.replace_all_uses_with(entry)
            graph.inputs.append(entry)
    for node in reversed(gone):
        graph.remove(node, safe=False)
    used = {v for n in graph for v in _reads(n)} | set(graph.outputs)
    for value in [v for v in graph.inputs if v not in used]:
        graph.inputs.remove(value)
    for name in [k for k, v in graph.initializers.items() if v not in used]:
        graph.initializers.pop(name)
    _drop_functions(copy)
    _state_outputs(graph, values)
    feeds = {v.name or "": values[v.name or ""] for v in graph.inputs
             if v.name in values and not v.is_initializer()}
    if any(v.name not in feeds for v in graph.inputs if not v.is_initializer()):
        return None
    return copy, feeds


def save_inputs(feeds: Feeds, path: Path) -> Path:
    """An .npz that `verify --inputs` reads; sequences element by element."""
    arrays: dict[str, Array] = {}
    for name, value in feeds.items():
        if isinstance(value, list):
            arrays.update({f"{name}[{k}]": np.asarray(v) for k, v in enumerate(value)})
        elif value is not None:
            arrays[name] = value.astype(str) if value.dtype.kind == "O" else value
    np.savez(path, **arrays)  # type: ignore[arg-type]  # (its other parameter is a flag)
    return path


def _reads(node: ir.Node) -> list[ir.Value]:
    """What the node and the bodies inside it read from the node's own graph or further out."""
    found = [v for v in node.inputs if v is not None]
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        bodies = [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else \
            list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []
        for body in bodies:
            own = {*body.inputs, *body.initializers.values(), *(v for n in body for v in n.outputs)}
            found += [v for n in body for v in _reads(n) if v not in own]
            found += [v for v in body.outputs if v not in own]
    return found


def _inside(node: ir.Node, kept: set[str], graph: ir.Graph) -> bool:
    """Whether the node lies in a body of a kept node."""
    owner: Any = node.graph
    while owner is not None and owner is not graph:
        parent = getattr(owner, "parent_node", None)
        if parent is None:
            return True  # not known: assume so
        if parent.graph is graph:
            return parent.name in kept
        owner = parent.graph
    return False


def _input_like(value: ir.Value, array: Array) -> ir.Value:
    shape = value.shape
    fits = shape is not None and len(shape) == array.ndim and all(
        not isinstance(d, int) or d == size for d, size in zip(shape, array.shape, strict=True))
    dtype = ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)
    made = ir.Value(name=value.name, shape=shape if fits else ir.Shape(array.shape), type=ir.TensorType(dtype))
    return made


def _state_outputs(graph: ir.Graph, values: Mapping[str, Array]) -> None:
    """Outputs need a type."""
    for value in graph.outputs:
        array = values.get(value.name or "")
        if value.type is None and array is not None and array.dtype.kind not in "OSU":
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))


def _drop_functions(model: ir.Model) -> None:
    """Functions that nothing calls any more."""
    needed: set[tuple[str, str, str]] = set()
    queue = [n.op_identifier() for n in model.graph.all_nodes()]
    while queue:
        name = queue.pop()
        if name in model.functions and name not in needed:
            needed.add(name)
            queue += [n.op_identifier() for n in model.functions[name].all_nodes()]
    for name in [k for k in model.functions if k not in needed]:
        del model.functions[name]
