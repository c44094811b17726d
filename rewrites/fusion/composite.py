"""A region as a composite: a call of a model-local function of domain `ai.tilegraph` whose body is the region's nodes.

Equal regions share one function. Scalars and constants that steer an operation (axes, sizes, positions) move into the
body, where codegen reads them; other constants and all computed values are inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from tilegraph.ops.lower import is_parameter
from tilegraph.ops.lower.base import constant_of

DOMAIN = "ai.tilegraph"


def _belongs_inside(value: ir.Value, parameter: bool) -> bool:
    """Whether the body should hold the constant. Other constants stay inputs: the kernel reads them from memory."""
    if value.shape is None or value.is_graph_input() or not (value.const_value is not None or _of_constant_node(value)):
        return False
    return parameter or all(d == 1 for d in value.shape)


def _of_constant_node(value: ir.Value) -> bool:
    """Where the pass that turns Constant nodes into initializers is disabled."""
    producer = value.producer()
    return producer is not None and producer.domain == "" and producer.op_type == "Constant" \
        and constant_of(value) is not None


class _Writer:
    """Copies nodes into a function body and describes them as text for the function's name."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        self.constants: dict[ir.Value, ir.Value] = {}
        self.outside: list[ir.Value] = []
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []
        self.lines: list[str] = []

    def read(self, value: ir.Value | None, parameter: bool) -> ir.Value | None:
        if value is None:
            return None
        if _belongs_inside(value, parameter):
            if value not in self.constants:
                self.constants[value] = self._constant(value)
            return self.constants[value]
        if value not in self.values:
            copy = _twin(value, f"in{len(self.inputs)}")
            self.outside.append(value)
            self.inputs.append(copy)
            self.values[value] = copy
            self.lines.append(f"{copy.name}: {_typed(value)}")
        return self.values[value]

    def _constant(self, value: ir.Value) -> ir.Value:
        array = constant_of(value)
        assert array is not None
        dtype = value.dtype if value.const_value is None else value.const_value.dtype
        tensor = ir.tensor(array, dtype=dtype, name=None)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=f"constant{len(self.nodes)}")
        result = node.outputs[0]
        result.name, result.shape, result.type = f"c{len(self.nodes)}", value.shape, value.type
        result.const_value = tensor
        self.nodes.append(node)
        self.lines.append(f"{result.name} = {_typed(value)} {array.tobytes().hex()}")
        return result

    def write(self, node: ir.Node) -> None:
        inputs = [self.read(v, is_parameter(node, i)) for i, v in enumerate(node.inputs)]
        attributes = [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()]
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, overload=node.overload,
                       num_outputs=len(node.outputs), version=node.version, name=f"n{len(self.nodes)}")
        for k, (old, new) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
            new.name = f"v{len(self.nodes)}_{k}" if old.name else ""
            new.shape, new.type = old.shape, old.type
            self.values[old] = new
        self.nodes.append(copy)
        shown = ",".join(f"{a.name}={_attribute(a)}" for a in sorted(attributes, key=lambda a: a.name))
        names = ",".join("" if v is None else str(v.name) for v in inputs)
        results = ",".join(f"{n.name}: {_typed(o)}" for o, n in zip(node.outputs, copy.outputs, strict=True))
        self.lines.append(f"{results} = {node.domain}.{node.op_type}<{shown}>({names})")


def _typed(value: ir.Value) -> str:
    return f"{value.dtype.name if value.dtype is not None else '?'}{value.shape}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype.name}{tensor.shape}{tensor.numpy().tobytes().hex()}"
    return repr(attribute.value)


def _twin(value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=name, shape=value.shape, type=value.type)


def make_composite(model: ir.Model, graph: ir.Graph, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value],
                   clones: frozenset[ir.Node] = frozenset(), kind: str = "Region") -> ir.Node:
    """Replaces `nodes` (in order) in `graph` by one call and returns it; the graph is left to be sorted.

    `clones` are copied into the body and stay in the graph. `kind` begins the function's name and chooses the kernel
    generator.

    The results keep their names. The function is added to the model unless an equal one is there.
    """
    writer = _Writer()
    for node in nodes:
        writer.write(node)
    writer.lines.append("return " + ",".join(str(writer.values[v].name) for v in outputs))
    opsets = {"": graph.opset_imports.get("", model.opset_imports.get("", 18))}
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        opsets[domain] = model.opset_imports.get(domain, 1)
    text = f"{sorted(opsets.items())}\n" + "\n".join(writer.lines)
    name = f"{kind}_" + hashlib.sha256(text.encode()).hexdigest()[:12]
    identifier = (DOMAIN, name, "")
    if identifier not in model.functions:
        body = ir.Graph(writer.inputs, [writer.values[v] for v in outputs], nodes=writer.nodes, opset_imports=opsets,
                        name=name)
        model.functions[identifier] = ir.Function(DOMAIN, name, graph=body, attributes=[])
    model.opset_imports.setdefault(DOMAIN, 1)
    call = ir.Node(DOMAIN, name, writer.outside, num_outputs=len(outputs), name=_call_name(nodes, kind))
    own = [node for node in nodes if node not in clones]
    graph.insert_before(own[0], call)
    _take_over(outputs, call)
    graph.remove(own, safe=True)
    return call


def drop_unread(graph: ir.Graph, candidates: Iterable[ir.Node]) -> None:
    """Removes those of `candidates` that nothing reads, such as nodes of which every reader took a copy."""
    while True:
        unread = [node for node in dict.fromkeys(candidates) if node.graph is graph
                  and not any(v.uses() or v.is_graph_output() for v in node.outputs)]
        if not unread:
            return
        for node in unread:
            graph.remove(node, safe=True)


def _call_name(nodes: Sequence[ir.Node], kind: str) -> str:
    return f"{nodes[-1].name}_{kind.lower()}"


def _take_over(outputs: Sequence[ir.Value], call: ir.Node) -> None:
    """Lets the call's results stand for `outputs`, names included."""
    for old, new in zip(outputs, call.outputs, strict=True):
        new.shape, new.type = old.shape, old.type
        new.name, old.name = old.name, None
        old.replace_all_uses_with(new, replace_graph_outputs=True)
