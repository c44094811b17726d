"""DequantizeLinear and QuantizeLinear around what ONNX Runtime computes in integers stay with it."""

from __future__ import annotations

import pytest

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion
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
