"""Which products of the same rows become one composite with a result each, and what keeps others apart."""

from __future__ import annotations

import pytest

from tests.unit.fusion.parse import model
from tests.unit.gemm.test_gemm_fusion import B, U, V, W, fused
from tilegraph.passes import PassContext
from tilegraph.rewrites.gemm import GemmFusion
from tilegraph.rewrites.normalise import NORMALISE

Y3 = "float[B,64] p, float[B,64] q, float[B,64] r"


def said(text: str) -> list[str]:
    """What is said of each composite."""
    graph = model(text)
    context = PassContext()
    for step in (*NORMALISE, GemmFusion()):
        step.run(graph, context)
    return [d.reason for d in context.diagnostics.of("gemm", taken=True)]


def test_queries_keys_and_values() -> None:
    text = f"""(float[B,64] x) => ({Y3}) {{ {W} {U} {V} {B} s = MatMul(x, w) t = Add(s, b) p = Softmax(t)
        k = MatMul(x, u) q = Relu(k) r = MatMul(x, v) }}"""
    graph, bodies, reasons = fused(text)
    assert bodies == ["MatMul Add MatMul Relu MatMul"]
    assert not reasons
    call = next(n for n in graph.graph if n.op_type.startswith("Gemm_"))
    assert [v.name for v in call.outputs] == ["t", "q", "r"]
    assert [n.op_type.partition("_")[0] for n in graph.graph] == ["Gemm", "Softmax"]
    assert said(text) == ["5 nodes in one kernel, 3 products of the same rows among them, each with a result of its "
                          "own"]


def test_other_values_that_come_from_no_product() -> None:
    """A mask, or sizes of heads that are computed."""
    _, bodies, _ = fused(f"(float[B,64] x, float[B,64] m) => (float[B,64] p, float[B,64] q) {{ {W} {U} n = Neg(m) "
                         "o = Softmax(n) s = MatMul(x, w) p = Mul(s, o) q = MatMul(x, u) }")
    assert bodies == ["MatMul Mul MatMul"]


def test_each_is_rounded_on_request() -> None:
    _, bodies, _ = fused(f"(float[8,64] x) => (float[8,64] p, float[8,64] q) {{ {W} {U} p = MatMul(x, w) "
                         "q = MatMul(x, u) }", precision="bf16")
    assert bodies == ["Cast Cast Cast Cast MatMul Cast Cast Cast Cast MatMul"]


@pytest.mark.parametrize(("text", "expected", "reason"), [
    # The second needs what a third kernel makes of the first.
    ("p = MatMul(x, w) s = Softmax(p) k = MatMul(x, u) q = Add(k, s) r = Neg(x)", ["MatMul", "MatMul Add"],
     "it also reads s, which"),
    ("p = MatMul(x, w) g = Relu(p) k = MatMul(x, u) q = Mul(k, g) r = Neg(p)", ["MatMul", "MatMul Mul"],
     "it also reads g, which"),
    ("p = MatMul(x, w) k = MatMul(x, u) l = MatMul(x, v) q = Mul(k, l) r = Neg(x)", ["MatMul", "MatMul MatMul Mul"],
     "it reads two matrices already"),
    ("p = MatMul(x, w) q = MatMul(x, u) y = Neg(x) r = MatMul(y, u)", ["MatMul"], "its matrix is read elsewhere, too"),
])
def test_what_stays_apart(text: str, expected: list[str], reason: str) -> None:
    text = f"(float[B,64] x) => ({Y3}) {{ {W} {U} {V} {text} }}"
    graph, bodies, _ = fused(text)
    assert bodies == expected
    assert all(len(n.outputs) == 1 for n in graph.graph)
    assert any(f"apart from other products of its rows: {reason}" in one for one in said(text)), said(text)


def test_other_rows_and_one_product_are_no_group() -> None:
    text = f"(float[B,64] x) => ({Y3}) {{ {W} {U} {V} p = MatMul(x, w) q = MatMul(p, u) r = MatMul(q, v) }}"
    assert said(text) == ["1 nodes in one kernel"] * 3


def test_four_results_at_most() -> None:
    more = " ".join(W.replace("w =", f"w{k} =").replace("{-3", "{" + str(k)) for k in range(6))
    results = ", ".join(f"float[B,64] y{k}" for k in range(6))
    _, bodies, _ = fused(f"(float[B,64] x) => ({results}) {{ {more} " + " ".join(
        f"y{k} = MatMul(x, w{k})" for k in range(6)) + " }")
    assert sorted(body.count("MatMul") for body in bodies) == [2, 4]
