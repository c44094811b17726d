"""The model of a random graph: which values are outputs, what is known of shapes, how constants are kept, functions.

None of it changes what is computed, so each is drawn apart from the nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.graphs import Graph, free_names, imports
from tests.fuzz.subject import Subject
from tests.fuzz.values import Array, random_values

# How much is said of the inputs' extents: all; equal ones share a name; each has a name of its own; those beyond the
# second axis and of 1 have names, too; nothing but the rank; not even that.
SAYING = {"all": 0.34, "equal": 0.36, "each": 0.08, "axes": 0.1, "rank": 0.08, "nothing": 0.04}
OTHER_SIZES = (0, 1, 2, 7, 19, 64)


def random_subject(g: Graph) -> Subject:
    model = finish(g)
    return Subject(model, g.feeds, lambda draw: other_feeds(g, model, draw))


def finish(g: Graph) -> onnx.ModelProto:
    rng = np.random.default_rng(g.seed + 1)
    read = {name for node in g.nodes for name in free_names(node)}
    made = [o for node in g.nodes for o in node.output if o in g.values]
    outputs = [n for n in made if n not in read or rng.random() < 0.08] or made[-1:]
    saying = str(rng.choice(list(SAYING), p=list(SAYING.values())))
    inputs = [_input(g, n, saying) for n in g.feeds]
    nodes = list(g.nodes)
    used = {name for node in nodes for name in free_names(node)}
    tensors = {n: numpy_helper.from_array(v, n) for n, v in g.constants.items() if n in used}
    outputs += [str(rng.choice(list(v))) for v in (g.feeds, tensors, outputs) if v and rng.random() < 0.04]
    plain = [n for n in tensors if n not in outputs and g.constants[n].dtype.kind in "fi"]
    if plain and rng.random() < 0.08:  # a default for an input that a caller may give
        name = str(rng.choice(plain))
        inputs.append(_info(name, g.constants[name], list(g.constants[name].shape)))
        plain.remove(name)
    if rng.random() < 0.3:
        kept = [n for n in plain if rng.random() < 0.6]
        nodes = [*(_constant(n, tensors.pop(n), g.constants[n], g.opset) for n in kept), *nodes]
    functions = list(g.functions.values()) if any(n.domain == "local" for n in nodes) else []
    if len(nodes) > 3 and rng.random() < 0.25:
        nodes, more = with_function(nodes, set(outputs), g.opset, rng)
        functions += more
    if rng.random() < 0.1:
        nodes = [_nameless(n) for n in nodes]
    if rng.random() < 0.3:
        nodes = [_said(n, g.opset, rng) for n in nodes]
    results = [_info(n, g.values[n], None) for n in outputs]
    graph = helper.make_graph(nodes, f"fuzz{g.seed}", inputs, results, list(tensors.values()))
    inner = [n for f in functions for n in f.node]
    model = helper.make_model(graph, opset_imports=imports(g.opset, [*nodes, *inner]), ir_version=10,
                              functions=functions)
    return _with_shapes(model) if rng.random() < 0.15 else model


def other_feeds(g: Graph, model: onnx.ModelProto, draw: int = 0) -> dict[str, Array]:
    """Inputs of other sizes where the model leaves some open; {} where it leaves none, or other values are
    undefined."""
    rng = np.random.default_rng((g.seed + 3, draw))
    # What a body that never runs would have given has no shape in ONNX Runtime, the state behind no steps no value.
    steps = any(n.op_type in ("Loop", "Scan", "LSTM", "GRU", "RNN") for n in g.nodes)
    choices = OTHER_SIZES[1:] if steps else OTHER_SIZES
    sizes: dict[int, int] = {}
    feeds, opened = {}, False
    for info in model.graph.input:
        if info.name not in g.feeds:
            if rng.random() < 0.5:  # instead of its default
                feeds[info.name] = random_values(rng, g.constants[info.name].shape, g.constants[info.name].dtype, False)
                opened = True
            continue
        old, kind = g.feeds[info.name], info.type.tensor_type
        known = [d.dim_value for d in kind.shape.dim] if kind.HasField("shape") else [0] * old.ndim
        shape = []
        for axis, (size, fixed) in enumerate(zip(old.shape, known, strict=True)):
            if fixed or (kind.HasField("shape") and kind.shape.dim[axis].HasField("dim_value")):
                shape.append(size)
                continue
            opened = True
            first = g.shape[axis] if old.ndim == len(g.shape) else size
            same = size if size > 1 or rng.random() < 0.5 else first
            shape.append(1 if same == 1 else sizes.setdefault(same, int(rng.choice(choices))))
        if info.name in g.asked and old.dtype != np.bool_:
            feeds[info.name] = np.asarray(rng.choice(old.reshape(-1), size=shape) if old.size else np.zeros(shape),
                                          old.dtype)
        else:
            feeds[info.name] = random_values(rng, shape, old.dtype, False)
    return feeds if opened and not g.settled and not g.special else {}


def _info(name: str, value: Array, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)


def _input(g: Graph, name: str, saying: str) -> onnx.ValueInfoProto:
    shape: list[Any] = list(g.feeds[name].shape)
    for axis, size in enumerate(shape):
        if size > 1 and (saying == "axes" or (saying == "equal" and axis < 2)):
            shape[axis] = f"size{size}"
        elif saying in ("each", "axes"):
            shape[axis] = f"{name} {axis}"
        elif saying == "rank":
            shape[axis] = None
    return _info(name, g.feeds[name], None if saying == "nothing" else shape)


def _constant(name: str, tensor: onnx.TensorProto, array: Array, opset: int) -> onnx.NodeProto:
    """The initializer as a node, in the shortest spelling that the opset has for it."""
    if opset >= 12 and array.dtype in (np.float32, np.int64) and array.ndim < 2:
        kind = {"f": "float", "i": "int"}[array.dtype.kind] + ("s" if array.ndim else "")
        if array.size:
            return helper.make_node("Constant", [], [name], **{f"value_{kind}": array.tolist()})
    return helper.make_node("Constant", [], [name], value=tensor)


def _nameless(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("name")
    return copy


def _said(node: onnx.NodeProto, opset: int, rng: np.random.Generator) -> onnx.NodeProto:
    """The node with some attributes that it leaves to their defaults written out, as exporters do."""
    if node.domain or not onnx.defs.has(node.op_type, opset):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    given = {a.name for a in node.attribute}
    for name, schema in onnx.defs.get_schema(node.op_type, opset).attributes.items():
        default = schema.default_value
        if name not in given and default.type != onnx.AttributeProto.UNDEFINED and rng.random() < 0.6:
            copy.attribute.append(default)
    return copy


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """With what onnx's inference says of the values in between, as many exporters leave it."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return model


