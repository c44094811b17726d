"""Winograd's F(4x4, 3x3) on request: against float64, and against the same algorithm in standard ONNX, whose error
bounds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tests.numeric.conv_kernels.conv_runner as runner
from tests.numeric.codegen.runner import Array
from tests.numeric.conv_kernels.test_conv_kernel import feeds_of, normal, text_of
from tests.unit.conv_kernels.bodies import body
from tilegraph.codegen.isa import Isa, host
from tilegraph.compiler import optimize
from tilegraph.ops.conv import ConvSpace, algorithm, lower_conv, plan_conv, plan_fast
from tilegraph.verify import verify
from tilegraph.verify.winograd import as_computed

pytestmark = pytest.mark.skipif(host().vector_bits < 512, reason="this machine has no AVX-512")

EPS = 1.2e-7


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def fast(lowered: object) -> ConvSpace:
        return replace(plan_conv(lowered), fast=True)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "plan_conv", fast)


def emulated(text: str, feeds: dict[str, Array]) -> Array:
    """The plain model with the algorithm in standard ONNX, by ONNX Runtime."""
    model = runner.body_plain(text)
    inputs = [ir.Value(name=f"{v.name}_in", shape=v.shape, type=v.type) for v in model.graph.inputs]
    (made,) = model.graph.outputs
    outer = ir.Value(name="answer", shape=made.shape, type=made.type)
    function = ir.Function("ai.tilegraph", "ConvFast_1", "", graph=model.graph, attributes=[])
    call = ir.Node("ai.tilegraph", "ConvFast_1", inputs, outputs=[outer], name="call")
    whole = ir.Model(ir.Graph(inputs, [outer], nodes=[call], opset_imports={"": 20, "ai.tilegraph": 1}, name="g"),
                     ir_version=10, functions=[function])
    as_computed(whole)
    assert "ConvTranspose" in [n.op_type for n in function], "nothing was rewritten"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(whole).SerializeToString(), options,
                                   providers=["CPUExecutionProvider"])
    answer: Array = session.run(None, {f"{k}_in": a for k, a in feeds.items()})[0]
    return answer


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("n", "c", "k", "size", "pads"), [
    (1, 32, 32, (12, 12), "1,1,1,1"), (2, 64, 176, (13, 15), "1,1,1,1"), (1, 100, 40, (12, 33), "0,1,2,0"),
    (1, 48, 48, (15, 14), "2,2,2,2"), (3, 256, 32, (18, 29), "1,1,1,1"),
])
def test_its_error_is_that_of_the_algorithm(n: int, c: int, k: int, size: tuple[int, int], pads: str,
                                            symbolic: bool) -> None:
    feeds = feeds_of(n, c, k, size, (3, 3))
    text = text_of(feeds, f"pads=[{pads}]", "y = LeakyRelu(t)")
    if symbolic:
        text = text.replace(f"[{n},{c},{size[0]},{size[1]}] x", f"[N,{c},H,W] x").replace(f"[{n},{k},A", f"[N,{k},A")
    made = body(text)
    assert algorithm(plan_fast(lower_conv(made.nodes, [made.output], {"": 20}))) == "winograd4"
    exact, same = runner.reference(text, feeds, wide=True), emulated(text, feeds)
    got = runner.run(text, feeds)
    error, other = (float(np.abs(a - exact).max()) for a in (got, same))
    assert other <= 2e-5, "the algorithm in standard ONNX computes something else"
    assert error <= max(2 * other, 4 * EPS * float(np.abs(exact).max()))


def test_scaled_channels_memory_and_avx2() -> None:
    feeds = feeds_of(2, 33, 20, (13, 18), (3, 3))
    feeds["s"] = normal(2, 33, 1, 1, seed=5)
    text = ("(float[2,33,13,18] x, float[20,33,3,3] w, float[20] b, float[2,33,1,1] s) => (float[2,20,A,B] y) "
            "{ q = Mul(x, s) t = Conv<pads=[1,1,1,1]>(q, w, b) y = Relu(t) }")
    exact = runner.reference(text, feeds, wide=True)
    for isa, lanes in ((None, 16), (Isa("x86-64-v3"), 8)):
        got = runner.run(text, feeds, lanes=lanes, blocked=("x", "s"), isa=isa, fences=True)
        assert float(np.abs(got - exact).max()) <= 2e-5


def trunk(path: Path, wrong: float = 0.0) -> Path:
    """Three 3x3 convolutions; the weights of the last are off by `wrong`, relatively."""
    rng = np.random.default_rng(0)
    nodes, weights, name, depth = [], [], "x", 3
    for i, filters in enumerate((32, 48, 32)):
        w = (rng.normal(size=(filters, depth, 3, 3)) * (2 / (9 * depth)) ** 0.5).astype(np.float32)
        if i == 2:
            w *= np.float32(1 + wrong)
        weights += [numpy_helper.from_array(w, f"w{i}"),
                    numpy_helper.from_array(rng.normal(size=filters).astype(np.float32), f"b{i}")]
        nodes += [helper.make_node("Conv", [name, f"w{i}", f"b{i}"], [f"c{i}"], pads=[1, 1, 1, 1]),
                  helper.make_node("Relu", [f"c{i}"], [name := f"r{i}" if i < 2 else "y"])]
        depth = filters
    graph = helper.make_graph(
        nodes, "trunk", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 13])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32, 12, 13])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_verify_bounds_it_by_the_same_algorithm_and_excuses_nothing_else(tmp_path: Path) -> None:
    original = trunk(tmp_path / "m.onnx")
    made = optimize(original, fast_winograd=True)
    kinds = [n.op_type.partition("_")[0] for n in made.portable.graph]
    assert kinds.count("ConvFast") == 2, "the first has too few channels"
    result = verify(original, made.save(tmp_path / "m.tilegraph"), samples=1)
    (output,) = result.outputs
    assert result.same
    assert output.ort_error is not None
    assert output.requested_error is not None
    assert output.atol == 2 * output.requested_error > 2 * output.ort_error
    assert any("fast-winograd was asked for" in note for note in result.notes)
    off = optimize(trunk(tmp_path / "w.onnx", 1e-4), fast_winograd=True).save(tmp_path / "w.tilegraph")
    assert not verify(original, off, samples=1).same


def test_it_is_never_the_default(tmp_path: Path) -> None:
    made = optimize(trunk(tmp_path / "m.onnx"), dry_run=True)
    kinds = {n.op_type.partition("_")[0] for n in made.portable.graph}
    assert "Conv" in kinds
    assert "ConvFast" not in kinds
