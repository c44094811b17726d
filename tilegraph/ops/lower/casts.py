"""Cast: a cast to a 16-bit float inside a region rounds there, although the kernel computes in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegraph.ops.dtypes import stored_name
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


def rounded(x: Prim, target: str) -> Point:
    """`x` (float32) rounded to a 16-bit float and widened again."""
    fn = _ROUND[target]

    def apply(m: Any, values: Sequence[Any]) -> Any:
        return fn(m, values[0])

    return Point(x.shape, "float32", key=f"round[{target}]", operands=(x,), fn=apply, cost=8)
