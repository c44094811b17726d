"""Small, safe edits of the graph that the passes share."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.io.names import unique_name
from tilegraph.io.walk import all_graphs, subgraphs_of, values_of

_RANDOM = frozenset(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike"))
PURE_DOMAINS = frozenset(("", "ai.onnx.ml"))  # of other domains' ops it is not known that they keep no state


def is_op(node: ir.Node | None, *ops: str) -> bool:
    """Whether `node` is one of these ops of the default domain."""
    return node is not None and node.domain == "" and node.op_type in ops


def groups_of(node: ir.Node) -> int:
    """In how many groups a Conv or ConvTranspose is done."""
    return node.attributes["group"].as_int() if "group" in node.attributes else 1


def is_random(node: ir.Node, opset: int) -> bool:
    """Whether two runs of `node` on the same inputs may differ, as far as the standard says."""
    return is_op(node, *_RANDOM) or (is_op(node, "Dropout") and not is_inference_dropout(node, opset))


def is_inference_dropout(node: ir.Node, opset: int) -> bool:
    """Whether a Dropout is known to pass its input through."""
    if opset < 12:
        return True  # training had its own graph then
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    tensor = constant_of(training)
    return tensor is not None and not bool(tensor.numpy().reshape(-1)[0])


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or Constant that no caller can override, else None."""
    if value is None or value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    if is_op(producer, "Constant"):
        assert producer is not None
        attribute = producer.attributes.get("value")
        return None if attribute is None or attribute.is_ref() else attribute.as_tensor()
    return None


def nodes_inside(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node of `graph` and its subgraphs, outer before inner."""
    for node in graph:
        yield node
        for inner in subgraphs_of(node):
            yield from nodes_inside(inner)


def is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def is_movable(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether `value` can become an output of `graph` as it is: made by a node of it, and not an output already."""
    made = value.producer()
    return made is not None and made.graph is graph and not value.is_graph_output()


def replace(old: ir.Value, new: ir.Value, root: ir.Graph) -> None:
    """Makes every user of `old`, an output of a node, use `new`; graph outputs of `root` keep their names.

    Where `old` is a graph output, `new` takes its place and, in `root`, its name, if it can: it must come from a node
    of the same graph and not be an output already. Otherwise an Identity carries it. The node of `old` stays.
    """
    graph = old.graph
    if old.is_graph_output() and graph is not None:
        if is_movable(new, graph):
            carrier = new
        else:
            copy = ir.node("Identity", [new], name=f"{old.name}_copy")
            carrier = copy.outputs[0]
            carrier.name = f"{old.name}_kept"
            at = old.producer()
            assert at is not None
            at.append(copy)
        if graph is root:
            name, old.name = old.name, f"{old.name}_gone"
            carrier.name = name
        if carrier.type is None:
            carrier.type = old.type
        carrier.shape = _more_definite(carrier.shape, old.shape)
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = carrier
    for user, index in list(old.uses()):
        user.replace_input_with(index, new)


def _more_definite(first: ir.Shape | None, second: ir.Shape | None) -> ir.Shape | None:
    if first is None or second is None or len(first) != len(second):
        return first if first is not None else second
    unknown = sum(not isinstance(d, int) and d.value is None for d in first)
    return second if unknown > sum(not isinstance(d, int) and d.value is None for d in second) else first


def remove(node: ir.Node) -> None:
    """Takes out a node whose outputs nobody uses; captures of its subgraphs are let go too."""
    let_go(node)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def let_go(node: ir.Node) -> None:
    """Empties the subgraphs of a node that goes, so that they read nothing any more."""
    for inner in subgraphs_of(node):
        inner.outputs.clear()
        for nested in reversed(list(inner)):
            remove(nested)


def taken_initializers(body: ir.Graph) -> list[ir.Value]:
    """The initializers of a body that is inlined, which no longer has them; those that are its inputs are none."""
    keys = [key for key, value in body.initializers.items() if not value.is_graph_input()]
    return [body.initializers.pop(key) for key in keys]


class Names:
    """Fresh names for a model, which is read once."""

    def __init__(self, model: ir.Model) -> None:
        graphs = list(all_graphs(model))
        self._values = {v.name for g in graphs for v in values_of(g) if v.name}
        self._nodes = {n.name for g in graphs for n in g if n.name}

    def value(self, wanted: str) -> str:
        return unique_name(wanted, self._values)

    def node(self, wanted: str) -> str:
        return unique_name(wanted, self._nodes)
