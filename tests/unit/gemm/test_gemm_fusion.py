"""Which products become composites, with what epilogue, and each reason to stay out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.gemm import GemmFusion
from tilegraph.rewrites.normalise import NORMALISE

W = "w = Constant<value = float[64,64] {" + ", ".join(str(k % 7 - 3) for k in range(64 * 64)) + "}>()"
B = "b = Constant<value = float[64] {" + ", ".join(str(k % 5) for k in range(64)) + "}>()"


def fused(text: str, offload: str = "auto", precision: str = "float32") -> tuple[ir.Model, list[str], list[str]]:
    """The model, the operators of each composite, and the reasons against others."""
    graph = model(text)
    context = PassContext()
    for step in NORMALISE:
        step.run(graph, context)
    result = GemmFusion(offload, precision).run(graph, context)
    taken = context.diagnostics.of("gemm", taken=True)
    assert result.modified == bool(taken)
    bodies = [" ".join(n.op_type for n in f if n.op_type != "Constant") for f in graph.functions.values()]
    return graph, bodies, [d.reason for d in context.diagnostics.of("gemm", taken=False)]


def test_bias_gelu_and_residual() -> None:
    text = f"""(float[B,8,64] x) => (float[B,8,64] y) {{ {W} {B} s = Constant<value = float {{1.414}}>()
        one = Constant<value = float {{1.0}}>() t = MatMul(x, w) u = Add(t, b) d = Div(u, s) e = Erf(d) f = Add(e, one)
        g = Mul(u, f) y = Add(g, x) }}"""
    graph, bodies, reasons = fused(text)
    assert bodies == ["MatMul Add Div Erf Add Mul Add"]
    assert not reasons
    assert [n.op_type[:5] for n in graph.graph] == ["Gemm_"]


@pytest.mark.parametrize("shape", ["1", "7", "B", "B,S", "B,16"])
def test_any_rows(shape: str) -> None:
    assert fused(f"(float[{shape},64] x) => (float[{shape},64] y) {{ {W} y = MatMul(x, w) }}")[1] == ["MatMul"]


def test_the_epilogue_ends_where_a_value_is_read_twice() -> None:
    _, bodies, _ = fused(f"(float[8,64] x) => (float[8,64] y, float[8] z) {{ {W} {B} "
                         "l = Constant<value = int64[1] {1}>() "
                         "t = MatMul(x, w) u = Add(t, b) y = Relu(u) z = ReduceSum<keepdims=0>(u, l) }")
    assert bodies == ["MatMul Add"]


def test_no_epilogue_across_a_broadcast() -> None:
    _, bodies, _ = fused(f"(float[8,64] x, float[5,8,64] r) => (float[5,8,64] y) {{ {W} "
                         "t = MatMul(x, w) y = Add(t, r) }")
    assert bodies == ["MatMul"]


@pytest.mark.parametrize("text", [
    f"(float[64] x) => (float[64] y) {{ {W} y = MatMul(x, w) }}",
    f"(float[8,64] x) => (float[8,64] y) {{ {W} {B} y = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, b) }}",
    f"(float[64,1] x) => (float[1,64] y) {{ {W} y = Gemm<transA=1>(x, w) }}",
    f"(float[2,8,64] x) => (float[8,64,2] y) {{ {W} y = Einsum<equation=\"bsk,jk->sjb\">(x, w) }}".replace("2", "1"),
    f"(float[3,8,64] x) => (float[3,8,64] y) {{ {W} i = Constant<value = int64[3] {{1, 64, 64}}>() v = Reshape(w, i) "
    "y = MatMul(x, v) }",
])
def test_spellings(text: str) -> None:
    graph, bodies, reasons = fused(text)
    assert not reasons
    assert len(bodies) == 1
    assert len(graph.graph) == 1


@pytest.mark.parametrize(("text", "reason"), [
    ("(float[8,64] x, float[64,64] w) => (float[8,64] y) { y = MatMul(x, w) }", "the matrix is not constant"),
    ("(float16[8,64] x, float16[64,64] w) => (float16[8,64] y) { y = MatMul(x, w) }", "kernels are float32"),
    ("(float[3,8,64] x, float[3,64,64] w) => (float[3,8,64] y) { y = MatMul(x, w) }", "has 3 dims"),
    (f"(float[8,64] x) => (float[8] y) {{ {B} y = MatMul(x, b) }}", "a product with a vector"),
    (f"(float[64,8] x) => (float[8,64] y) {{ {W} y = Gemm<transA=1>(x, w) }}", "not contiguous along the summed"),
    (f"(float[8,64] x) => (float[8,64,64] y) {{ {W} y = Einsum<equation=\"ik,jk->ijk\">(x, w) }}",
     "a matrix for each k"),
    (f"(float[8,64] x) => (float[64] y) {{ {W} y = Einsum<equation=\"ik,kj->j\">(x, w) }}", "labels of one operand"),
    (f"(float[8,64] x) => (float[8] y) {{ {W} y = Einsum<equation=\"ik,jk->i\">(x, w) }}", "labels of one operand"),
    (f"(float[8,64] x) => (float[8,64] y) {{ {W} y = Einsum<equation=\"...k,kj->...j\">(x, w) }}", "an ellipsis"),
    ("(float[64,8] x) => (float[8,64] y) { y = Einsum<equation=\"ij->ji\">(x) }", "only two operands"),
    (f"(float[64,8] x) => (float[8,64] y) {{ {W} y = Einsum<equation=\"ki,kj->ij\">(x, w) }}",
     "not contiguous along the summed"),
    ("(float[8,0] x) => (float[8,64] y) { w = Constant<value = float[0,64] {}>() y = MatMul(x, w) }", "empty"),
    (f"(float[8,64] x, float[64,64] q) => (float[8,64] y, float[64,64] z) {{ {W} y = MatMul(x, w) z = Add(w, q) }}",
     "also read by Add"),
    (f"(float[8,64] x) => (float[8,64] y, float[8,64] z) {{ {W} y = MatMul(x, w) z = Gemm<transB=1>(x, w) }}",
     "read in another layout too"),
    ("(float[8,2] x) => (float[8,2] y) { w = Constant<value = float[2,2] {1, 2, 3, 4}>() y = MatMul(x, w) }",
     "below 16"),
    (f"(float[8,16] x) => (float[8,47] y) {{ w = Constant<value = float[16,47] {{{', '.join('1' * 752)}}}>() "
     "y = MatMul(x, w) }", "fewer than 3072"),
])
def test_refusals(text: str, reason: str) -> None:
    graph, bodies, reasons = fused(text)
    assert not bodies
    assert reasons
    assert all(reason in r for r in reasons), reasons
    assert not graph.functions


def test_a_tied_matrix_is_one_composite_twice() -> None:
    graph, bodies, reasons = fused(f"(float[8,64] x) => (float[8,64] y) {{ {W} t = MatMul(x, w) y = MatMul(t, w) }}")
    assert bodies == ["MatMul"]
    assert not reasons
    assert len({n.op_type for n in graph.graph}) == 1
    assert len(graph.graph) == 2


def test_what_a_copied_node_reads_is_copied_too() -> None:
    """The Reshape of one number joins the first product and stays for the other, and so does its Transpose."""
    row = ", ".join(str(k % 5 + 1) for k in range(16))
    graph, bodies, _ = fused(f"""(float[1,1] x) => (float[1,1,16] y, float[1,1,16] z) {{
        one = Constant<value = int64[3] {{1,1,1}}>() v = Constant<value = float[1,16] {{{row}}}>() w = Neg(v)
        t = Transpose(x) r = Reshape(t, one) a = MatMul(r, v) y = Softmax(a)
        b = MatMul(r, w) z = Softmax(b) }}""", "all")
    assert bodies == ["Transpose Reshape MatMul"]
    assert [n.op_type.partition("_")[0] for n in graph.graph] == ["Gemm", "Softmax", "Gemm", "Softmax"]


def test_tied_embeddings() -> None:
    """Gather keeps reading them as they are; their transpose is too large to be folded and joins the composite."""
    w = np.random.default_rng(0).normal(size=(600, 512)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["w", "i"], ["e"]), helper.make_node("Transpose", ["w"], ["v"], perm=[1, 0]),
             helper.make_node("MatMul", ["e", "v"], ["y"])]
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("i", TensorProto.INT64, ["S"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["S", 600])], [numpy_helper.from_array(w, "w")])
    graph = ir.serde.deserialize_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)]))
    context = PassContext()
    for step in NORMALISE:
        step.run(graph, context)
    assert GemmFusion().run(graph, context).modified
    assert [n.op_type.partition("_")[0] for n in graph.graph] == ["Gather", "Gemm"]
    (function,) = graph.functions.values()
    assert [n.op_type for n in function] == ["Transpose", "MatMul"]


def test_offload() -> None:
    small = "(float[2,2] x) => (float[2,2] y) { w = Constant<value = float[2,2] {1, 2, 3, 4}>() y = MatMul(x, w) }"
    assert fused(small, "all")[1] == ["MatMul"]
    assert fused(f"(float[8,64] x) => (float[8,64] y) {{ {W} y = MatMul(x, w) }}", "none")[1] == []


def test_bfloat16_on_request() -> None:
    text = f"(float[8,64] x) => (float[8,64] y) {{ {W} {B} y = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, b) }}"
    graph, bodies, _ = fused(text, precision="bf16")
    assert bodies == ["Cast Cast Cast Cast Gemm"]
    (call,) = graph.graph
    assert [v.dtype for v in call.inputs if v is not None] == [ir.DataType.FLOAT] * 3
    (body,) = graph.functions.values()
    product = next(n for n in body if n.op_type == "Gemm")
    assert [v.dtype for v in product.inputs if v is not None] == [ir.DataType.FLOAT] * 3


def test_what_stays_with_onnx_runtime_stays_float32() -> None:
    graph, bodies, _ = fused("(float[8,64] x, float[64,64] w) => (float[8,64] y) { y = MatMul(x, w) }",
                             precision="bf16")
    assert not bodies
    assert [n.op_type for n in graph.graph] == ["MatMul"]


def test_narrow_vectors_leave_products_to_onnx_runtime() -> None:
    """Not to the code generator, which would have to give up the whole partition around them."""
    graph = model(f"(float[8,64] x) => (float[8,64] y) {{ {W} t = MatMul(x, w) y = Tanh(t) }}")
    context = PassContext()
    for step in NORMALISE:
        step.run(graph, context)
    assert not GemmFusion("all", vector_bits=128).run(graph, context).modified
    (reason,) = [d.reason for d in context.diagnostics.of("gemm", taken=False)]
    assert "vectors of 256 bits or more, not 128" in reason


U = W.replace("w =", "u =").replace("{-3", "{1")
V = W.replace("w =", "v =").replace("{-3", "{2")


@pytest.mark.parametrize(("text", "body"), [
    ("t = MatMul(x, w) s = Sigmoid(t) g = Mul(t, s) z = MatMul(x, u) y = Mul(g, z)", "MatMul Sigmoid Mul MatMul Mul"),
    ("z = MatMul(x, u) t = MatMul(x, w) g = Relu(t) y = Mul(g, z)", "MatMul MatMul Relu Mul"),
    ("t = Gemm<transB=1>(x, w, b) z = Gemm(x, u, b) y = Mul(t, z)", "Gemm Gemm Mul"),
    ("t = MatMul(x, w) z = MatMul(x, u) a = Mul(t, z) q = MatMul(x, v) y = Add(a, q)", "MatMul MatMul Mul MatMul Add"),
])
def test_products_of_the_same_rows_that_meet(text: str, body: str) -> None:
    _, bodies, reasons = fused(f"(float[B,64] x) => (float[B,64] y) {{ {W} {U} {V} {B} {text} }}")
    assert not reasons
    assert bodies == [body]


@pytest.mark.parametrize(("text", "joined"), [
    ("t = MatMul(x, w) g = Relu(t) r = Neg(x) z = MatMul(r, u) y = Mul(g, z)", False),  # other rows
    ("t = MatMul(x, w) z = MatMul(x, u) l = Softmax(t) y = Mul(l, z)", False),  # no way point by point
    ("t = MatMul(x, w) g = Relu(t) a = MatMul(x, u) z = MatMul(a, u) y = Mul(g, z)", False),
    ("t = MatMul(x, w) g = Relu(t) z = MatMul(x, u) a = Mul(g, z) c = Softmax(z) y = Add(a, c)", False),  # z twice
    ("t = MatMul(x, w) z = MatMul(x, u) a = Mul(t, z) y = MatMul(a, u)", False),  # something else reads u, too
    ("t = MatMul(x, w) z = MatMul(x, u) a = Mul(t, z) y = MatMul(a, v)", True),
])
def test_products_that_stay_apart(text: str, joined: bool) -> None:
    graph, bodies, reasons = fused(f"(float[B,64] x) => (float[B,64] y) {{ {W} {U} {V} {text} }}")
    assert not reasons
    assert not any(node.op_type == "MatMul" for node in graph.graph)
    assert any(body.count("MatMul") > 1 for body in bodies) == joined


def test_both_products_are_rounded_on_request() -> None:
    text = f"(float[8,64] x) => (float[8,64] y) {{ {W} {U} t = MatMul(x, w) z = MatMul(x, u) y = Mul(t, z) }}"
    assert fused(text, precision="bf16")[1] == ["Cast Cast Cast Cast MatMul Cast Cast Cast Cast MatMul Mul"]
