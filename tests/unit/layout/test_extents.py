"""Unknown extents that a convolution needs get names, and what follows is expressed by them."""

from __future__ import annotations

import onnx_ir as ir

from tests.unit.conv.test_units import W, weights
from tests.unit.fusion.parse import proto
from tilegraph.passes import PassContext
from tilegraph.rewrites.layout.extents import NameExtents
from tilegraph.rewrites.normalise import NORMALISE


def model(text: str) -> ir.Model:
    """Without the names that onnx gives to what it cannot infer."""
    made: ir.Model = ir.from_proto(proto(text))
    for k, node in enumerate(made.graph):
        node.name = f"{node.op_type}_{k}"
    return made


def named(text: str) -> tuple[dict[str, str], bool]:
    """The shapes of all values, and whether anything was named."""
    graph = model(text)
    for step in NORMALISE:
        step.run(graph, PassContext())
    modified = NameExtents().run(graph, PassContext()).modified
    assert not NameExtents().run(graph, PassContext()).modified
    return {v.name or "": str(v.shape) for node in graph.graph for v in node.outputs}, modified


PYRAMID = f"""(float[1,16,h,w0] x, float[1,16,a,b] z) => (float[1,16,c,d] y) {{ {W} {weights('k', 16, 16, 1, 1)}
    r = Conv<strides = [2,2]>(x, w) s = Conv(z, k) t = Add(r, s) y = Conv<strides = [2,2]>(t, w) }}"""


def test_a_sum_of_unequal_expressions_is_named_once_and_its_readers_follow() -> None:
    shapes, modified = named(PYRAMID)
    assert modified
    assert shapes["t"] == "[1,16,t_d2,t_d3]"
    assert "t_d2" in shapes["y"]
    assert "t_d3" in shapes["y"]


def test_nothing_is_named_that_no_window_needs() -> None:
    shapes, modified = named(PYRAMID.replace("y = Conv<strides = [2,2]>(t, w)", "y = Relu(t)"))
    assert not modified
    assert "None" in shapes["t"]


def test_known_shapes_and_unknown_ranks_are_left_alone() -> None:
    assert not named(f"(float[1,16,h,w0] x) => (float[1,16,a,b] y) {{ {W} y = Conv(x, w) }}")[1]
    assert not named(f"(float[1,16,h,w0] x, int64[n] s) => (float y) {{ {W} t = Reshape(x, s) y = Conv(t, w) }}")[1]


def test_names_with_slashes_are_no_divisions() -> None:
    graph = model(PYRAMID)
    for step in NORMALISE:
        step.run(graph, PassContext())
    next(n for n in graph.graph if n.op_type == "Add").outputs[0].name = "/m/Add"
    assert NameExtents().run(graph, PassContext()).modified
    value = next(n for n in graph.graph if n.op_type == "Add").outputs[0]
    assert str(value.shape) == "[1,16,_m_Add_d2,_m_Add_d3]"
