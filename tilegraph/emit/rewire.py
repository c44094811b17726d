"""Replaces the nodes of each partition by one EPContext node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from tilegraph.diagnostics import Diagnostics
from tilegraph.emit.context import CONTEXT_DOMAIN, OP_TYPE, OPSET_VERSION, initial_attributes, is_ours
from tilegraph.errors import InputError, InternalError
from tilegraph.io.walk import all_graphs, subgraphs_of
from tilegraph.spec.artifact import Program, TensorSpec

COMPOSITE_DOMAIN = "ai.tilegraph"
# Nodes of these domains only compute: one whose results nobody uses any more can go.
_PURE_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", COMPOSITE_DOMAIN})


@dataclass(frozen=True)
class EmitPartition:
    """Nodes of one graph (the main one or a body of If, Loop or Scan) that `program` computes.

    `inputs` and `outputs` are in the program's order. An input may be an initializer, also one of an outer graph; it
    stays one. Every value of `nodes` that something else uses, or that its graph returns, must be an output. Values
    that `nodes` read and the program does not (baked-in constants, shapes that it derives) are not inputs.
    """

    name: str
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    program: Program


def emit(model: ir.Model, partitions: Sequence[EmitPartition], diagnostics: Diagnostics | None = None) \
        -> tuple[ir.Node, ...]:
    """Rewires `model` in place and returns the EPContext nodes, in the order of `partitions`.

    What only the replaced nodes needed (shape computations, bodies of composites) goes too, and initializers that
    nobody reads (constants that were baked into composites). The new nodes name their partition; `write_folder` fills
    in where the library is. Raises `InternalError`, before any change, for partitions that contradict the model or
    their program, and after it for one that is not convex; `InputError` if the model was optimized before.
    """
    _check_all(model, partitions)
    replaced: dict[ir.Value, ir.Value] = {}
    created = []
    read: list[ir.Value] = []
    for part in partitions:
        read += _reads(part.nodes)
        created.append(_replace(part, replaced))
        if diagnostics is not None:
            diagnostics.took("emit", part.name, f"{len(part.nodes)} nodes became one", op=OP_TYPE)
    if created:
        _prune([replaced.get(v, v) for v in read])
        try:
            model.graph.sort()
        except ValueError as error:
            raise InternalError("the partitions are not convex: an EPContext node would depend on itself") from error
        model.graph.opset_imports.setdefault(CONTEXT_DOMAIN, OPSET_VERSION)
        RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
        _drop_unused_domain(model)
        _drop_unused_initializers(model)
    return tuple(created)


def _check_all(model: ir.Model, partitions: Sequence[EmitPartition]) -> None:
    for node in model.graph.all_nodes():
        if is_ours(node):
            raise InputError(f"node {node.name} was compiled by tilegraph already; optimize the original model")
    parents: dict[ir.Graph, ir.Node | None] = {model.graph: None}
    for node in model.graph.all_nodes():
        parents.update((body, node) for body in subgraphs_of(node))
    owner: dict[ir.Node, str] = {}
    names: set[str] = set()
    for part in partitions:
        if part.name in names:
            raise InternalError(f"two partitions are named {part.name}")
        names.add(part.name)
        for node in part.nodes:
            if node in owner:
                raise InternalError(f"node {node.name} is in the partitions {owner[node]} and {part.name}")
            owner[node] = part.name
    for part in partitions:
        _check(part, parents)


def _check(part: EmitPartition, parents: Mapping[ir.Graph, ir.Node | None]) -> None:
    where = f"partition {part.name}"
    if not part.nodes or not part.outputs:
        raise InternalError(f"{where} has no nodes or no outputs")
    graph = part.nodes[0].graph
    if graph not in parents or any(n.graph is not graph for n in part.nodes):
        raise InternalError(f"{where}: its nodes are not all in one graph of the model")
    inside = set(part.nodes)
    for value in part.inputs:
        if value.producer() in inside:
            raise InternalError(f"{where}: its input {value.name} is made by its own nodes")
    if len(set(part.outputs)) != len(part.outputs):
        raise InternalError(f"{where} lists an output twice")
    for value in part.outputs:
        if value.producer() not in inside:
            raise InternalError(f"{where}: its output {value.name} is not made by its nodes")
    for node in part.nodes:
        for value in node.outputs:
            if value not in part.outputs and _used_outside(value, inside, parents):
                raise InternalError(f"{where}: {value.name} is used outside and is not among its outputs")
    for kind, values, specs in (("input", part.inputs, part.program.inputs),
                                ("output", part.outputs, part.program.outputs)):
        if len(values) != len(specs):
            raise InternalError(f"{where} has {len(values)} {kind}s, its program {len(specs)}")
        for value, spec in zip(values, specs, strict=True):
            _check_spec(f"{where}, {kind} {value.name}", value, spec)


def _check_spec(where: str, value: ir.Value, spec: TensorSpec) -> None:
    if value.dtype is not None and value.dtype is not _dtype(spec):
        raise InternalError(f"{where}: {value.dtype.name.lower()} in the model, {spec.dtype} in the program")
    if value.shape is not None and value.shape.rank() != len(spec.shape):
        raise InternalError(f"{where}: rank {value.shape.rank()} in the model, {len(spec.shape)} in the program")
    if spec.constant and not (value.is_initializer() and not value.is_graph_input()):
        raise InternalError(f"{where}: constant in the program, but not an initializer that nobody can override")


def _used_outside(value: ir.Value, inside: set[ir.Node], parents: Mapping[ir.Graph, ir.Node | None]) -> bool:
    return value.is_graph_output() or any(not _within(use.node, inside, parents) for use in value.uses())


def _within(node: ir.Node | None, inside: set[ir.Node], parents: Mapping[ir.Graph, ir.Node | None]) -> bool:
    """Whether `node`, or a control-flow node whose body it is in, is one of `inside`."""
    while node is not None:
        if node in inside:
            return True
        node = parents.get(node.graph) if isinstance(node.graph, ir.Graph) else None
    return False


def _dtype(spec: TensorSpec) -> ir.DataType:
    try:
        return ir.DataType[spec.dtype.upper()]
    except KeyError:
        raise InternalError(f"{spec.name}: {spec.dtype!r} is not a dtype of ONNX") from None


def _output(old: ir.Value, spec: TensorSpec) -> ir.Value:
    """A value that takes the old one's place, with dtype and shape: ORT infers nothing through EPContext."""
    shape = ir.Shape([d.value if d.is_static else str(d) for d in spec.shape])
    for axis, dim in enumerate(old.shape or ()):
        if isinstance(dim, int) or dim.value is not None:
            shape[axis] = dim
    return ir.Value(name=old.name, type=ir.TensorType(_dtype(spec)), shape=shape, doc_string=old.doc_string,
                    metadata_props=dict(old.metadata_props))


