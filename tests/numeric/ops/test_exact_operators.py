"""Operators whose results are exact (or rounded once) have ONNX Runtime's bits, special values included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.numeric.ops.evaluate import assert_same, evaluate
from tests.numeric.ops.ort_cpu import NotInOrt, every, pairs, run, values

FLOATS = ("float32", "float64", "float16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED


def onnx_type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def ort_or_skip(*args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
    try:
        return run(*args, **kwargs)
    except NotInOrt:
        pytest.skip("ONNX Runtime's CPU provider lacks this dtype")


UNARY: dict[str, tuple[str, ...]] = {
    "Abs": FLOATS + INTEGERS,
    "Neg": FLOATS + SIGNED,
    "Sign": FLOATS + INTEGERS,
    "Reciprocal": FLOATS,
    "Sqrt": FLOATS,
    "Floor": FLOATS,
    "Ceil": FLOATS,
    "Round": FLOATS,
    "Relu": (*FLOATS, "int8", "int32"),
    "LeakyRelu": ("float32", "float16"),
    "ThresholdedRelu": ("float32", "float16"),
    "HardSigmoid": ("float32", "float16"),
    "HardSwish": ("float32", "float16"),
    "Shrink": ("float32", "float16", "int8", "int16", "uint8", "uint16"),
    "Identity": (*FLOATS, *INTEGERS, "bool"),
    "BitwiseNot": INTEGERS,
    "Not": ("bool",),
}


@pytest.mark.parametrize(("op_type", "dtype"), [(o, d) for o, dtypes in UNARY.items() for d in dtypes])
def test_unary(op_type: str, dtype: str) -> None:
    x = every(dtype)
    theirs = ort_or_skip(op_type, [x], onnx_type(dtype))
    # ONNX Runtime's float16 Sign gives 0 for NaN, its float32 Sign gives NaN: a kernel does as float32.
    skip = np.isnan(x) if (op_type, dtype) == ("Sign", "float16") else None
    assert_same(evaluate(op_type, [x], dtype), theirs, [x], skip)


def test_hard_swish_of_float64_has_a_float32_alpha() -> None:
    """ONNX Runtime computes it by the body of the function, where alpha is an attribute."""
    x = values("float64")
    assert_same(evaluate("HardSwish", [x], "float64"), run("HardSwish", [x], onnx_type("float64"), opset=18), [x])


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("LeakyRelu", {"alpha": 0.3}),
        ("LeakyRelu", {"alpha": -1.5}),
        ("ThresholdedRelu", {"alpha": 0.1}),
        ("HardSigmoid", {"alpha": 0.25, "beta": 0.4}),
        ("Shrink", {"lambd": 1.5, "bias": 0.5}),
    ],
)
def test_unary_attributes(op_type: str, attrs: dict[str, float]) -> None:
    x = values("float32")
    assert_same(evaluate(op_type, [x], "float32", attrs), run(op_type, [x], onnx_type("float32"), attrs), [x])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("IsNaN", {}),
        ("IsInf", {}),
        ("IsInf", {"detect_negative": 0}),
        ("IsInf", {"detect_positive": 0}),
        ("IsInf", {"detect_positive": 0, "detect_negative": 0}),
    ],
)
def test_classification(op_type: str, attrs: dict[str, int], dtype: str) -> None:
    x = every(dtype)
    assert_same(evaluate(op_type, [x], "bool", attrs), run(op_type, [x], onnx_type("bool"), attrs), [x])


BINARY: dict[str, tuple[str, ...]] = {
    "Add": FLOATS + INTEGERS,
    "Sub": FLOATS + INTEGERS,
    "Mul": FLOATS + INTEGERS,
    "Div": FLOATS,
    "Max": FLOATS + INTEGERS,
    "Min": FLOATS + INTEGERS,
    "Sum": FLOATS,
    "PRelu": ("float32", "float16"),
    "And": ("bool",),
    "Or": ("bool",),
    "Xor": ("bool",),
    "BitwiseAnd": INTEGERS,
    "BitwiseOr": INTEGERS,
    "BitwiseXor": INTEGERS,
}


@pytest.mark.parametrize(("op_type", "dtype"), [(o, d) for o, dtypes in BINARY.items() for d in dtypes])
def test_binary(op_type: str, dtype: str) -> None:
    a, b = pairs(dtype, dtype)
    theirs = ort_or_skip(op_type, [a, b], onnx_type(dtype))
    skip = None
    if dtype == "float16" and op_type in ("Max", "Min"):
        skip = (a == 0) & (b == 0)  # ONNX Runtime's choice between -0 and +0 is the other one than for float32
    if dtype == "float16" and op_type == "PRelu":
        skip = a == 0
    assert_same(evaluate(op_type, [a, b], dtype), theirs, [a, b], skip)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("op_type", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(op_type: str, dtype: str) -> None:
    if dtype == "bool" and op_type != "Equal":
        pytest.skip("ONNX does not order bool")
    a, b = pairs(dtype, dtype)
    theirs = ort_or_skip(op_type, [a, b], onnx_type("bool"))
    assert_same(evaluate(op_type, [a, b], "bool"), theirs, [a, b])


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_variadic(op_type: str, count: int) -> None:
    rng = np.random.default_rng(1)
    operands = [rng.permutation(values("float32")) for _ in range(count)]
    theirs = run(op_type, operands, onnx_type("float32"))
    assert_same(evaluate(op_type, operands, "float32"), theirs, operands)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_where(dtype: str) -> None:
    a, b = pairs(dtype, dtype)
    condition = np.arange(a.size) % 3 == 0
    inputs = [condition, a, b]
    assert_same(evaluate("Where", inputs, dtype), ort_or_skip("Where", inputs, onnx_type(dtype)), inputs)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("divisor", [1, 3, 100, -1, -7])
@pytest.mark.parametrize(("op_type", "attrs"), [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})])
def test_integer_division(op_type: str, attrs: dict[str, int], divisor: int, dtype: str) -> None:
    if divisor < 0 and dtype in UNSIGNED:
        pytest.skip("no negative numbers")
    a = every(dtype)
    b = np.full(a.shape, divisor, dtype)
    ours = evaluate(op_type, [a, b], dtype, attrs, constants={1: divisor})
    if divisor == -1 and op_type == "Div":
        # ONNX Runtime dies of SIGFPE for INT_MIN / -1 in 32 and 64 bits: ours wraps, its operand is not given to it.
        lowest = a == np.iinfo(dtype).min
        assert np.array_equal(ours[lowest], a[lowest])
        a, b, ours = a[~lowest], b[~lowest], ours[~lowest]
    assert_same(ours, run(op_type, [a, b], onnx_type(dtype), attrs), [a, b])


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_mod(dtype: str) -> None:
    a, b = pairs(dtype, dtype)
    theirs = ort_or_skip("Mod", [a, b], onnx_type(dtype), {"fmod": 1})
    assert_same(evaluate("Mod", [a, b], dtype, {"fmod": 1}), theirs, [a, b])


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction: str, dtype: str) -> None:
    a, b = pairs(dtype, dtype)
    theirs = ort_or_skip("BitShift", [a, b], onnx_type(dtype), {"direction": direction})
    assert_same(evaluate("BitShift", [a, b], dtype, {"direction": direction}), theirs, [a, b])


BOUNDS = [(-2, 7), (7, -2), (None, 7), (-2, None), (None, None), (0.0, -0.0), (-0.0, 0.0), (np.nan, 7), (-2, np.nan)]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_clip(low: float | None, high: float | None, dtype: str) -> None:
    if dtype in INTEGERS and any(v is not None and (v != v or v == 0) for v in (low, high)):
        pytest.skip("a float bound")
    if dtype in UNSIGNED and low is not None:
        low, high = low + 2, None if high is None else high + 2
    x = every(dtype)
    inputs = [x, *(None if v is None else np.array(v, dtype) for v in (low, high))]
    theirs = ort_or_skip("Clip", inputs, onnx_type(dtype))
    # An absent bound of float16 is 65504 in ONNX Runtime; a kernel computes in float32, whose infinity survives.
    skip = np.isinf(x) if dtype == "float16" else None
    assert_same(evaluate("Clip", inputs, dtype), theirs, inputs, skip)


@pytest.mark.parametrize("attrs", [{}, {"min": -1.0}, {"max": 2.5}, {"min": -1.0, "max": 2.5}])
def test_clip_with_attributes(attrs: dict[str, float]) -> None:
    x = values("float32")
    theirs = run("Clip", [x], onnx_type("float32"), attrs, opset=7)
    assert_same(evaluate("Clip", [x], "float32", attrs, opset=7), theirs, [x])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("exponent", [2, 3])
def test_integer_power(exponent: int, dtype: str) -> None:
    x = values(dtype)
    inputs = [x, np.array(exponent, dtype)]
    ours = evaluate("Pow", inputs, dtype, constants={1: exponent})
    assert_same(ours, run("Pow", inputs, onnx_type(dtype)), inputs)
