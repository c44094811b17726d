"""A node once more that differs from the first in one attribute or constant only: none may be taken for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def _other(g: Graph, value: Any, kind: int) -> Any:
    """Another value of an attribute; None where there is none to try."""
    if kind == AttributeProto.INT:
        return int(value) + int(g.rng.choice([-1, 1]))
    if kind == AttributeProto.FLOAT:
        return float(value) * 1.5 + 0.25
    if kind == AttributeProto.INTS and len(value) > 1:
        return [int(v) for v in g.rng.permutation(list(value))]
    return None


def twin(g: Graph) -> None:
    nodes = [n for n in g.nodes[-8:] if n.op_type not in ("If", "Loop", "Scan", "Cast") and n.output[0] in g.values
             and all(i in g.values for i in n.input if i)]  # none that reads a sequence, of which no value is kept
    if not nodes:
        return
    node = nodes[int(g.rng.integers(len(nodes)))]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kinds = {a.name: a.type for a in node.attribute}
    inputs = list(node.input)
    constants = [k for k, name in enumerate(inputs) if name in g.constants and g.constants[name].size]
    if attributes and (not constants or g.rng.random() < 0.6):
        name = str(g.rng.choice(list(attributes)))
        other = _other(g, attributes[name], kinds[name])
        if other is None:
            return
        attributes[name] = other
    elif constants:
        k = int(g.rng.choice(constants))
        array = g.constants[inputs[k]]
        inputs[k] = g.const(array.reshape(-1)[g.rng.permutation(array.size)].reshape(array.shape), array.dtype)
    else:
        return
    kept = [bool(o) for o in node.output]
    if g.add(node.op_type, inputs, kept, node.domain, **attributes) and g.values[g.outs[0]].dtype.kind == "f":
        first, second = node.output[0], g.outs[0]
        if g.values[first].shape == g.values[second].shape and np.isfinite(g.values[first]).all():
            g.put("Sub", [first, second])


STEPS = (twin,)