def _replace(part: EmitPartition, replaced: dict[ir.Value, ir.Value]) -> ir.Node:
    outputs = [_output(v, s) for v, s in zip(part.outputs, part.program.outputs, strict=True)]
    node = ir.Node(CONTEXT_DOMAIN, OP_TYPE, [replaced.get(v, v) for v in part.inputs], initial_attributes(part.name),
                   outputs=outputs, name=part.name)
    graph = part.nodes[0].graph
    assert graph is not None
    graph.insert_before(part.nodes[0], node)
    for old, new in zip(part.outputs, outputs, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        replaced[old] = new
    _detach_bodies(part.nodes)
    graph.remove(part.nodes, safe=True)
    return node


def _prune(read: list[ir.Value]) -> None:
    """Removes the producers of values that were read before and that nobody uses any more, and what they needed.

    An EPContext node stays, also if all its results turn out to be unused: its program is in the manifest.
    """
    while read:
        value = read.pop()
        producer = value.producer()
        if producer is None or producer.graph is None or is_ours(producer) or producer.domain not in _PURE_DOMAINS \
                or any(o.uses() or o.is_graph_output() for o in producer.outputs):
            continue
        read += _reads([producer])
        _detach_bodies([producer])
        producer.graph.remove(producer, safe=True)


def _detach_bodies(nodes: Iterable[ir.Node]) -> None:
    """Lets go of what the bodies of `nodes` read: they disappear with their node, their uses have to be undone."""
    for node in nodes:
        for body in subgraphs_of(node):
            for inner in body.all_nodes():
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)


def _reads(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """The values that `nodes` and the bodies in them read, each once, in order."""
    found: dict[ir.Value, None] = {}
    for node in nodes:
        found.update((v, None) for v in node.inputs if v is not None)
        for body in subgraphs_of(node):
            found.update((v, None) for v in _reads(body))
    return list(found)


def _drop_unused_domain(model: ir.Model) -> None:
    """Without composites left, their domain need not be imported; ONNX Runtime does not know it."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    if not any(n.domain == COMPOSITE_DOMAIN for g in graphs for n in g.all_nodes()) \
            and not any(key[0] == COMPOSITE_DOMAIN for key in model.functions):
        model.graph.opset_imports.pop(COMPOSITE_DOMAIN, None)


def _drop_unused_initializers(model: ir.Model) -> None:
    for graph in all_graphs(model):
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_input() or value.is_graph_output()):
                del graph.initializers[name]
