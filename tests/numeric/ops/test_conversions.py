"""Cast between all pairs of dtypes, quantization: ONNX Runtime's values bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.numeric.ops.evaluate import assert_same, evaluate
from tests.numeric.ops.ort_cpu import every, floats, run, values

DTYPES = (
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


def onnx_type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_cast(source: str, target: str) -> None:
    x = every(source)
    ours = evaluate("Cast", [x], target, {"to": onnx_type(target)})
    # Undefined by ONNX; ONNX Runtime converts float16 to uint32 by another route than float32 to uint32.
    skip = ~np.isfinite(x) if (source, target) == ("float16", "uint32") else None
    assert_same(ours, run("Cast", [x], onnx_type(target), {"to": onnx_type(target)}), [x], skip)


@pytest.mark.parametrize("source", ["float32", "float64", "int64", "bool"])
def test_cast_to_bfloat16(source: str) -> None:
    x = values(source)
    ours = evaluate("Cast", [x], "float32", {"to": TensorProto.BFLOAT16})
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert_same(ours, expected, [x])


def test_cast_to_float16_rounds_within_a_region() -> None:
    """The value stays in float32 but has only float16's bits."""
    x = floats("float32")
    ours = evaluate("Cast", [x], "float32", {"to": TensorProto.FLOAT16})
    with np.errstate(all="ignore"):
        assert_same(ours, x.astype(np.float16).astype(np.float32), [x])


def test_cast_like() -> None:
    x = floats("float32")
    like = np.zeros(1, np.int32)
    ours = evaluate("CastLike", [x, like], "int32", {"to": TensorProto.INT32})
    assert_same(ours, run("CastLike", [x, like], TensorProto.INT32), [x, like])


QUANTIZED = [(d, z) for d in ("int8", "uint8", "int16", "uint16") for z in (0, 1, 100)] + [("int8", -3), ("int16", -3)]


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.5, 3e-3, 1e-30])
@pytest.mark.parametrize(("dtype", "zero"), QUANTIZED)
def test_quantize(dtype: str, zero: int, scale: float) -> None:
    x = np.concatenate([floats("float32"), np.arange(-40, 40, dtype=np.float32) * np.float32(scale / 2)])
    inputs = [x, np.array(scale, np.float32), np.array(zero, dtype)]
    assert_same(evaluate("QuantizeLinear", inputs, dtype), run("QuantizeLinear", inputs, onnx_type(dtype)), inputs)


def test_quantize_without_zero_point() -> None:
    inputs = [floats("float32"), np.array(0.1, np.float32)]
    assert_same(evaluate("QuantizeLinear", inputs, "uint8"), run("QuantizeLinear", inputs, TensorProto.UINT8), inputs)


@pytest.mark.parametrize(("dtype", "zero"), [*QUANTIZED, ("int32", 0), ("int32", None), ("uint8", None)])
def test_dequantize(dtype: str, zero: int | None) -> None:
    inputs = [every(dtype), np.array(0.1, np.float32)]
    if zero is not None:
        inputs.append(np.array(zero, dtype))
    theirs = run("DequantizeLinear", inputs, TensorProto.FLOAT)
    assert_same(evaluate("DequantizeLinear", inputs, "float32"), theirs, inputs)
