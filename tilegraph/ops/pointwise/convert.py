"""Cast, CastLike, QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegraph.ops.math import Math, V
from tilegraph.ops.pointwise.base import BOOL, EVERY, FLOATS, INTEGERS, PointOp, alike, each
from tilegraph.ops.vecmath.basic import at_least, at_most, like
from tilegraph.ops.vecmath.half import round_to_bfloat16, round_to_half

Attrs = Mapping[str, Any]

FLOAT16, BFLOAT16 = 10, 16
# TensorProto.DataType -> computing dtype, for the types that kernels handle.
TARGETS: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    FLOAT16: "float32",
    11: "float64",
    12: "uint32",
    13: "uint64",
    BFLOAT16: "float32",
}


def _truncate(m: Math[V], x: V, dtype: str) -> V:
    """Float x to int32 or int64 as x86 does it: out of range and NaN give the most negative value."""
    x = m.share(x)
    bound = 2.0 ** (int(dtype[3:]) - 1)
    inside = m.land(m.le(like(m, x, -bound), x), m.lt(x, like(m, x, bound)))
    value = m.cast(m.select(inside, x, like(m, x, 0.0)), dtype)
    return m.select(inside, value, m.const(-int(bound), dtype))


def float_to_int(m: Math[V], x: V, dtype: str) -> V:
    """Truncation towards zero. ONNX leaves values out of range undefined; these are ONNX Runtime's on x86-64.

    int32, int64: the most negative value. 8 and 16 bits: the low bits of the int32. uint32, uint64: values in the
    signed range by their bits, above it x - 2^31 (2^63) with the top bit flipped.
    """
    if dtype in ("int32", "int64"):
        return _truncate(m, x, dtype)
    if dtype in ("uint32", "uint64"):
        x = m.share(x)
        signed = dtype[1:]
        half = 2 ** (int(signed[3:]) - 1)
        large = m.le(like(m, x, float(half)), x)
        near = _truncate(m, m.select(large, m.sub(x, like(m, x, float(half))), x), signed)
        flip = m.select(large, m.const(-half, signed), m.const(0, signed))
        return m.bitcast(m.bxor(near, flip), dtype)
    return m.cast(_truncate(m, x, "int32"), dtype)


def cast(m: Math[V], x: V, to: int) -> V:
    """x as the ONNX type `to`; float16 and bfloat16 are rounded to but stay in float32."""
    source, target = m.dtype(x), TARGETS[to]
    if source in FLOATS and target in INTEGERS:
        return float_to_int(m, x, target)
    y = x if source == target else m.cast(x, target)
    if to == FLOAT16:
        return round_to_half(m, y)
    return round_to_bfloat16(m, y) if to == BFLOAT16 else y


def _cast(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return cast(m, args[0], int(attrs["to"]))


def _check_cast(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """targets other than the dtypes above with float16 and bfloat16: strings, float8, 4 bits, complex"""
    to = attrs.get("to")
    if not isinstance(to, int):
        return "attribute `to` is missing (for CastLike the caller adds the element type of the second input)"
    return None if to in TARGETS else f"no kernel for the target type number {to} of TensorProto.DataType"


QUANTIZED = ("int8", "uint8", "int16", "uint16")


def _quantize(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    """saturate(round half to even(x / scale) + zero point). `divided`: the TensorProto.DataType of a 16-bit float that
    the quotient is rounded to first."""
    x, scale = args[0], args[1]
    zero = args[2] if len(args) > 2 else None
    bits = int(out_dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if out_dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    quotient = m.div(x, scale)
    if divided := attrs.get("divided"):
        quotient = cast(m, quotient, divided)
    q = m.round_even(quotient)
    if zero is not None:
        q = m.add(q, m.cast(zero, m.dtype(q)))
    q = m.share(at_most(m, at_least(m, q, low), high))
    q = m.select(m.eq(q, q), q, like(m, q, low))
    return m.cast(m.cast(q, "int32"), out_dtype)


def _check_quantize(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """blocked quantization; outputs other than 8 and 16 bit integers"""
    if attrs.get("block_size"):
        return "blocked quantization has no kernel"
    zero = dtypes[2] if len(dtypes) > 2 else None
    if zero is not None and zero not in QUANTIZED:
        return f"no kernel for the quantized dtype {zero}"
    to = attrs.get("output_dtype", 0)
    if to and TARGETS.get(to) not in QUANTIZED:
        return f"no kernel for the output type number {to} of TensorProto.DataType"
    return None


def _dequantize(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    """(x - zero point) * scale; the difference in int32."""
    x, scale = m.cast(args[0], "int32"), args[1]
    zero = args[2] if len(args) > 2 else None
    if zero is not None:
        x = m.sub(x, m.cast(zero, "int32"))
    return m.mul(m.cast(x, m.dtype(scale)), scale)


def _check_dequantize(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """blocked quantization; a zero point of another dtype than the data"""
    if attrs.get("block_size"):
        return "blocked quantization has no kernel"
    zero = dtypes[2] if len(dtypes) > 2 else None
    return None if zero in (None, dtypes[0]) else f"zero point of dtype {zero} beside data of dtype {dtypes[0]}"


_QDTYPES = (*QUANTIZED, "int32")

OPS = (
    PointOp("Cast", "", (1, 1), _cast, 4, "6", alike(EVERY), _check_cast),
    PointOp("CastLike", "", (2, 2), _cast, 4, "15", each(EVERY, EVERY), _check_cast),
    PointOp("QuantizeLinear", "", (2, 3), _quantize, 14, "10", each(FLOATS, FLOATS, QUANTIZED), _check_quantize),
    PointOp("DequantizeLinear", "", (2, 3), _dequantize, 4, "10", each(_QDTYPES, FLOATS, _QDTYPES), _check_dequantize),
)

__all__ = ["BOOL", "OPS", "TARGETS", "cast", "float_to_int"]
