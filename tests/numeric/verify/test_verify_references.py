"""Which reference is used, that it is exact, and what happens when none fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from verify_pairs import Pairs

from tilegraph.errors import InputError
from tilegraph.verify import verify
from tilegraph.verify.draws import COUNT, Draws
from tilegraph.verify.ladder import ORT_DOUBLE, ORT_SAME, REFERENCE_DOUBLE, Ladder
from tilegraph.verify.numpy_ops import OPS

F, H = np.float32, np.float16
RNG = np.random.default_rng(3)


@pytest.mark.parametrize(("body", "reference"), [
    ("y = Tanh(x)", ORT_DOUBLE),
    ("y = Erf(x)", REFERENCE_DOUBLE),  # ORT has no Erf in double
    ("y = com.microsoft.QuickGelu<alpha = 1.0>(x)", ORT_SAME),
])
def test_rungs_of_the_ladder(make: Pairs, body: str, reference: str) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
    model = make(head + "g (float[n, 8] x) => (float[n, 8] y) { " + body + " }")
    result = verify(model, model)
    assert result.same
    assert result.outputs[0].reference == reference
    if reference == ORT_SAME:
        assert any("no float64 reference" in n for n in result.notes)
        assert result.outputs[0].rtol == 1e-4


@pytest.mark.parametrize("op", [
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Reciprocal", "Selu", "Sigmoid", "Sin",
    "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"])
def test_the_reference_has_the_digits_of_float64(op: str) -> None:
    x = RNG.random(32) * 0.5 + (1.0 if op in ("Acosh", "ThresholdedRelu") else 0.3)
    model = onnx.parser.parse_model(f'<ir_version: 13, opset_import: ["" : 24]> g (double[32] x) => (double[32] y) '
                                    f"{{ y = {op}(x) }}")
    (y,) = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, {"x": x})
    assert y.dtype == np.float64
    assert np.mean(y == y.astype(F)) < 0.1


@pytest.mark.parametrize(("opset", "axes", "mode", "pads"), [
    (11, None, "constant", [-1, 2, 0, 1, -2, -1]), (18, [-1, 0, 1], "constant", [2, -1, 0, -3, 1, 1]),
    (13, None, "constant", [-2, 0, 0, 2, 0, 0]), (19, None, "wrap", [1, 0, 2, 1, 0, 2]),
    (13, None, "reflect", [1, 0, 2, 1, 0, 2]), (13, None, "edge", [1, 0, 2, 1, 0, 2])])
def test_the_reference_pads_as_onnx_runtime(opset: int, axes: list[int] | None, mode: str, pads: list[int]) -> None:
    node = helper.make_node("Pad", ["x", "pads", "value", *(["axes"] if axes else [])], ["y"], mode=mode)
    given = [numpy_helper.from_array(np.array(pads), "pads"), numpy_helper.from_array(F(1.5), "value"),
             *([numpy_helper.from_array(np.array(axes), "axes")] if axes else [])]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [3, 4, 5])],
                              [helper.make_tensor_value_info("y", 1, None)], given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    x = RNG.standard_normal((3, 4, 5)).astype(F)
    (theirs,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (found,) = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, {"x": x})
    np.testing.assert_array_equal(found, theirs)


def test_draws_are_of_other_inputs_with_references_of_their_own(make: Pairs) -> None:
    path = make('<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[n] y) { y = Tanh(x) }')
    x = RNG.standard_normal(32).astype(F)
    pairs = Draws(path, [{"x": x}], threads=1, limit=20.0).pairs()
    assert len(pairs) == COUNT
    for (plain,), (double,) in pairs:
        assert plain.dtype == F
        assert double.dtype == np.float64
        moved = np.abs(np.arctanh(double) - x)
        assert (moved > 0).all()
        assert (moved < 0.0101 * np.abs(x)).all()
        assert np.abs(plain - double).max() < 2 * np.finfo(F).eps
    assert len({double.tobytes() for _, (double,) in pairs}) == COUNT
    by_bits = [np.all(np.abs(np.arctanh(d) - x) < 4 * np.spacing(np.abs(x))) for _, (d,) in pairs]
    assert by_bits == [True, False] * (COUNT // 2)
    assert Draws(path, [{"x": np.array(["a"])}], threads=1, limit=20.0).pairs() == []


def test_given_outputs_serve_where_double_does_not(make: Pairs, tmp_path: Path) -> None:
    model = make('<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
                 "g (float[n, 8] x) => (float[n, 8] y) { y = com.microsoft.QuickGelu<alpha = 1.0>(x) }")
    x = RNG.standard_normal((2, 8)).astype(F)
    exact = x / (1 + np.exp(-x.astype(float)))
    np.savez(tmp_path / "in.npz", in_x=x, out_y=exact)
    result = verify(model, model, inputs=tmp_path / "in.npz")
    assert result.same
    assert result.outputs[0].reference == "given expected outputs"
    np.savez(tmp_path / "in.npz", x=x, out_y=-exact)
    result = verify(model, model, inputs=tmp_path / "in.npz")
    assert result.outputs[0].reference == ORT_SAME
    assert any("given expected outputs is not used" in n for n in result.notes)


# (text, weights, exact function of x in float64)
N = RNG.standard_normal(16)
_X = "g (float[n, 4, 16] x) => (float[n, 4, 16] y) { "


def _norm(x: np.ndarray[Any, Any]) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _groups(x: np.ndarray[Any, Any]) -> Any:
    g = x.reshape(len(x), 2, -1)
    return ((g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)


def _local(x: np.ndarray[Any, Any]) -> Any:
    sums = np.stack([(x[:, max(c - 2, 0):c + 3] ** 2).sum(1) for c in range(4)], 1)
    return x / (1 + 0.1 * sums) ** 0.75


def _softmax(x: np.ndarray[Any, Any]) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("body", "exact"), [
    ("y = LayerNormalization(x, one)", _norm),
    ("y = RMSNormalization<epsilon = 1e-5>(x, one)", lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)),
    ("y = GroupNormalization<num_groups = 2>(x, ones, zeros)", _groups),
    ("y = LRN<size = 5, alpha = 0.5>(x)", _local),  # a window of five of four channels
    ("y = Softmax(x)", _softmax), ("y = Tanh(x)", np.tanh), ("y = Sigmoid(x)", lambda x: 1 / (1 + np.exp(-x))),
    ("y = Exp(x)", np.exp), ("y = Sin(x)", np.sin), ("p = Abs(x)\n y = Sqrt(p)", lambda x: np.sqrt(np.abs(x))),
    ("h = Cast<to = 10>(x)\n z = Cast<to = 1>(h)\n y = Tanh(z)", np.tanh),
    ("c = Constant<value_float = 0.1>()\n y = Mul(x, c)", lambda x: x * F(0.1).astype(float)),
    ("y = LeakyRelu<alpha = 0.5>(x)", lambda x: np.where(x < 0, 0.5 * x, x)),
    ("y = Softplus(x)", lambda x: np.logaddexp(0, x)),
    ("s = Shape(x)\n z = ConstantOfShape(s)\n w = Exp(x)\n y = Add(z, w)", np.exp),
])
def test_the_double_reference_is_exact_to_double_rounding(make: Pairs, body: str, exact: Any) -> None:
    # RMSNormalization came with opset 23.
    model = make('<ir_version: 10, opset_import: ["" : 23]>\n' + _X + body + " }", one=np.ones(16, F),
                 ones=np.ones(4, F), zeros=np.zeros(4, F))
    x = RNG.standard_normal((2, 4, 16)).astype(F)
    ladder = Ladder(model, threads=1)
    found = ladder.run([{"x": x}])[0]
    assert found is not None, ladder.notes
    value = found[1][0]
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, exact(x.astype(float)), rtol=2e-12, atol=1e-14)


def test_if_and_loop_bodies_are_converted(make: Pairs) -> None:
    model = make("""g (float[n] x, bool c) => (float[n] y) {
        z = If (c) <then_branch = t () => (float[n] a) { a = Tanh(x) },
                    else_branch = e () => (float[n] b) { half = Constant<value_float = 0.5>()
                                                          b = Mul(x, half) }>
        trips = Constant<value_int = 3>()
        go = Constant<value = bool {1}>()
        y = Loop (trips, go, z) <body = l (int64 i, bool going, float[n] s) => (bool still, float[n] r) {
            still = Identity(going)
            r = Add(s, z) }>
    }""")
    result = verify(model, model)
    assert result.same
    assert result.outputs[0].reference == ORT_DOUBLE


def test_a_double_run_that_takes_another_branch_is_not_used(make: Pairs) -> None:
    # x + 1 - 1 loses small x in float32 and keeps it in float64: a branch on it means something else there.
    model = make("""g (float[4] x) => (float[4] y) {
        one = Constant<value_float = 1.0>()
        tiny = Constant<value_float = 1e-12>()
        e = Exp(x)
        m = ReduceMax<keepdims = 0>(e)
        small = Mul(m, tiny)
        a = Add(small, one)
        b = Sub(a, one)
        zero = Constant<value_float = 0.0>()
        c = Greater(b, zero)
        y = If (c) <then_branch = t () => (float[4] p) { p = Neg(x) },
                    else_branch = e () => (float[4] q) { q = Exp(x) }>
    }""")
    result = verify(model, model)
    assert result.same
    assert result.outputs[0].reference == ORT_SAME
    assert any("away from ORT" in n for n in result.notes)


def test_overflow_by_design_in_float16_keeps_its_places(make: Pairs) -> None:
    text = "g (float16[n, 4] x) => (float16[n, 4] y) { y = Mul(x, big) }"
    model = make(text, big=np.array(6e4, H))
    result = verify(model, model)
    assert result.same
    assert result.outputs[0].max_abs < np.inf


def test_float16_noise_is_accepted_and_three_times_more_is_not(make: Pairs) -> None:
    w = RNG.standard_normal((64, 32)).astype(H)
    text = "g (float16[n, 64] x) => (float16[n, 32] y) { %s }"
    plain = make(text % "y = MatMul(x, W)", W=w)
    # Rounded once, from float32: better than ORT's float16.
    better = make(text % "a = Cast<to = 1>(x)\n b = Cast<to = 1>(W)\n c = MatMul(a, b)\n y = Cast<to = 10>(c)", W=w)
    result = verify(plain, better)
    assert result.same
    bound = result.outputs[0].atol
    assert result.outputs[0].max_abs > 0
    for factor, same in ((0.3, True), (3.0, False)):
        noisy = make(text % "z = MatMul(x, W)\n y = Add(z, d)", W=w, d=np.full(32, factor * bound, H))
        assert verify(plain, noisy).same is same


def test_bound_follows_ort_s_own_error(make: Pairs) -> None:
    # A long sum of large numbers that cancel: float32 is far off, and twice as far is still the same.
    w = np.concatenate([np.full((512, 1), 1e4), np.full((512, 1), -1e4)]).astype(F)
    text = "g (float[n, 1024] x) => (float[n, 1] y) { y = MatMul(x, W) }"
    model = make(text, W=w)
    result = verify(model, model)
    out = result.outputs[0]
    assert out.ort_error is not None
    assert out.atol >= 2 * out.ort_error > 0
    assert out.reference == ORT_DOUBLE


def test_the_original_must_load(make: Pairs) -> None:
    a = make("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    b = make('<ir_version: 10, opset_import: ["" : 21, "nowhere" : 1]>\n'
             "g (float[n] x) => (float[n] y) { y = nowhere.Op(x) }")
    with pytest.raises(InputError, match="cannot load the original"):
        verify(b, a)
    result = verify(a, b)
    assert not result.same
    assert "the optimized model cannot be loaded" in result.problems[0]


def test_a_slow_reference_is_given_up(make: Pairs) -> None:
    # A million erf calls of Python: the child cannot be done before it is asked.
    model = make("g (float[n, 1000000] x) => (float[n, 1000000] y) { y = Erf(x) }")
    result = verify(model, model, reference_limit=0.0)
    assert result.same
    assert result.outputs[0].reference == ORT_SAME
    assert any("took longer than 0 s" in n for n in result.notes)


def test_sequences_and_bfloat16_pass_through(make: Pairs) -> None:
    model = make("g (float[n, 4] x) => (seq(float[n, 2]) y) { z = Exp(x)\n y = SplitToSequence<axis = 1>(z, two) }",
                 two=np.array(2))
    result = verify(model, model)
    assert result.same
    assert result.outputs[0].elements == (1 + 2 + 3) * 4 + 3
    other = make("g (float[n, 4] x) => (seq(float[n, 2]) y) { z = Exp(x)\n y = SplitToSequence<axis = 1>(z, two) }",
                 two=np.array(1))
    assert "structure" in verify(model, other).outputs[0].notes[0]
    narrow = make("g (bfloat16[n, 4] x) => (bfloat16[n, 4] y) { a = Cast<to = 1>(x)\n b = Exp(a)\n"
                  "y = Cast<to = 16>(b) }")
    result = verify(narrow, narrow)
    assert result.same
    assert result.outputs[0].reference == ORT_DOUBLE
    wrong = make("g (bfloat16[n, 4] x) => (bfloat16[n, 4] y) { a = Cast<to = 1>(x)\n b = Exp(a)\n c = Mul(b, f)\n"
                 "y = Cast<to = 16>(c) }", f=np.array(1.05, F))
    assert not verify(narrow, wrong).same


_HEAD = "g (float[n, 64] x) => (double[n, 64] y) { "


@pytest.mark.parametrize(("original", "candidate", "same"), [
    # One step of float32 is a difference of float32 work, whatever dtype it is cast to.
    (_HEAD + "e = Exp(x) y = Cast<to = 11>(e) }", _HEAD + "e = Exp(x) t = Mul(e, step) y = Cast<to = 11>(t) }", True),
    (_HEAD + "e = Exp(x) d = Cast<to = 11>(e) y = Neg(d) }",
     _HEAD + "e = Exp(x) t = Mul(e, step) d = Cast<to = 11>(t) y = Neg(d) }", True),
    (_HEAD + "e = Exp(x) y = Cast<to = 11>(e) }", _HEAD + "e = Exp(x) t = Mul(e, much) y = Cast<to = 11>(t) }", False),
    # The cast alone rounds nothing: the work is float64's.
    (_HEAD + "d = Cast<to = 11>(x) y = Exp(d) }", _HEAD + "e = Exp(x) y = Cast<to = 11>(e) }", False),
])
def test_the_bound_follows_the_dtype_that_the_work_was_done_in(make: Pairs, original: str, candidate: str,
                                                                same: bool) -> None:
    weights = {"step": F(1 + 2**-22), "much": F(1 + 1e-5)}
    used = {k: np.asarray(v) for k, v in weights.items() if k in candidate}
    assert verify(make(original), make(candidate, **used)).same is same


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 1e-9, False)])
def test_float64_rows_of_nearly_one_number_lose_digits_in_any_order_of_sums(make: Pairs, tmp_path: Path, factor: float,
                                                                            same: bool) -> None:
    head = "g (double[n, 5] x) => (double[n, 5] y) { "
    weights = {"one": np.full(5, factor), "last": np.array([-1]), "epsilon": np.float64(F(1e-5))}
    spelled = make(head + """m = ReduceMean(x, last) d = Sub(x, m) s = Mul(d, d) v = ReduceMean(s, last)
        e = Add(v, epsilon) r = Sqrt(e) q = Div(d, r) y = Mul(q, one) }""", **weights)
    x = 1 + 1e-5 * np.random.default_rng(1).standard_normal((20, 5))
    np.savez(tmp_path / "in.npz", x=x)
    original = make(head + "y = LayerNormalization<epsilon = 1e-5>(x, one) }", one=np.ones(5))
    assert verify(original, spelled, inputs=tmp_path / "in.npz").same is same


@pytest.mark.parametrize(("rest", "float64"), [
    ("y = Tanh(t)", True),
    ("s = Add(t, p)  y = Tanh(s)", False),  # p is more than a decision, and so is what it is made of
])
def test_what_integers_decide_by_way_of_floats_is_decided_as_before(make: Pairs, rest: str, float64: bool) -> None:
    """25 times the float32 next to 1 / 25 is 1 in float32 and less in float64: another row of the table."""
    model = make("g (int64[n, 1] i, float[n, 4] x) => (float[n, 4] y) { f = Cast<to = 1>(i)  "
                 "c = Constant<value_float = 0.04>()  p = Mul(f, c)  q = Floor(p)  b = Cast<to = 7>(q)  "
                 "k = GatherND(table, b)  t = Add(k, x) " + rest + " }", table=np.array([[0], [1], [2]], F))
    x = RNG.standard_normal((2, 4)).astype(F)
    result = verify(model, model, inputs={"i": np.array([[25], [3]]), "x": x})
    assert result.same
    assert result.outputs[0].reference == (ORT_DOUBLE if float64 else ORT_SAME)
