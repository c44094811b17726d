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
    (f"(float[B,64] x) => (float[B,64] y, float[64,64] w) {{ {DEQUANTIZE} y = MatMul(x, w) }}",
     "also read by DequantizeLinear"),
    (f"(float[B,64] x) => (float[B,64] y, float[64,64] z) {{ {DEQUANTIZE} y = MatMul(x, w) z = Relu(w) }}",
     "also read by DequantizeLinear"),
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


def test_two_products_of_one_computed_matrix() -> None:
    graph, bodies, reasons = fused(f"(float[B,64] x) => (float[B,64] y) {{ {DEQUANTIZE} t = MatMul(x, w) "
                                   "y = MatMul(t, w) }")
    assert bodies == ["DequantizeLinear MatMul"]
    assert not reasons
    assert [n.op_type[:4] for n in graph.graph] == ["Gemm", "Gemm"]


ROWS = f"{DEQUANTIZE} a = Constant<value = float {{0.02}}>() p = Constant<value = uint8 {{120}}>() "


@pytest.mark.parametrize(("body", "nodes", "left"), [
    (f"{ROWS} d = DequantizeLinear(x, a, p) y = MatMul(d, w)", "DequantizeLinear DequantizeLinear MatMul", 1),
    (f"{ROWS} v = DequantizeLinear<axis=0>(q, s) d = DequantizeLinear(x, a, p) y = Gemm<transB=1>(d, v)",
     "DequantizeLinear DequantizeLinear Gemm", 1),
    (f"{ROWS} v = DequantizeLinear(q, a) d = DequantizeLinear(x, a, p) t = MatMul(d, w) u = MatMul(d, v) "
     "e = Softmax(t) g = Softmax(u) y = Add(e, g)", "DequantizeLinear DequantizeLinear MatMul", 2),
    (f"{ROWS} c = Constant<value = int32[64] {{{', '.join(map(str, range(64)))}}}>() b = DequantizeLinear(c, a) "
     "d = DequantizeLinear(x, a, p) y = Gemm(d, w, b)", "DequantizeLinear DequantizeLinear DequantizeLinear Gemm", 1),
    (f"{Q} {S} i = MatMulInteger(x, q, z) f = Cast<to=1>(i) r = Mul(k, s) y = Mul(f, r)",
     "MatMulInteger Cast Mul Mul", 1),
])
def test_integers(body: str, nodes: str, left: int) -> None:
    """The dequantized rows are copied for each product that reads them; scales and biases that are small join it."""
    graph, bodies, reasons = fused(f"(uint8[B,64] x, uint8 z, float k) => (float[B,64] y) {{ {body} }}")
    assert sorted(bodies[0].split()) == sorted(nodes.split())
    assert not reasons
    assert sum(n.op_type.startswith("Gemm_") for n in graph.graph) == left
    assert not {"DequantizeLinear", "MatMul"} & {n.op_type for n in graph.graph}


def test_integer_rows_that_others_read_stay() -> None:
    graph, bodies, _ = fused(f"(uint8[B,64] x) => (float[B,64] y, float[B,64] e) {{ {ROWS} "
                             "d = DequantizeLinear(x, a, p) y = MatMul(d, w) e = Exp(d) }")
    assert bodies == ["DequantizeLinear DequantizeLinear MatMul"]
    assert sorted(n.op_type.partition("_")[0] for n in graph.graph) == ["DequantizeLinear", "Exp", "Gemm"]
