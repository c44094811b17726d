"""The pass behind --weights: which matrices it rounds, to what, how large the error is said to be, and each refusal."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilegraph.errors import UsageError
from tilegraph.io.convert_ops import REFUSED
from tilegraph.passes import PassContext
from tilegraph.rewrites.gemm.weights import KINDS, QuantizeWeights, quantize
from tilegraph.rewrites.normalise import Shapes

Array = np.ndarray
W = np.random.default_rng(0).normal(size=(80, 64)).astype(np.float32)


def model(nodes: list[tuple[str, list[str], list[str], dict[str, int]]], outputs: dict[str, list[int]], opset: int = 17,
          **arrays: Array) -> ir.Model:
    made = helper.make_graph(
        [helper.make_node(op, read, written, **attrs) for op, read, written, attrs in nodes], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 80])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()])
    return ir.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)]))


def rounded(graph: ir.Model, kind: str) -> tuple[list[str], list[str]]:
    """The operators, and the reasons against matrices."""
    context = PassContext()
    Shapes().run(graph, context)
    before = [n.op_type for n in graph.graph]
    result = QuantizeWeights(kind).run(graph, context)
    ops = [n.op_type for n in graph.graph]
    assert result.modified == (ops != before)
    return ops, [d.reason for d in context.diagnostics.of("weights", taken=False)]


def back(graph: ir.Model) -> Array:
    """The matrix that the DequantizeLinear of the model gives, in float64, along axis 0."""
    node = next(n for n in graph.graph if n.op_type == "DequantizeLinear")
    constants = [v.const_value for v in node.inputs if v is not None]
    parts = [c.numpy().astype(np.float64) for c in constants if c is not None]
    axis, block = node.attributes["axis"].as_int(), node.attributes["block_size"].as_int()
    q, s, *z = (part if axis == 0 else part.T for part in parts)
    spread = [np.repeat(a, block, 0)[:len(q)] for a in (s, *z)]
    return (q - (spread[1] if z else 0)) * spread[0]


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(("nodes", "matrix", "left"), [
    ([("MatMul", ["x", "w"], ["y"], {})], W, ["DequantizeLinear", "MatMul"]),
    ([("Gemm", ["x", "w"], ["y"], {})], W, ["DequantizeLinear", "Gemm"]),
    ([("Gemm", ["x", "w"], ["y"], {"transB": 1})], W.T.copy(), ["DequantizeLinear", "Gemm"]),
    ([("Transpose", ["w"], ["v"], {}), ("MatMul", ["x", "v"], ["y"], {})], W.T.copy(),
     ["DequantizeLinear", "Transpose", "MatMul"]),
])
def test_taken(nodes: list[tuple[str, list[str], list[str], dict[str, int]]], matrix: Array, left: list[str],
               kind: str) -> None:
    graph = model(nodes, {"y": [-1, 64]}, w=matrix)
    ops, reasons = rounded(graph, kind)
    assert ops == left
    assert not reasons
    assert graph.opset_imports[""] == 21
    assert "w" not in graph.graph.initializers
    found = back(graph)
    steps = 2.0 ** KINDS[kind].bits
    assert 0 < float(np.abs(found - W).max()) < 8.0 / steps
    assert {v.dtype for v in graph.graph.initializers.values()} == {
        ir.DataType.FLOAT, ir.DataType.INT8 if kind == "int8" else ir.DataType.UINT4}


@pytest.mark.parametrize(("kind", "limit"), [("int8", 0.01), ("int4", 0.1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_error_is_what_was_said(kind: str, limit: float, axis: int) -> None:
    how = KINDS[kind]
    made = quantize(W, axis, how)
    parts = {name: a.astype(np.float64) for name, a, _ in made.parts}
    spread = {k: np.repeat(v, how.block, axis)[tuple(slice(0, e) for e in W.shape)] for k, v in parts.items()
              if k != "integers"}
    found = (parts["integers"] - spread.get("zeros", 0.0)) * spread["scales"]
    assert made.largest == pytest.approx(float(np.abs(found - W).max()), rel=1e-3)
    assert made.relative == pytest.approx(float(np.linalg.norm(found - W) / np.linalg.norm(W)), rel=1e-3)
    assert 0 < made.relative < limit
    steps = (parts["integers"].min(), parts["integers"].max())
    assert steps == ((0, 15) if kind == "int4" else (-127, 127)), "not all steps are used"


@pytest.mark.parametrize("values", [np.zeros((80, 64)), np.full((80, 64), 3.0), np.full((80, 64), -1e-3)])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_equal_values_are_exact_but_for_a_rounding(values: Array, kind: str) -> None:
    made = quantize(values.astype(np.float32), 0, KINDS[kind])
    assert made.largest <= 1e-6 * float(np.abs(values).max())


@pytest.mark.parametrize(("nodes", "outputs", "arrays", "reason"), [
    ([("MatMul", ["x", "w"], ["y"], {}), ("Relu", ["w"], ["z"], {})], {"y": [-1, 64], "z": [80, 64]}, {"w": W},
     "something else than products reads it"),
    ([("MatMul", ["x", "w"], ["t"], {}), ("Gemm", ["t", "w"], ["y"], {"transB": 1})], {"y": [-1, 80]}, {"w": W},
     "two layouts"),
    ([("Gemm", ["x", "w", "w"], ["y"], {})], {"y": [80, 64]}, {"w": W}, "something else than products reads it"),
    ([("MatMul", ["x", "w"], ["y"], {})], {"y": [-1, 8]}, {"w": W[:, :8].copy()}, "fewer than 4096"),
    ([("MatMul", ["x", "w"], ["y"], {})], {"y": [-1, 64]}, {"w": np.where(W > 3, np.inf, W).astype(np.float32)},
     "not finite"),
])
def test_refused(nodes: list[tuple[str, list[str], list[str], dict[str, int]]], outputs: dict[str, list[int]],
                 arrays: dict[str, Array], reason: str) -> None:
    ops, reasons = rounded(model(nodes, outputs, opset=21, **arrays), "int8")
    assert ops == [n[0] for n in nodes]
    assert any(reason in r for r in reasons)


def test_a_product_of_two_inputs_is_left() -> None:
    graph = model([("MatMul", ["w", "x"], ["y"], {})], {"y": [80, 80]}, opset=21, w=W[:, :1].copy())
    assert rounded(graph, "int8") == (["MatMul"], [])


def test_an_opset_that_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REFUSED, ("MatMul", 13), "it changed")
    graph = model([("MatMul", ["x", "w"], ["y"], {})], {"y": [-1, 64]}, opset=12, w=W)
    with pytest.raises(UsageError, match=r"--weights int4: needs opset 21, and .* is in the way .*it changed"):
        QuantizeWeights("int4").run(graph, PassContext())
