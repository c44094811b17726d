"""Cast: a cast to a 16-bit float inside a region rounds there, although the kernel computes in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegraph.ops.dtypes import BYTES, stored_name
from tilegraph.ops.lower.base import NodeContext, compute_dtype, point
from tilegraph.ops.prims import Point, Prim
from tilegraph.ops.vecmath import round_to_bfloat16, round_to_half

_ROUND = {"float16": round_to_half, "bfloat16": round_to_bfloat16}


def lower_cast(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    value = c.node.outputs[0]
    target = stored_name(value.dtype, value.name or "")
    dtype = compute_dtype(value)
    source = c.node.inputs[0]
    if source is not None and stored_name(source.dtype) == target:
        return [x]
    if x.dtype != dtype:
        onnx_type = int(value.dtype) if value.dtype is not None else 0
        if target in _ROUND:
            onnx_type = 1
        x = point("Cast", [x], dtype, attrs={"to": onnx_type}, opset=c.opset)
    if target in _ROUND:
        x = rounded(x, target)
    return [x]


def lower_bitcast(c: NodeContext) -> list[Prim]:
    """The same bits under another dtype of the same width; 16-bit floats are not held as their bits."""
    x = c.arg(0)
    source, value = c.node.inputs[0], c.node.outputs[0]
    stored = [stored_name(v.dtype) for v in (source, value) if v is not None]
    if any(name in _ROUND for name in stored):
        raise c.decline("BitCast of 16-bit floats")
    if stored[0] == stored[1]:
        return [x]
    dtype = compute_dtype(value)
    if dtype == "bool":
        raise c.decline("BitCast to bool")
    if x.dtype == "bool":
        x = point("Cast", [x], "uint8", attrs={"to": 2})
    if BYTES[stored[0]] != BYTES[stored[1]]:
        raise c.decline(f"BitCast of {stored[0]} to {stored[1]}")
    return [Point(x.shape, dtype, key=f"bitcast[{dtype}]", operands=(x,), fn=lambda m, a: m.bitcast(a[0], dtype))]


def rounded(x: Prim, target: str) -> Point:
    """`x` (float32) rounded to a 16-bit float and widened again."""
    fn = _ROUND[target]

    def apply(m: Any, values: Sequence[Any]) -> Any:
        return fn(m, values[0])

    return Point(x.shape, "float32", key=f"round[{target}]", operands=(x,), fn=apply, cost=8)
