"""What the operator table accepts and why it declines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.ops.numpy_math import NumpyMath
from tilegraph.ops.pointwise import CONSTANTS, POINTWISE

EVERY_OP = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot Cast CastLike Ceil
Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf
IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or Pow PRelu Reciprocal Relu Round Selu
Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor QuantizeLinear
DequantizeLinear
"""


def test_every_pointwise_operator_is_there() -> None:
    assert {name for domain, name in POINTWISE if domain == ""} == set(EVERY_OP.split())
    assert {name for domain, name in POINTWISE if domain == "com.microsoft"} == {
        "Gelu",
        "BiasGelu",
        "FastGelu",
        "QuickGelu",
    }


def test_keys_are_names() -> None:
    for (domain, name), op in POINTWISE.items():
        assert (op.domain, op.name) == (domain, name)
        assert op.cost >= 0
        assert op.since


F, D, I32, L, U, B = "float32", "float64", "int32", "int64", "uint8", "bool"
DECLINES: list[tuple[str, list[str | None], dict[str, Any], str]] = [
    ("Add", [F, D], {}, "Add: operands of different dtypes float32, float64"),
    ("Add", [F], {}, "Add has 1 inputs, expected 2"),
    ("Add", [F, None], {}, "Add lacks its required input 1"),
    ("Max", [], {}, "Max has 0 inputs, expected at least 1"),
    ("Clip", [F, F, F, F], {}, "Clip has 4 inputs, expected 1 to 3"),
    ("Exp", [I32], {}, "Exp: no kernel for int32 (only float32, float64)"),
    ("Exp", ["float8e4m3fn"], {}, "no kernel for float8e4m3fn"),
    ("And", [I32, I32], {}, "And: no kernel for int32 (only bool)"),
    ("Where", [I32, F, F], {}, "Where: the condition has dtype int32, expected bool"),
    ("Where", [B, F, I32], {}, "Where: operands of different dtypes float32, int32"),
    ("Div", [I32, I32], {CONSTANTS: {1: 0}}, "Div: integer division by the constant 0"),
    ("Mod", [L, L], {CONSTANTS: {1: 0}, "fmod": 1}, "Mod: integer division by the constant 0"),
    ("Mod", [F, F], {}, "Mod: float operands need fmod=1"),
    ("Pow", [I32, I32], {}, "Pow: an integer base needs the constant exponent 2 or 3"),
    ("Pow", [I32, I32], {CONSTANTS: {1: 4}}, "Pow: an integer base needs the constant exponent 2 or 3"),
    ("Pow", [F, D], {}, "Pow: a float64 exponent"),
    ("Pow", [F, L], {}, "Pow: an exponent of dtype int64 must be a constant"),
    ("BitShift", [U, U], {}, "BitShift: direction is '', expected LEFT or RIGHT"),
    ("BitShift", [I32, I32], {"direction": "LEFT"}, "BitShift: no kernel for int32 before opset 28"),
    ("Shrink", [D], {}, "Shrink: no kernel for float64"),
    ("Gelu", [F], {"approximate": "fast"}, "Gelu: approximate is 'fast', expected none or tanh"),
    ("Cast", [F], {}, "Cast: attribute `to` is missing"),
    ("Cast", [F], {"to": 17}, "Cast: no kernel for the target type number 17"),
    ("Cast", [F], {"to": 8}, "Cast: no kernel for the target type number 8"),
    ("CastLike", [F, I32], {}, "CastLike: attribute `to` is missing"),
    ("QuantizeLinear", [F, F, U], {"block_size": 16}, "QuantizeLinear: blocked quantization has no kernel"),
    ("QuantizeLinear", [F, F, I32], {}, "QuantizeLinear: no kernel for int32 as input 2"),
    ("QuantizeLinear", [F, F], {"output_dtype": 17}, "QuantizeLinear: no kernel for the output type number 17"),
    ("QuantizeLinear", [I32, F], {}, "QuantizeLinear: no kernel for int32 as input 0"),
    ("DequantizeLinear", [U, F, "int8"], {}, "DequantizeLinear: zero point of dtype int8 beside data of dtype uint8"),
    ("DequantizeLinear", [U, F], {"block_size": 2}, "DequantizeLinear: blocked quantization has no kernel"),
]


