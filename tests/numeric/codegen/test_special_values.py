"""NaN, infinities, signed zeros and denormals through whole kernels; storage of every dtype; ranges of tasks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.numeric.codegen.runner import compile_lowered, lower, run_lowered
from tests.unit.fusion.parse import model, proto
from tilegraph.codegen.isa import Isa

Array = np.ndarray[Any, Any]
COLUMNS = 37  # two vectors of 16 and a tail
SPECIAL = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "-0": -0.0, "denormal": 1e-42, "largest": 3.4e38,
           "-largest": -3.4e38}


def rows_with(value: float) -> Array:
    """Rows of ordinary numbers with `value` in the first vector, the second, the tail, and everywhere."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, COLUMNS)).astype(np.float32)
    x[0, 0] = x[1, 20] = x[2, COLUMNS - 1] = value
    x[3, :] = value
    x[4, 3:6] = value, np.inf, -np.inf
    return x


def ort_run(text: str, feeds: dict[str, Array], opset: int) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto(text, opset).SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results


def ours_run(text: str, feeds: dict[str, Array], opset: int, isa: Isa | None = None) -> list[Array]:
    made = model(text, opset)
    results, kernel, _ = run_lowered(lower(list(made.graph), list(made.graph.outputs), opset), feeds, isa=isa)
    return [results[kernel.outputs.index(k)] for k in range(len(results))]


AXIS = "a = Constant<value = int64[1] {1}>() "
HEAD = f"(float[6,{COLUMNS}] x) => (float[6,{COLUMNS}] y)"
CHAINS = {
    "softmax": f"{HEAD} {{ y = Softmax<axis=1>(x) }}",
    "log softmax": f"{HEAD} {{ y = LogSoftmax<axis=1>(x) }}",
    "normalised": f"{HEAD} {{ {AXIS} m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a) "
                  "s = Sqrt(v) y = Div(d, s) }",
    "sum": f"(float[6,{COLUMNS}] x) => (float[6,1] y) {{ {AXIS} y = ReduceSum(x, a) }}",
    "length": f"(float[6,{COLUMNS}] x) => (float[6,1] y) {{ {AXIS} y = ReduceL2(x, a) }}",
    "relu of a sum": f"{HEAD} {{ z = Constant<value = float {{1.5}}>() t = Add(x, z) y = Relu(t) }}",
    "square root": f"{HEAD} {{ y = Sqrt(x) }}",
    "quotient": f"{HEAD} {{ {AXIS} m = ReduceSum(x, a) y = Div(x, m) }}",
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("chain", CHAINS)
def test_nan_and_infinity_are_where_onnx_runtime_has_them(chain: str, special: str) -> None:
    feeds = {"x": rows_with(SPECIAL[special])}
    (theirs,) = ort_run(CHAINS[chain], feeds, 18)
    for isa in (Isa("x86-64-v3"), Isa("x86-64-v2", (), 32)):
        (ours,) = ours_run(CHAINS[chain], feeds, 18, isa)
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.array_equal(np.isposinf(ours), np.isposinf(theirs))
        assert np.array_equal(np.isneginf(ours), np.isneginf(theirs))
        finite = np.isfinite(ours) & np.isfinite(theirs)
        with np.errstate(all="ignore"):
            scale = float(np.abs(theirs[finite]).max(initial=1e-42))
            assert np.abs(ours.astype(np.float64) - theirs)[finite].max(initial=0) <= 1e-6 * scale


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("at", [0, 1, 17, 39])
@pytest.mark.parametrize("axis", [0, 1])
def test_extrema_pass_over_nan_but_in_front(op: str, at: int, axis: int) -> None:
    """As ONNX Runtime does: a NaN in front stays. Rows of whole vectors, because its front is where a vector begins."""
    x = np.random.default_rng(1).normal(size=(3, 40)).astype(np.float32)
    x[1, at] = np.nan
    shape, result = ("3,40", "3,1") if axis else ("40,3", "1,3")
    text = f"(float[{shape}] x) => (float[{result}] y) {{ {AXIS.replace('{1}', f'{{{axis}}}')} y = {op}(x, a) }}"
    feeds = {"x": x if axis else np.ascontiguousarray(x.T)}
    (ours,), (theirs,) = ours_run(text, feeds, 18), ort_run(text, feeds, 18)
    assert np.isnan(ours.reshape(-1)[1]) == (at == 0)
    assert np.array_equal(ours, theirs, equal_nan=True)


NORMALISED = {
    "LayerNormalization": "(float[60,{n}] x, float[{n}] s) => (float[60,{n}] y) {{ y = LayerNormalization(x, s) }}",
    "InstanceNormalization": "(float[60,1,{n}] x, float[1] s) => (float[60,1,{n}] y) {{ z = Sub(s, s) "
                             "y = InstanceNormalization(x, s, z) }}",
    "GroupNormalization": "(float[60,1,{n}] x, float[1] s) => (float[60,1,{n}] y) {{ z = Sub(s, s) "
                          "y = GroupNormalization<num_groups=1>(x, s, z) }}",
    "MeanVarianceNormalization": "(float[60,{n}] x) => (float[60,{n}] y) {{ "
                                 "y = MeanVarianceNormalization<axes=[1]>(x) }}",
}


@pytest.mark.parametrize("op", NORMALISED)
@pytest.mark.parametrize("n", [17, 768])
def test_a_row_of_one_value_is_normalised_to_zero(op: str, n: int) -> None:
    """Exactly: what a rounded mean leaves of it would be divided by the square root of epsilon."""
    rows = np.random.default_rng(2).normal(size=(60, 1)).astype(np.float32) * 300
    x = np.repeat(rows, n, axis=1)
    text = NORMALISED[op].format(n=n)
    feeds = {"x": x.reshape(60, 1, n) if "60,1," in text else x}
    if "] s)" in text:
        feeds["s"] = np.ones(1 if "float[1] s" in text else n, np.float32)
    (ours,) = ours_run(text, feeds, 21 if op == "GroupNormalization" else 17)
    assert not ours.any()


def test_zeros_and_denormals_keep_their_sign_and_size() -> None:
    values = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.2e-38, -1.2e-38] * 5, np.float32)
    (ours,) = ours_run("(float[40] x) => (float[40] y) { y = Neg(x) }", {"x": values}, 18)
    assert np.array_equal(ours, -values)
    half = np.float32(0.5)
    (ours,) = ours_run("(float[40] x) => (float[40] y) { h = Constant<value = float {0.5}>() y = Mul(x, h) }",
                       {"x": values}, 18)
    assert np.array_equal(ours.view(np.uint32), (values * half).view(np.uint32))


