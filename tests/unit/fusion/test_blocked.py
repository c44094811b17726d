"""Where a kernel between convolutions adds conversions of layout, and where ONNX Runtime makes them anyway."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView
from tilegraph.rewrites.fusion.blocked import cut_out, free_in_runtime, is_blocked

HEAD = """(float[1,16,8,8] x, float[16,16,3,3] w, float[16] g, float[1,16,1,1] s) => (float[1,16,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w) c = Conv<pads=[1,1,1,1]>(a, w) """


def prepared(body: str) -> tuple[GraphView, dict[str, ir.Value], dict[str, ir.Node]]:
    made = model(HEAD + body + " }")
    view = GraphView(made.graph)
    values = {v.name or "": v for n in made.graph for v in n.outputs}
    return view, values, {n.outputs[0].name or "": n for n in made.graph}


@pytest.mark.parametrize(("node", "blocked"), [
    ("Relu(c)", True), ("MaxPool<kernel_shape=[1,1]>(c)", True), ("Add(a, c)", True), ("Mul(a, c)", True),
    ("BatchNormalization(c, g, g, g, g)", True), ("Mul(c, s)", False), ("Add(x, c)", False), ("Exp(c)", False),
    ("Relu(x)", False), ("MaxPool<kernel_shape=[1,1]>(x)", False),
])
def test_values(node: str, blocked: bool) -> None:
    _, values, _ = prepared(f"b = {node} y = Conv<pads=[1,1,1,1]>(b, w)")
    assert is_blocked(values["b"]) is blocked
    assert is_blocked(values["y"])


@pytest.mark.parametrize(("weights", "groups", "blocked"), [
    ((16, 4, 3, 3), 4, False), ((16, 1, 3, 3), 16, True), ((24, 1, 3, 3), 24, False), ((32, 1, 3, 3), 16, False),
    ((64, 16, 3, 3), 4, True), ((16, 16, 3, 3), 1, True),
])
def test_groups(weights: tuple[int, ...], groups: int, blocked: bool) -> None:
    """ONNX Runtime's blocked layout takes groups of whole blocks, and depthwise convolutions of whole blocks."""
    made = model(f"(float[1,{weights[1] * groups},8,8] x, float[{','.join(map(str, weights))}] w) => "
                 f"(float[1,{weights[0]},6,6] y) {{ y = Conv<group={groups}>(x, w) }}")
    (value,) = made.graph.outputs
    assert is_blocked(value) is blocked


def test_concat_of_channels_stays_blocked() -> None:
    _, values, _ = prepared("b = Concat<axis=1>(a, c) e = Concat<axis=2>(a, c) y = Add(a, c)")
    assert is_blocked(values["b"])
    assert not is_blocked(values["e"])


@pytest.mark.parametrize(("gate", "blocked"), [("HardSigmoid", True), ("Sigmoid", False)])
def test_gates(gate: str, blocked: bool) -> None:
    """ONNX Runtime makes its QuickGelu of x * Sigmoid(x), which is not blocked; hard swish is."""
    view, values, nodes = prepared(f"h = {gate}(c) b = Mul(c, h) y = Conv<pads=[1,1,1,1]>(b, w)")
    assert is_blocked(values["b"]) is blocked
    assert free_in_runtime(nodes["h"], view) is blocked
    assert free_in_runtime(nodes["b"], view) is blocked
    cut = cut_out([values["c"]], [values["b"]], {nodes["h"], nodes["b"]}, view)
    assert [v.name for v in cut] == (["c", "b"] if blocked else [])


def test_a_kernel_in_a_blocked_trunk_pays_on_both_sides() -> None:
    view, values, nodes = prepared("b = Relu(c) y = Conv<pads=[1,1,1,1]>(b, w)")
    assert [v.name for v in cut_out([values["c"]], [values["b"]], {nodes["b"]}, view)] == ["c", "b"]
    assert free_in_runtime(nodes["b"], view)


def test_scales_by_channel_are_converted_anyway() -> None:
    view, values, nodes = prepared("b = Mul(c, s) y = Conv<pads=[1,1,1,1]>(b, w)")
    assert cut_out([values["c"]], [values["b"]], {nodes["b"]}, view) == []
    assert not free_in_runtime(nodes["b"], view)


def test_a_reader_elsewhere_that_needs_plain_values_pays_for_them() -> None:
    view, values, nodes = prepared("b = Relu(c) e = Exp(c) y = Add(b, e)")
    assert cut_out([values["c"]], [values["b"]], {nodes["b"]}, view) == []


def test_residual_sums_are_free() -> None:
    view, _, nodes = prepared("k = Relu(a) b = Add(c, k) e = Add(b, s) y = Relu(e)")
    assert free_in_runtime(nodes["b"], view)
    assert not free_in_runtime(nodes["e"], view)
