"""What computes a product's matrix from constants joins the composite, unless something else reads it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.gemm import GemmFusion
from tilegraph.rewrites.normalise import NORMALISE

Q = "q = Constant<value = int8[64,64] {" + ", ".join(str(k % 251 - 125) for k in range(64 * 64)) + "}>()"
S = "s = Constant<value = float[64] {" + ", ".join(str(0.01 * (k % 5 + 1)) for k in range(64)) + "}>()"
DEQUANTIZE = f"{Q} {S} w = DequantizeLinear<axis=1>(q, s)"


def fused(text: str) -> tuple[ir.Model, list[str], list[str]]:
    graph = model(text, 21)
    context = PassContext(fold_limit_bytes=0)
    for step in NORMALISE:
        step.run(graph, context)
    GemmFusion("auto").run(graph, context)
    bodies = [" ".join(n.op_type for n in f if n.op_type != "Constant") for f in graph.functions.values()]
    return graph, bodies, [d.reason for d in context.diagnostics.of("gemm", taken=False)]


@pytest.mark.parametrize(("body", "nodes"), [
    (f"{DEQUANTIZE} y = MatMul(x, w)", "DequantizeLinear MatMul"),
    (f"{DEQUANTIZE} t = MatMul(x, w) y = Relu(t)", "DequantizeLinear MatMul Relu"),
    (f"{DEQUANTIZE} v = Transpose(w) y = MatMul(x, v)", "DequantizeLinear Transpose MatMul"),
    (f"{DEQUANTIZE} y = Gemm<transB=1>(x, w)", "DequantizeLinear Gemm"),
    (f"{Q} {S} f = Cast<to=1>(q) w = Mul(f, s) y = MatMul(x, w)", "Cast Mul MatMul"),
])
def test_taken(body: str, nodes: str) -> None:
    graph, bodies, reasons = fused(f"(float[B,64] x) => (float[B,64] y) {{ {body} }}")
    assert bodies == [nodes]
    assert not reasons
    assert len(graph.graph) == 1
    assert {v.dtype for v in graph.graph.initializers.values()} == {ir.DataType.INT8, ir.DataType.FLOAT}


@pytest.mark.parametrize(("text", "reason"), [
    (f"(float[B,64] x) => (float[B,64] y, float[64,64] w) {{ {DEQUANTIZE} y = MatMul(x, w) }}", "not constant"),
    (f"(float[B,64] x) => (float[B,64] y, float[64,64] z) {{ {DEQUANTIZE} y = MatMul(x, w) z = Relu(w) }}",
     "not constant"),
    (f"(float[B,64] x, float[64] g) => (float[B,64] y) {{ {Q} f = Cast<to=1>(q) w = Mul(f, g) y = MatMul(x, w) }}",
     "not constant"),
    (f"(float[B,64] x) => (float[B,64] y, int8[64,64] z) {{ {DEQUANTIZE} y = MatMul(x, w) z = Neg(q) }}",
     "also read by Neg"),
    (f"(float[B,64] x) => (float[B,64] y) {{ {Q} {S} f = Cast<to=1>(q) w = Softmax(f) y = MatMul(x, w) }}",
     "not constant"),
])
def test_refused(text: str, reason: str) -> None:
    graph, bodies, reasons = fused(text)
    assert not bodies
    assert any(reason in r for r in reasons), reasons
    assert not graph.functions


def test_equal_layers_share_a_body() -> None:
    other = f"q2 = Constant<value = int8[64,64] {{{', '.join(str(k % 7) for k in range(64 * 64))}}}>() " \
        "w2 = DequantizeLinear<axis=1>(q2, s)"
    _, bodies, _ = fused(f"(float[B,64] x) => (float[B,64] y) {{ {DEQUANTIZE} {other} t = MatMul(x, w) "
                         "y = MatMul(t, w2) }")
    assert bodies == ["DequantizeLinear MatMul"]


def test_two_products_of_one_computed_matrix_are_left() -> None:
    _, bodies, reasons = fused(f"(float[B,64] x) => (float[B,64] y) {{ {DEQUANTIZE} t = MatMul(x, w) "
                               "y = MatMul(t, w) }")
    assert not bodies
    assert set(reasons) == {"the matrix is not constant"}
