"""Bodies: If, Loop and Scan, in each other, with values from outside, constants of their own and none of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.families.reductions import reduced

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

INT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
UNARY = ("Tanh", "Sigmoid", "Abs", "Softsign", "Neg")


def branch(g: Graph) -> None:
    """An If whose branches read the outer value; the condition depends on the inputs, or is a constant."""
    x = g.pick("f", 1)
    if x is None or g.values[x].size == 0:
        return
    kind = helper.np_dtype_to_tensor_dtype(g.values[x].dtype)
    condition = _condition(g, x)
    if condition and g.rng.random() < 0.25:
        g.put("If", [condition], [True, bool(g.rng.random() < 0.7)], then_branch=_two(g, x, kind),
              else_branch=_two(g, x, kind))
    elif condition:
        nested = g.rng.random() < 0.3
        g.put("If", [condition], then_branch=_branch(g, x, kind, nested), else_branch=_branch(g, x, kind, False))


def _condition(g: Graph, x: str) -> str | None:
    if g.rng.random() < 0.3:
        return g.const(bool(g.rng.random() < 0.5))
    if g.rng.random() < 0.3:
        return g.input(np.asarray(g.rng.random() < 0.5))
    if x in g.rounded:
        return None
    peak = reduced(g, "ReduceMax", x, list(range(g.values[x].ndim)), 0)
    return peak and g.put("Greater", [peak, g.const(0.5, g.values[x].dtype)])


def _branch(g: Graph, x: str, kind: int, nested: bool) -> onnx.GraphProto:
    """Two operators, the outer value as it is, or another If that reads what stands two graphs above it."""
    name, dtype = g.fresh(), g.values[x].dtype
    result = helper.make_tensor_value_info(f"{name}_z", kind, None)
    if g.rng.random() < 0.15:
        same = helper.make_node("Identity", [x], [result.name], name=f"{name}0")
        return helper.make_graph([same], name, [], [result])
    first, second = (str(o) for o in g.rng.choice(UNARY, size=2))
    own = numpy_helper.from_array(g.random(g.values[x].shape[-1:], dtype), f"{name}_c")
    nodes = [helper.make_node(first, [x], [f"{name}_a"], name=f"{name}0"),
             helper.make_node("Mul", [f"{name}_a", f"{name}_c"], [f"{name}_b"], name=f"{name}1")]
    if nested:
        flag = numpy_helper.from_array(np.array(g.rng.random() < 0.5), f"{name}_f")
        inner = []
        for op in (second, "Identity"):
            out = helper.make_tensor_value_info(g.fresh(), kind, None)
            step = g.fresh()
            inner.append(helper.make_graph(
                [helper.make_node(op, [f"{name}_b"], [step], name=f"{step}0"),
                 helper.make_node("Add", [step, x], [out.name], name=f"{step}1")], step, [], [out]))
        nodes.append(helper.make_node("If", [f"{name}_f"], [result.name], name=f"{name}2", then_branch=inner[0],
                                      else_branch=inner[1]))
        return helper.make_graph(nodes, name, [], [result], [own, flag])
    nodes.append(helper.make_node("Sub", [f"{name}_b", x], [result.name], name=f"{name}2"))
    return helper.make_graph(nodes, name, [], [result], [own])


def _two(g: Graph, x: str, kind: int) -> onnx.GraphProto:
    """Two results, of which the second may be the first or the outer value itself."""
    name = g.fresh()
    first, second = (str(o) for o in g.rng.choice(UNARY, size=2))
    results = [helper.make_tensor_value_info(f"{name}_{k}", kind, None) for k in "yz"]
    nodes = [helper.make_node(first, [x], [f"{name}_a"], name=f"{name}0"),
             helper.make_node("Add", [f"{name}_a", x], [f"{name}_y"], name=f"{name}1")]
    if g.rng.random() < 0.7:
        nodes.append(helper.make_node(second, [f"{name}_a"], [f"{name}_z"], name=f"{name}2"))
    else:
        source = x if g.rng.random() < 0.5 else f"{name}_y"
        nodes.append(helper.make_node("Identity", [source], [f"{name}_z"], name=f"{name}2"))
    return helper.make_graph(nodes, name, [], results)


def loop(g: Graph) -> None:
    """A Loop that carries a value, reads one from outside and collects its states; it ends by its count, by its
    condition, or never begins."""
    x = g.pick("f", 1)
    if x is None or g.values[x].shape[0] == 0:
        return
    k, kind = g.fresh(), helper.np_dtype_to_tensor_dtype(g.values[x].dtype)
    ends = g.rng.random() < 0.3
    nodes = [helper.make_node("Sub", [f"{k}s", x], [f"{k}a"], name=f"{k}0"),
             helper.make_node("Tanh", [f"{k}a"], [f"{k}b"], name=f"{k}1"),
             helper.make_node("Add", [f"{k}b", x], [f"{k}t"], name=f"{k}2"),
             helper.make_node("Sigmoid", [f"{k}t"], [f"{k}y"], name=f"{k}4")]
    if ends:
        limit = numpy_helper.from_array(np.array(1), f"{k}l")
        nodes.append(helper.make_node("Less", [f"{k}i", f"{k}l"], [f"{k}d"], name=f"{k}3"))
    else:
        nodes.append(helper.make_node("Identity", [f"{k}c"], [f"{k}d"], name=f"{k}3"))
    body = helper.make_graph(nodes, k, [
        helper.make_tensor_value_info(f"{k}i", INT64, []), helper.make_tensor_value_info(f"{k}c", BOOL, []),
        helper.make_tensor_value_info(f"{k}s", kind, None)],
        [helper.make_tensor_value_info(f"{k}d", BOOL, []), helper.make_tensor_value_info(f"{k}t", kind, None),
         helper.make_tensor_value_info(f"{k}y", kind, None)], [limit] if ends else [])
    count = (g.const(int(g.rng.integers(1, 4)), np.int64) if g.rng.random() < 0.7 else
             g.input(np.asarray(g.rng.integers(1, 4))))
    runs = g.const(True) if g.rng.random() < 0.8 else ""
    # Nobody reads the collected states of some: "" is no name of an output.
    g.put("Loop", [count, runs, x], [True, bool(g.rng.random() < 0.8)], body=body)


def scan(g: Graph) -> None:
    """A Scan over one axis, from either end, that keeps a state and reads a constant from outside."""
    x = g.pick("f", 1)
    if x is None or g.values[x].size == 0 or g.opset < 9:
        return  # ONNX Runtime's process dies of a Scan without elements
    value, k = g.values[x], g.fresh()
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    axis = int(g.rng.integers(value.ndim)) if g.rng.random() < 0.3 else 0
    if value.shape[axis] == 0:
        return
    zero = g.const(np.zeros([d for i, d in enumerate(value.shape) if i != axis]), value.dtype)
    outer = g.const(0.7, value.dtype)
    nodes = [helper.make_node("Add", [f"{k}s", f"{k}x"], [f"{k}a"], name=f"{k}0"),
             helper.make_node("Tanh", [f"{k}a"], [f"{k}t"], name=f"{k}1"),
             helper.make_node("Mul", [f"{k}t", f"{k}x"], [f"{k}b"], name=f"{k}2"),
             helper.make_node("Mul", [f"{k}b", outer], [f"{k}y"], name=f"{k}3")]
    anyhow = [None] * (value.ndim - 1)  # ONNX Runtime wants to know the rank
    body = helper.make_graph(nodes, k, [helper.make_tensor_value_info(f"{k}{n}", kind, anyhow) for n in "sx"],
                             [helper.make_tensor_value_info(f"{k}{n}", kind, anyhow) for n in "ty"])
    backwards = {"scan_input_directions": [1]} if g.rng.random() < 0.3 else {}
    g.put("Scan", [zero, x], 2, num_scan_inputs=1, scan_input_axes=[axis], body=body, **backwards)


STEPS = (branch, branch, loop, scan)