def with_function(nodes: list[onnx.NodeProto], outputs: set[str], opset: int, rng: np.random.Generator
                  ) -> tuple[list[onnx.NodeProto], list[onnx.FunctionProto]]:
    """Some nodes that follow each other as a call of a function, one of whose attributes the call gives."""
    first = int(rng.integers(len(nodes) - 1))
    last = int(rng.integers(first + 1, len(nodes)))
    inside, rest = nodes[first:last + 1], [*nodes[:first], *nodes[last + 1:]]
    made = [o for n in inside for o in n.output if o]
    read = outputs | {i for n in rest for i in free_names(n)}
    takes = list(dict.fromkeys(i for n in inside for i in free_names(n) if i not in made))
    gives = [o for o in made if o in read]
    inside, given = _given(inside, rng)
    function = helper.make_function("local", "Part", takes, gives, inside, imports(opset, inside),
                                    attributes=list(given))
    call = helper.make_node("Part", takes, gives, domain="local", name="part", **given)
    return [*nodes[:first], call, *nodes[last + 1:]], [function]


def _given(nodes: list[onnx.NodeProto], rng: np.random.Generator) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """The nodes with one whole or broken number as an attribute of the function, and that number."""
    numbers = (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT)
    where = [(k, a.name) for k, n in enumerate(nodes) for a in n.attribute if a.type in numbers]
    if not where or rng.random() < 0.5:
        return nodes, {}
    place, name = where[int(rng.integers(len(where)))]
    changed = onnx.NodeProto()
    changed.CopyFrom(nodes[place])
    attribute = next(a for a in changed.attribute if a.name == name)
    value = helper.get_attribute_value(attribute)
    kind = attribute.type
    attribute.Clear()
    attribute.name, attribute.type, attribute.ref_attr_name = name, kind, "given"
    return [*nodes[:place], changed, *nodes[place + 1:]], {"given": value}