HALVES = [0.0, -0.0, 1.0, 65504.0, 65519.0, 65520.0, -65520.0, 1e9, 6e-8, 2.9e-8, 3.1e-8, 1e-4, 2049.0, 2051.0,
          np.inf, -np.inf, np.nan, 0.1, 1 / 3]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
@pytest.mark.parametrize("bits", [32, 256])
def test_sixteen_bit_floats_round_to_nearest_even_where_they_are_stored(dtype: np.dtype[Any], bits: int) -> None:
    x = np.array(HALVES * 2, np.float32)
    onnx_type = ir.DataType.from_numpy(dtype)
    source = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([len(x)]))
    result = ir.Value(name="y", type=ir.TensorType(onnx_type), shape=ir.Shape([len(x)]))
    node = ir.Node("", "Cast", [source], [ir.AttrInt64("to", int(onnx_type))], outputs=[result])
    (ours,), _, _ = run_lowered(lower([node], [result]), {"x": x}, isa=Isa("x86-64-v3", (), bits))
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    assert np.array_equal(np.isnan(ours.astype(np.float32)), np.isnan(x))
    plain = ~np.isnan(x)
    assert np.array_equal(ours.view(np.uint16)[plain], expected.view(np.uint16)[plain])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_wrap(dtype: str) -> None:
    info = np.iinfo(dtype)
    a = np.array([info.max, info.min, 3, 100] * 9, dtype)
    b = np.array([1, info.max, 5, 120] * 9, dtype)
    text = f"({dtype}[36] p, {dtype}[36] q) => ({dtype}[36] s, {dtype}[36] m) {{ s = Add(p, q) m = Mul(p, q) }}"
    total, product = ours_run(text, {"p": a, "q": b}, 18)
    with np.errstate(all="ignore"):
        assert np.array_equal(total, a + b)
        assert np.array_equal(product, a * b)


def test_bools_are_bytes_of_zero_and_one() -> None:
    a = np.random.default_rng(2).random(53) < 0.5
    text = "(bool[53] p, bool[53] q) => (bool[53] y) { n = Not(p) y = Or(n, q) }"
    (ours,) = ours_run(text, {"p": a, "q": a[::-1].copy()}, 18)
    assert np.array_equal(ours, ~a | a[::-1])
    assert set(np.unique(ours.view(np.uint8))) == {0, 1}


FLAT = "(float[N] x, float[1] s) => (float[N] y) { m = Mul(x, s) y = Exp(m) }"
ROWS = """(float[A,B,N] x, float[B,N] w) => (float[A,B,N] y) { a = Constant<value = int64[1] {2}>()
    m = ReduceMean(x, a) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, a) q = Div(e, s) y = Mul(q, w) }"""


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 127, 200])
def test_flat_kernels_of_any_length_in_any_number_of_tasks(n: int) -> None:
    made = model(FLAT, 18)
    kernel = compile_lowered(lower(list(made.graph), list(made.graph.outputs)))
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    feeds = {"x": x, "s": np.array([0.5], np.float32)}
    expected = np.exp(x.astype(np.float64) * 0.5)
    for tasks in (1, 2, 3, 7):
        for offset in (0, 4):
            (ours,) = kernel.run(feeds, tasks, offset)
            assert np.abs(ours - expected).max() <= 4 * 2.0**-23 * np.abs(expected).max()
    kernel.check_fences(feeds, 3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 17), (3, 1, 5), (2, 3, 64), (4, 5, 100), (3, 2, 2)])
def test_row_kernels_of_any_sizes_in_any_number_of_tasks(shape: tuple[int, int, int]) -> None:
    made = model(ROWS, 18)
    kernel = compile_lowered(lower(list(made.graph), list(made.graph.outputs)))
    rng = np.random.default_rng(sum(shape))
    feeds = {"x": rng.normal(size=shape).astype(np.float32), "w": rng.normal(size=shape[1:]).astype(np.float32)}
    x = feeds["x"].astype(np.float64)
    e = np.exp(x - x.mean(-1, keepdims=True))
    expected = e / e.sum(-1, keepdims=True) * feeds["w"]
    for tasks in (1, 2, 5, 64):
        (ours,) = kernel.run(feeds, tasks, 4)
        assert np.abs(ours - expected).max() <= 8 * 2.0**-23 * np.abs(expected).max()
    kernel.check_fences(feeds, 2)


def test_a_range_of_no_rows_does_nothing() -> None:
    made = model(ROWS, 18)
    kernel = compile_lowered(lower(list(made.graph), list(made.graph.outputs)))
    feeds = {"x": np.zeros((0, 3, 4), np.float32), "w": np.zeros((3, 4), np.float32)}
    (ours,) = kernel.run(feeds)
    assert ours.shape == (0, 3, 4)
