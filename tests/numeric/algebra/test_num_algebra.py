"""The algebra passes against ONNX Runtime: networks with every kind of convolution, and real exports.

Bound: float outputs within 64 eps of the largest magnitude of the output, where products of weights are rounded anew;
integers and booleans equal. ONNX Runtime runs both models without its own optimizations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.instruments import CheckInstrument
from tilegraph.rewrites.algebra import ALGEBRA
from tilegraph.rewrites.normalise import NORMALISE

Arrays = dict[str, np.ndarray[Any, Any]]
EPS_FACTOR = 64


def run(model: bytes, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    found: list[np.ndarray[Any, Any]] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
        None, feeds)
    return found


def rewritten(proto: onnx.ModelProto | Path) -> tuple[ir.Model, set[str]]:
    """The model after normalisation and algebra, and the names of the passes that changed it."""
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    changed = set()
    for step in ALGEBRA:
        if Pipeline([step], instruments=[CheckInstrument(onnx_checker=False)]).run(model, PassContext()).modified:
            changed.add(step.name)
    return model, changed


def compare(name: str, before: list[Any], after: list[Any]) -> None:
    for expected, actual in zip(before, after, strict=True):
        if not isinstance(expected, np.ndarray):
            assert expected == actual, name
            continue
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape), name
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(actual, expected, err_msg=name)
            continue
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isfinite(actual), finite, err_msg=name)
        scale = np.abs(expected[finite].astype(np.float64)).max(initial=0)
        error = np.abs(expected[finite].astype(np.float64) - actual[finite]).max(initial=0)
        assert error <= EPS_FACTOR * np.finfo(expected.dtype).eps * scale, f"{name}: off by {error} of {scale}"


def check(text: str, feeds: Arrays, changed: set[str], opset: int = 17, **arrays: np.ndarray[Any, Any]) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> ' + text)
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(array, order="C"), name))
    model, found = rewritten(proto)
    assert changed <= found
    expected = run(proto.SerializeToString(), feeds)
    assert all(np.ptp(e) > 0 for e in expected), "constant answers prove nothing"
    compare(text, expected, run(ir.to_proto(model).SerializeToString(), feeds))


def values(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


BOTH = {"fold-affine-after", "fold-affine-before"}


@pytest.mark.parametrize(("groups", "attributes"), [
    (1, ""), (2, ""), (4, ""), (1, ", strides = [2, 2], pads = [1, 0, 2, 1]"), (4, ", dilations = [2, 1]"),
    (2, ", auto_pad = \"SAME_LOWER\""), (8, ", pads = [1, 1, 1, 1]"),
])
def test_convolutions(groups: int, attributes: str) -> None:
    text = f"""g (float[2, 8, 9, 10] x) => (float[n, c, h, k] y) {{
        a = Mul(x, s)  b = Add(a, t)  d = Mul(c, b)
        e = Conv <group = {groups}{attributes}> (d, w, b0)
        f = Sub(u, e)  g0 = BatchNormalization(f, gamma, beta, mean, variance)  y = Div(g0, s) }}"""
    check(text, {"x": values(2, 8, 9, 10)}, BOTH, w=values(16, 8 // groups, 3, 3), b0=values(16),
          s=np.array([1.7], np.float32), t=np.array(-0.3, np.float32), c=values(8, 1, 1, low=0.5),
          u=values(1, 16, 1, 1), gamma=values(16), beta=values(16, seed=2), mean=values(16, seed=3),
          variance=values(16, low=0.1))


@pytest.mark.parametrize(("groups", "attributes"), [
    (1, ""), (2, ""), (4, ", strides = [2, 2], output_padding = [1, 1]"), (1, ", pads = [1, 1, 0, 1]")])
def test_transposed_convolutions(groups: int, attributes: str) -> None:
    text = f"""g (float[2, 4, 6, 5] x) => (float[n, c, h, k] y) {{
        a = Mul(x, c)  e = ConvTranspose <group = {groups}{attributes}> (a, w, b0)
        f = Mul(e, u)  y = Add(f, s) }}"""
    check(text, {"x": values(2, 4, 6, 5)}, BOTH, w=values(4, 8 // groups, 3, 3), b0=values(8), c=values(4, 1, 1),
          u=values(8, 1, 1), s=np.array(0.3, np.float32))


def test_hard_swish_between_depthwise_convolutions() -> None:
    text = """g (float[n, 16, h, k] x) => (float[n, 16, h, k] y) {
        a = Conv <group = 16, pads = [1, 1, 1, 1]> (x, w)  b = Add(a, three)  c = Clip(b, zero, six)
        d = Mul(a, c)  e = Div(d, six)  f = Mul(e, s)  g0 = Add(f, s)
        y = Conv <group = 16, pads = [1, 1, 1, 1]> (g0, w) }"""
    check(text, {"x": 4 * values(2, 16, 7, 9)}, {"hard-sigmoid", "fold-affine-before", "channel-norm"},
          w=values(16, 1, 3, 3), three=np.array(3, np.float32), zero=np.array(0, np.float32),
          six=np.array(6, np.float32), s=np.array([0.7], np.float32))


@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize("channels", [1, 33, 36])
def test_one_axis(batch: int, channels: int) -> None:
    text = f"""g (float[n, {channels}, 24] x) => (float[n, 32, 12] y) {{
        a = Conv <pads = [1, 1]> (x, w)  b = Relu(a)  y = Conv <strides = [2], pads = [1, 1]> (b, v, b0) }}"""
    check(text, {"x": values(batch, channels, 24)}, {"conv-rank"}, w=values(40, channels, 3), v=values(32, 40, 3),
          b0=values(32))


@pytest.mark.parametrize(("op", "attributes"), [
    ("LSTM", ""), ("LSTM", ', direction = "reverse"'), ("GRU", ""), ("GRU", ", linear_before_reset = 1"),
    ("RNN", ""), ("RNN", ', activations = ["Relu"]'), ("RNN", ', activations = ["Sigmoid"]')])
@pytest.mark.parametrize("batch", [1, 3])
def test_one_step_of_a_recurrent_operator(op: str, attributes: str, batch: int) -> None:
    gates, cell = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], op == "LSTM"
    more = ", c", ", float[1, n, 64] c", ", float[1, n, 64] t", ", t"
    read, given, made, result = more if cell else ("", "", "", "")
    text = f"""g (float[1, n, 48] x, float[1, n, 64] h{given}) => (float[1, 1, n, 64] y, float[1, n, 64] s{made}) {{
        y, s{result} = {op} <hidden_size = 64{attributes}> (x, w, r, b, , h{read}) }}"""
    feeds = {"x": values(1, batch, 48), "h": values(1, batch, 64, seed=1), "c": values(1, batch, 64, seed=2)}
    check(text, feeds if cell else {k: feeds[k] for k in "xh"}, {"rnn-step"}, w=values(1, 64 * gates, 48) * 0.2,
          r=values(1, 64 * gates, 64) * 0.2, b=values(1, 128 * gates))


@pytest.mark.parametrize("opset", [12, 17])
def test_one_hot(opset: int) -> None:
    indices = np.array([[0, 3, 2, -1], [4, 1, -7, 99]], np.int64)
    text = """g (int64[n, 4, 1] x) => (float[n, 4, 6] y) {
        e = Equal(x, p)  c = Cast <to = 1> (e)  m = MatMul(c, w)  y = Add(m, r) }"""
    check(text, {"x": indices[:, :, None]}, {"one-hot"}, opset, p=np.arange(4), w=values(4, 6), r=values(6))
    text = "g (int64[n, 4] x) => (float[n, 4, 6] y) { o = OneHot(x, d, v)  y = MatMul(o, w) }"
    check(text, {"x": indices}, {"one-hot"}, opset, d=np.array(4), v=np.array([0, 1], np.float32), w=values(4, 6))


def test_special_values_through_a_hard_swish() -> None:
    """NaN and infinities come out where they did: Clip and HardSigmoid of ONNX Runtime treat them alike."""
    text = """g (float[19] x) => (float[19] y, float[19] z) { b = Add(x, three)  c = Clip(b, zero, six)
        d = Mul(x, c)  y = Div(d, six)  p = Add(twice, x)  q = Clip(p, zero, six)  z = Div(q, six) }"""
    x = np.linspace(-5, 5, 19).astype(np.float32)
    x[[0, 3, 7, 12, 17, 18]] = [np.nan, np.inf, -np.inf, -0.0, np.nan, 1e-42]
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    for name, number in (("three", 3), ("twice", 3.5), ("zero", 0), ("six", 6)):
        proto.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    model, changed = rewritten(proto)
    assert "hard-sigmoid" in changed
    for a, b in zip(run(proto.SerializeToString(), {"x": x}),
                    run(ir.to_proto(model).SerializeToString(), {"x": x}), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_array_equal(np.isinf(a), np.isinf(b))
        finite = np.isfinite(a)
        np.testing.assert_allclose(a[finite], b[finite], rtol=0, atol=1e-6)


def corpus_answers(path: Path) -> set[str]:
    """Compares one export on its inputs; returns the passes that changed it."""
    model, changed = rewritten(path)
    if not changed:
        return changed
    arrays = np.load(path.with_suffix(".npz"))
    for prefix in ("in_", "alt_in_"):
        feeds = {k.removeprefix(prefix): arrays[k] for k in arrays.files if k.startswith(prefix)}
        if not feeds:
            continue
        try:
            expected = run(path.read_bytes(), feeds)
        except Exception:
            continue  # the catalogue lists exports that ONNX Runtime cannot run
        compare(path.stem, expected, run(ir.to_proto(model).SerializeToString(), feeds))
    return changed


def test_a_spread_of_the_corpus(corpus: Path) -> None:
    paths = sorted(corpus.glob("*.onnx"))[3::8]
    assert len(paths) > 30
    found = [corpus_answers(p) for p in paths]
    assert sum(bool(f) for f in found) >= 3, "no export of the spread is rewritten at all"


@pytest.mark.slow
def test_the_whole_corpus(corpus: Path) -> None:
    for path in sorted(corpus.glob("*.onnx")):
        corpus_answers(path)
