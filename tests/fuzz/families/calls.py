"""Functions of the model: with attributes, called again and again, called by each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

DOMAIN = "local"


def _leaky(opset: int) -> onnx.FunctionProto:
    """y = LeakyRelu<alpha>(x) + x, alpha .1 where a call gives none."""
    slope = helper.make_node("LeakyRelu", ["x"], ["a"])
    slope.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    nodes = [slope, helper.make_node("Add", ["a", "x"], ["y"])]
    return helper.make_function(DOMAIN, "Leaky", ["x"], ["y"], nodes, [helper.make_opsetid("", opset)],
                                attribute_protos=[helper.make_attribute("slope", 0.1)])


def _soft(opset: int) -> onnx.FunctionProto:
    """y, s = x * s, s with s = Softmax<axis>(x): the axis has no default, and the second result is seldom read."""
    weights = helper.make_node("Softmax", ["x"], ["s"])
    weights.attribute.append(onnx.AttributeProto(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="along"))
    nodes = [weights, helper.make_node("Mul", ["x", "s"], ["y"])]
    return helper.make_function(DOMAIN, "Soft", ["x"], ["y", "s"], nodes, [helper.make_opsetid("", opset)],
                                attributes=["along"])


def _outer(opset: int) -> onnx.FunctionProto:
    """y = Leaky<slope .25>(Leaky(x)), with inner names that the graph has as well."""
    nodes = [helper.make_node("Leaky", ["x"], ["v0_0"], domain=DOMAIN),
             helper.make_node("Leaky", ["v0_0"], ["y"], domain=DOMAIN, slope=0.25)]
    return helper.make_function(DOMAIN, "Outer", ["x"], ["y"], nodes,
                                [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)])


def call(g: Graph) -> None:
    x = g.pick("f", 1)
    if x is None or not g.values[x].size:
        return
    kind = str(g.rng.choice(["Leaky", "Leaky", "Outer", "Soft"]))
    g.functions.setdefault("Leaky", _leaky(g.opset))
    if kind == "Outer":
        g.functions.setdefault("Outer", _outer(g.opset))
    if kind == "Soft":
        g.functions.setdefault("Soft", _soft(g.opset))
        g.add("Soft", [x], [True, bool(g.rng.random() < 0.4)], DOMAIN, along=int(g.rng.integers(g.values[x].ndim)))
        return
    given: dict[str, Any] = {}
    if kind == "Leaky" and g.rng.random() < 0.7:
        given["slope"] = float(g.rng.choice([0.3, -0.5]))
    g.add(kind, [x], domain=DOMAIN, **given)


STEPS = (call,)
