"""Pointwise operators of domain com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilegraph.ops.math import Math
from tilegraph.ops.pointwise.activation import gelu_erf, gelu_tanh, swish
from tilegraph.ops.pointwise.base import FLOATS, PointOp, alike

Attrs = Mapping[str, Any]
DOMAIN = "com.microsoft"


def _biased(m: Math[Any], args: list[Any]) -> Any:
    bias = args[1] if len(args) > 1 else None
    return args[0] if bias is None else m.add(args[0], bias)


def _gelu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return gelu_erf(m, _biased(m, args))


def _fast_gelu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return gelu_tanh(m, _biased(m, args))


def _quick_gelu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return swish(m, args[0], float(attrs.get("alpha", 1.7020000219345093)))


OPS = (
    PointOp("Gelu", DOMAIN, (1, 1), _gelu, 37, "1", alike(FLOATS)),
    PointOp("BiasGelu", DOMAIN, (2, 2), _gelu, 38, "1", alike(FLOATS)),
    PointOp("FastGelu", DOMAIN, (1, 2), _fast_gelu, 38, "1", alike(("float32",))),
    PointOp("QuickGelu", DOMAIN, (1, 1), _quick_gelu, 34, "1", alike(FLOATS)),
)