@pytest.mark.parametrize(("name", "dtypes", "attrs", "reason"), DECLINES)
def test_declines(name: str, dtypes: list[str | None], attrs: dict[str, Any], reason: str) -> None:
    said = POINTWISE["", name].accepts(dtypes, attrs, 21)
    assert said is not None
    assert reason in said


ACCEPTS: list[tuple[str, list[str | None], dict[str, Any]]] = [
    ("Add", [F, F], {}),
    ("Max", [F], {}),
    ("Max", [F] * 7, {}),
    ("Clip", [F, None, F], {}),
    ("Clip", [F], {"min": 0.0}),
    ("Where", [B, F, F], {}),
    ("Div", [F, F], {}),
    ("Div", [I32, I32], {CONSTANTS: {1: 3}}),
    ("Mod", [L, L], {CONSTANTS: {1: -3}}),
    ("Mod", [F, F], {"fmod": 1}),
    ("Pow", [I32, F], {CONSTANTS: {1: 2.0}}),
    ("Pow", [F, L], {CONSTANTS: {1: 2}}),
    ("Pow", [F, F], {}),
    ("Pow", [D, F], {}),
    ("BitShift", [U, U], {"direction": b"RIGHT"}),
    ("Cast", [F], {"to": 10}),
    ("CastLike", [F, I32], {"to": 6}),
    ("QuantizeLinear", [F, F], {}),
    ("DequantizeLinear", [I32, F], {}),
    ("Gelu", [F], {"approximate": b"tanh"}),
]


@pytest.mark.parametrize(("name", "dtypes", "attrs"), ACCEPTS)
def test_accepts(name: str, dtypes: list[str | None], attrs: dict[str, Any]) -> None:
    assert POINTWISE["", name].accepts(dtypes, attrs, 21) is None


def test_clip_without_bounds_as_opset_6_has_it() -> None:
    x = np.array([-np.inf, -1.0, np.nan, 5.0, np.inf], np.float32)
    most = np.finfo(np.float32).max
    y = POINTWISE["", "Clip"].fn(NumpyMath(), [x], {}, F)
    np.testing.assert_array_equal(y, np.array([-most, -1.0, np.nan, 5.0, most], np.float32))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("divisor", [-1, -3, 3, 1])
def test_division_truncates_and_mod_follows_the_divisor(dtype: str, divisor: int) -> None:
    """Against Python's integers, INT_MIN / -1 (which wraps) included."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    numbers = [low, low + 1, -7, -1, 0, 1, 7, high]
    a, b = np.array(numbers, dtype), np.full(len(numbers), divisor, dtype)
    attrs = {CONSTANTS: {1: divisor}}
    m = NumpyMath()
    quotient = POINTWISE["", "Div"].fn(m, [a, b], attrs, dtype)
    expected = [abs(n) // abs(divisor) * (1 if (n < 0) == (divisor < 0) else -1) for n in numbers]
    wrapped = [(q - low) % (high - low + 1) + low for q in expected]
    assert quotient.tolist() == wrapped
    assert POINTWISE["", "Mod"].fn(m, [a, b], attrs, dtype).tolist() == [n % divisor for n in numbers]
    fmod = POINTWISE["", "Mod"].fn(m, [a, b], {**attrs, "fmod": 1}, dtype)
    assert fmod.tolist() == [n - q * divisor for n, q in zip(numbers, expected, strict=True)]


def test_float_to_unsigned_out_of_range() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -1.0, 3e9, 1e20, -3e9], np.float32)
    y = POINTWISE["", "Cast"].fn(NumpyMath(), [x], {"to": 12}, "uint32")
    assert y.tolist() == [2**31, 0, 2**31, 2**32 - 1, 3_000_000_000, 0, 2**31]
