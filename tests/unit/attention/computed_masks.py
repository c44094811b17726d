"""Masks by division and remainder of positions: as nodes, and as numpy computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

Array = np.ndarray[Any, Any]
COMPUTED = ("chunk", "floor-chunk", "strided", "dilated", "prefix")


def allowed(mask: str, i: Array, j: Array, window: int) -> Array:
    """Which keys j [1, keys] queries i [queries, 1] see."""
    match mask:
        case "strided":
            return np.asarray((j <= i) & (((i - j) % window == 0) | (i - j < 2)))
        case "dilated":
            return np.asarray((abs(i - j) % window == 0) & (abs(i - j) <= 4 * window))
        case "prefix":
            return np.asarray((j <= i) | (j < j.size // 4))
    return np.asarray(i // window == j // window)


def spell(mask: str, add: Callable[..., str], const: Callable[[str, Any], str], window: int) -> str:
    """The nodes that make it of `column` [queries, 1], `columns` [keys] and their number `columns_end`, int64."""
    if mask == "chunk":
        size = const("window", np.array(window))
        return add("Equal", [add("Div", [side, size], f"{side}_chunk") for side in ("column", "columns")], "same")
    if mask == "floor-chunk":  # right only where quotients are exact
        divisor = const("window_float", np.float32(window))
        for side in ("column", "columns"):
            add("Cast", [side], f"{side}_float", to=TensorProto.FLOAT)
            add("Floor", [add("Div", [f"{side}_float", divisor], f"{side}_quotient")], f"{side}_chunk")
        return add("Equal", ["column_chunk", "columns_chunk"], "same")
    before = add("LessOrEqual", ["columns", "column"], "before")
    if mask == "prefix":
        end = add("Div", ["columns_end", const("quarter", np.array(4))], "end")
        return add("Or", [before, add("Less", ["columns", end], "in_prefix")], "seen")
    size = const("window", np.array(window))
    distance = add("Sub", ["column", "columns"], "distance")
    if mask == "dilated":
        distance = add("Abs", [distance], "size")
    met = add("Equal", [add("Mod", [distance, size], "left"), "zero"], "met")
    if mask == "dilated":
        return add("And", [met, add("LessOrEqual", [distance, const("most", np.array(4 * window))], "near")], "seen")
    add("Or", [met, add("Less", [distance, const("two", np.array(2))], "next")], "any")
    return add("And", ["any", before], "seen")
