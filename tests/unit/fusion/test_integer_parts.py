"""DequantizeLinear and QuantizeLinear around what ONNX Runtime computes in integers stay with it."""

from __future__ import annotations

import pytest

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import QuantizeBarrier, RegionFusion
from tilegraph.rewrites.fusion.composite import make_composite
from tilegraph.rewrites.fusion.integers import REASON

CONV = """(uint8[1,8,64,64] x, int8[8,8,3,3] w, float s, uint8 z) => (uint8[1,8,62,62] y) {
    d = DequantizeLinear(x, s, z) v = DequantizeLinear(w, s) c = Conv(d, v) %s y = QuantizeLinear(r, s, z) }"""


def regions(text: str, offload: str = "auto") -> tuple[list[str], dict[str, str]]:
    graph = model(text)
    context = PassContext()
    RegionFusion(offload).run(graph, context)
    left = {d.subject.partition("_")[0]: d.reason for d in context.diagnostics.of("fusion", taken=False)}
    return [n.op_type.partition("_")[0] for n in graph.graph], left


@pytest.mark.parametrize("between", ["r = Relu(c)", "r = Clip(c)"])
def test_kept(between: str) -> None:
    found, left = regions(CONV % between)
    assert sorted(found) == sorted(["DequantizeLinear", "DequantizeLinear", "Conv", between[4:8], "QuantizeLinear"])
    assert left["DequantizeLinear"] == left["QuantizeLinear"] == REASON


def test_all_takes_them() -> None:
    assert "Region" in regions(CONV % "r = Relu(c)", "all")[0]


def test_other_nodes_behind_are_a_region() -> None:
    """ONNX Runtime has no integers there, so QuantizeLinear goes with what is before it."""
    found, _ = regions(CONV % "a = Erf(c) b = Mul(a, c) r = Sigmoid(b)")
    assert sorted(found) == ["Conv", "DequantizeLinear", "DequantizeLinear", "Region"]


def test_floats_on_one_side_are_a_region() -> None:
    text = """(uint8[64,4096] x, float[4096,64] w, float s, uint8 z) => (float[64,64] y) {
        d = DequantizeLinear(x, s, z) e = Erf(d) f = Mul(e, d) y = MatMul(f, w) }"""
    assert "Region" in regions(text)[0]


BARRIER = """(float[2,8,16] x) => (uint8[2,16,8] y) {{
    s = Constant<value = float {{0.05}}>() z = Constant<value = uint8 {{128}}>()
    a = Tanh(x) b = Mul(a, x) {moves} y = QuantizeLinear(t, s, z) }}"""


def test_no_barrier_behind_an_input() -> None:
    graph = model("""(float[2,8,16] x) => (uint8[2,16,8] y) {
        s = Constant<value = float {0.05}>() z = Constant<value = uint8 {128}>()
        t = Transpose<perm=[0, 2, 1]>(x) y = QuantizeLinear(t, s, z) }""", 20)
    assert not QuantizeBarrier().run(graph, PassContext()).modified


@pytest.mark.parametrize(("moves", "expected"), [
    ("t = Transpose<perm=[0, 2, 1]>(b)", ["Region", "Max", "Transpose", "QuantizeLinear"]),
    ("i = Constant<value = int64[3] {2, 16, 8}>() t = Reshape(b, i)",
     ["Constant", "Region", "Max", "Reshape", "QuantizeLinear"]),
    ("u = Transpose<perm=[0, 2, 1]>(b) t = Identity(u)", ["Region", "Transpose", "Identity", "QuantizeLinear"]),
])
def test_barrier(moves: str, expected: list[str]) -> None:
    """Only between a kernel and what ONNX Runtime moves QuantizeLinear across."""
    graph = model(BARRIER.format(moves=moves), 20)
    assert not QuantizeBarrier().run(graph, PassContext()).modified, "no kernel yet"
    nodes = [n for n in graph.graph if n.op_type in ("Tanh", "Mul")]
    make_composite(graph, graph.graph, nodes, [nodes[-1].outputs[0]])
    graph.graph.sort()
    modified = QuantizeBarrier().run(graph, PassContext()).modified
    found = [n.op_type.partition("_")[0] for n in graph.graph if n.op_type != "Constant"]
    assert found == [op for op in expected if op != "Constant"]
    assert modified == ("Max" in expected)
    assert all(v.type is not None for n in graph.graph for v in n.outputs)
    assert not QuantizeBarrier().run(graph, PassContext()).modified
