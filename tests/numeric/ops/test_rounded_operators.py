"""Operators with rounding errors: as close to the float64 truth as ONNX Runtime, and special where it is special."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from tests.numeric.ops.evaluate import assert_close, evaluate
from tests.numeric.ops.ort_cpu import NotInOrt, every, pairs, run, values

A = NDArray[Any]
erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: A) -> A:
    e = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x < 0, e, 1.0) / (1 + e))


def swish_scale(x: A) -> A:
    return x * sigmoid(1.5 * x) * (1 + np.abs(x))


def softplus(x: A) -> A:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gelu_tanh(x: A) -> A:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: A) -> A:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


class Case(NamedTuple):
    op_type: str
    truth: Callable[[A], A]
    attrs: dict[str, Any] = {}  # noqa: RUF012
    domain: str = ""
    scale: Callable[[A], A] | None = None
    steps: float = 1.0  # absolute error allowed, in denormal steps

    def __str__(self) -> str:
        return "-".join([self.domain, self.op_type, *map(str, self.attrs.values())]).lstrip("-")


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
UNARY = [
    Case("Exp", np.exp),
    Case("Log", np.log),
    Case("Tanh", np.tanh),
    Case("Erf", erf),
    Case("Sin", np.sin),
    Case("Cos", np.cos),
    Case("Tan", np.tan),
    Case("Asin", np.arcsin),
    Case("Acos", np.arccos),
    Case("Atan", np.arctan),
    Case("Sinh", np.sinh),
    Case("Cosh", np.cosh),
    Case("Asinh", np.arcsinh),
    Case("Acosh", np.arccosh),
    Case("Atanh", np.arctanh),
    Case("Sigmoid", sigmoid),
    Case("Softplus", softplus),
    Case("Softsign", lambda x: x / (1 + np.abs(x))),
    Case("Elu", lambda x: np.where(x < 0, np.expm1(x), x)),
    Case("Elu", lambda x: np.where(x < 0, 0.5 * np.expm1(x), x), {"alpha": 0.5}),
    Case("Celu", lambda x: np.where(x < 0, np.expm1(x), x)),
    Case("Celu", lambda x: np.where(x < 0, 2 * np.expm1(x / 2), x), {"alpha": 2.0}),
    Case("Selu", lambda x: SELU_GAMMA * np.where(x < 0, SELU_ALPHA * np.expm1(x), x), steps=2),
    Case("Mish", lambda x: x * np.tanh(softplus(x)), steps=110),
    Case("Swish", lambda x: x * sigmoid(x), steps=110),
    # alpha x is rounded before the exponential: x times that error.
    Case(
        "Swish", lambda x: x * sigmoid(x * 1.5), {"alpha": 1.5}, "", lambda x: x * sigmoid(x * 1.5) * (1 + abs(x)), 110
    ),
    # 1 + erf and 1 + tanh cancel for negative x, in ONNX Runtime too: the error is relative to x there.
    Case("Gelu", gelu, scale=np.abs),
    Case("Gelu", gelu_tanh, {"approximate": "tanh"}, scale=np.abs),
    Case("Gelu", gelu, domain="com.microsoft", scale=np.abs),
    Case("FastGelu", gelu_tanh, domain="com.microsoft", scale=np.abs),
    Case("QuickGelu", lambda x: x * sigmoid(1.702 * x), domain="com.microsoft", scale=np.abs),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", UNARY, ids=str)
def test_unary(case: Case, dtype: str) -> None:
    if case.op_type == "FastGelu" and dtype == "float64":
        pytest.skip("declined")
    compare(case, values(dtype))


@pytest.mark.parametrize("case", UNARY, ids=str)
def test_every_float16(case: Case) -> None:
    compare(case, every("float16"))


def compare(case: Case, x: A) -> None:
    dtype = x.dtype.name
    opset = 24 if case.op_type == "Swish" else 22
    try:
        out = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        theirs = run(case.op_type, [x], out, case.attrs, case.domain, opset)
    except NotInOrt:
        theirs = None
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        truth = case.truth(wide)
        scale = None if case.scale is None else np.abs(case.scale(wide))
    ours = evaluate(case.op_type, [x], dtype, case.attrs, case.domain, opset)
    assert_close(ours, truth, theirs, [x], scale, case.steps)


def test_unary_cases_cover_the_table() -> None:
    """Every operator of the table is compared with ONNX Runtime in one of the files of this folder."""
    from tests.numeric.ops import test_exact_operators as exact
    from tilegraph.ops.pointwise import POINTWISE

    compared = {(c.domain, c.op_type) for c in UNARY}
    compared |= {("", name) for name in (*exact.UNARY, *exact.BINARY)}
    others = "IsNaN IsInf Equal Less LessOrEqual Greater GreaterOrEqual Where Mod BitShift Clip"  # test_exact_operators
    others += " Cast CastLike QuantizeLinear DequantizeLinear"  # test_conversions
    others += " Pow Mean"  # below
    compared |= {("", name) for name in others.split()} | {("com.microsoft", "BiasGelu")}
    assert compared == set(POINTWISE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mean(dtype: str) -> None:
    a, b = pairs(dtype, dtype)
    c = np.roll(a, 7)
    theirs = run("Mean", [a, b, c], helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    with np.errstate(all="ignore"):
        x, y, z = (v.astype(np.float64) for v in (a, b, c))
        truth, scale = (x + y + z) / 3, np.abs(x) + np.abs(y) + np.abs(z)
    # Whether an intermediate sum overflows depends on the computing dtype.
    top = float(np.finfo(dtype).max)
    safe = ~(np.isfinite(scale) & (scale > top))
    assert_close(evaluate("Mean", [a, b, c], dtype)[safe], truth[safe], theirs[safe], [a[safe], b[safe]], scale[safe])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_pow(dtype: str) -> None:
    a, b = pairs(dtype, dtype)
    out = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    try:
        theirs = run("Pow", [a, b], out)
    except NotInOrt:
        theirs = None
    with np.errstate(all="ignore"):
        truth = a.astype(np.float64) ** b.astype(np.float64)
    assert_close(evaluate("Pow", [a, b], dtype), truth, theirs, [a, b])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "exponent", [0, 1, 2, 3, 4, -1, -2, -3, -4, 0.5, -0.5, 1.5, 0.25, 2.5, -7, np.inf, -np.inf, np.nan]
)
def test_pow_with_a_constant_exponent(exponent: float, dtype: str) -> None:
    x = values(dtype)
    inputs = [x, np.array(exponent, dtype)]
    theirs = run("Pow", inputs, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    with np.errstate(all="ignore"):
        truth = x.astype(np.float64) ** exponent
    ours = evaluate("Pow", inputs, dtype, constants={1: exponent})
    assert_close(ours, truth, theirs, inputs, steps=4)


@pytest.mark.parametrize(
    ("op_type", "function", "domain"), [("BiasGelu", gelu, "com.microsoft"), ("FastGelu", gelu_tanh, "com.microsoft")]
)
def test_biased(op_type: str, function: Callable[[A], A], domain: str) -> None:
    a, b = pairs("float32", "float32")
    with np.errstate(all="ignore"):
        x = (a + b).astype(np.float64)
        truth = function(x)
    bias = np.ascontiguousarray(np.unique(b))
    for value in bias:  # ONNX Runtime wants a bias vector as long as the last axis: one column a run
        rows = (b == value) | (np.isnan(b) & np.isnan(value))
        column, one = a[rows][:, None], np.array([value])
        theirs = run(op_type, [column, one], 1, domain=domain)
        ours = evaluate(op_type, [column, one], "float32", domain=domain)
        assert_close(ours[:, 0], truth[rows], theirs[:, 0], [column[:, 0]], np.abs(x[rows]))
