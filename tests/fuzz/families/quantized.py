"""Integers for floats: Q and DQ pairs by tensor and by axis, weights in integers and in blocks, integer products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.families.products import WIDTHS

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

EIGHT = (np.int8, np.uint8)


def _zero(g: Graph, dtype: type, shape: tuple[int, ...] = ()) -> str:
    low, high = (0, 1) if g.rng.random() < 0.5 else ((-20, 20) if np.dtype(dtype).kind == "i" else (100, 150))
    return g.const(g.rng.integers(low, high, size=shape), dtype)


def pair(g: Graph, x: str, scale: float = 0.05) -> str | None:
    """x rounded to 8 (or 16) bits and back: its last bit decides which step it is, so nobody may have rounded it."""
    dtype = EIGHT[int(g.rng.integers(2))] if g.opset < 21 or g.rng.random() < 0.85 else np.int16
    if x in g.rounded or not g.finite(x, 1e4):
        return None
    step, zero = g.const(scale, g.values[x].dtype), _zero(g, dtype)
    number = g.put("QuantizeLinear", [x, step, zero])
    return number and g.put("DequantizeLinear", [number, step, zero])


def rounded(g: Graph) -> None:
    """A pair, by tensor or by axis, with views between the two now and then."""
    x = g.pick("f", 1)
    if x is None or g.values[x].dtype == np.float64 or x in g.rounded or not g.finite(x, 1e4) or g.opset < 10:
        return
    value = g.values[x]
    if g.opset < 13 or g.rng.random() < 0.5:
        pair(g, x)
        return
    axis = int(g.rng.integers(value.ndim))
    dtype, size = EIGHT[int(g.rng.integers(2))], value.shape[axis]
    steps, zeros = g.const(g.rng.random(size) * 0.1 + 0.01, value.dtype), _zero(g, dtype, (size,))
    number = g.put("QuantizeLinear", [x, steps, zeros], axis=axis)
    if number and value.ndim == 2 and g.rng.random() < 0.4:
        number, axis = g.put("Transpose", [number], perm=[1, 0]), 1 - axis
    if number:
        g.put("DequantizeLinear", [number, steps, zeros], axis=axis - value.ndim if g.rng.random() < 0.3 else axis)


def weighted(g: Graph) -> None:
    """A product with a matrix that is kept in integers, by tensor, by column, or (from opset 21 on) in blocks of 4
    or 8 bits."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype == np.float64 or g.opset < 13:
        return
    value = g.values[x]
    depth, width = value.shape[-1], int(g.rng.choice(WIDTHS))
    if depth == 0:
        return
    kind = int(g.rng.integers(3))
    if kind == 2 and g.opset >= 21:
        block = next((b for b in (16, 8, 4, 2, 1) if depth % b == 0), 1)
        array = g.rng.integers(-8, 8, size=(depth, width))
        small = onnx.TensorProto.INT4 if g.rng.random() < 0.6 else onnx.TensorProto.INT8
        weights = g.const(array.astype(helper.tensor_dtype_to_np_dtype(small)))
        steps = g.const(g.rng.random((depth // block, width)) * 0.1 + 0.01, value.dtype)
        back, (result,) = g.fresh(), g.results(1)
        g.together([helper.make_node("DequantizeLinear", [weights, steps], [back], axis=0, block_size=block),
                    helper.make_node("MatMul", [x, back], [result])], [result], exact=False)
        return
    dtype = EIGHT[int(g.rng.integers(2))]
    weights = g.const(g.rng.integers(*((-127, 128) if dtype == np.int8 else (0, 256)), size=(depth, width)), dtype)
    shape = (width,) if kind else ()
    steps = g.const(g.rng.random(shape) * 0.01 + 0.001, value.dtype)
    matrix = g.put("DequantizeLinear", [weights, steps, _zero(g, dtype, shape)], axis=1)
    source = (pair(g, x) or x) if g.rng.random() < 0.5 else x
    made = matrix and g.put("MatMul", [source, matrix])
    if made and g.rng.random() < 0.6:
        made = g.put("Add", [made, g.const(g.random([width], value.dtype))])
    if made and g.rng.random() < 0.5:
        g.put("Relu", [made])


def convolved(g: Graph) -> None:
    """Conv of an 8-bit source and 8-bit filters, each with its own scale."""
    x = g.pick("f", 4)
    if x is None or g.values[x].ndim != 4 or g.values[x].dtype != np.float32 or g.opset < 13:
        return
    channels, wide = g.values[x].shape[1], int(g.rng.choice([4, 8, 16]))
    if not channels:
        return
    filters = g.const(g.rng.integers(-127, 128, size=(wide, channels, 3, 3)), np.int8)
    steps = g.const(g.rng.random(wide) * 0.005 + 0.001, np.float32)
    kernel = g.put("DequantizeLinear", [filters, steps, g.const(np.zeros(wide), np.int8)], axis=0)
    source = pair(g, x) or x
    made = kernel and g.put("Conv", [source, kernel], pads=[1, 1, 1, 1])
    if made:
        g.put("Relu", [made])


def dynamic(g: Graph) -> None:
    """DynamicQuantizeLinear, MatMulInteger, Cast, Mul: what dynamic quantization makes of a product."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype != np.float32 or x in g.rounded or not g.finite(x, 1e4) or g.opset < 11:
        return
    depth, width = g.values[x].shape[-1], int(g.rng.choice(WIDTHS))
    number = g.put("DynamicQuantizeLinear", [x], 3)
    if number is None:
        return
    _, step, zero = g.outs
    dtype = EIGHT[int(g.rng.integers(2))]
    weights = g.const(g.rng.integers(*((-127, 128) if dtype == np.int8 else (0, 256)), size=(depth, width)), dtype)
    inputs = [number, weights, zero, *([_zero(g, dtype)] if g.rng.random() < 0.6 else [])]
    whole = g.put("MatMulInteger", inputs)
    floats = whole and g.put("Cast", [whole], to=1)
    scales = floats and g.put("Mul", [step, g.const(0.01, np.float32)])
    if floats and scales:
        g.put("Mul", [floats, scales])


def integers(g: Graph) -> None:
    """QLinearMatMul of what a Q made, and a DQ behind it."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype != np.float32 or x in g.rounded or not g.finite(x, 1e4) or g.opset < 10:
        return
    step, zero = g.const(0.05, np.float32), _zero(g, np.uint8)
    number = g.put("QuantizeLinear", [x, step, zero])
    depth, width = g.values[x].shape[-1], int(g.rng.choice(WIDTHS))
    weights = g.const(g.rng.integers(-127, 128, size=(depth, width)), np.int8)
    step_y, zero_y = g.const(0.1, np.float32), _zero(g, np.uint8)
    made = number and g.put("QLinearMatMul", [number, step, zero, weights, g.const(0.02, np.float32),
                                              _zero(g, np.int8), step_y, zero_y])
    if made:
        g.put("DequantizeLinear", [made, step_y, zero_y])


def blocks(g: Graph) -> None:
    """com.microsoft.MatMulNBits: 4 or 8 bits in blocks, with zero points or without."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype != np.float32:
        return
    depth, width = g.values[x].shape[-1], int(g.rng.choice([3, 8, 16, 33]))
    bits, block = int(g.rng.choice([4, 4, 8])), int(g.rng.choice([16, 32]))
    if depth == 0:
        return
    count = -(-depth // block)
    packed = g.const(g.rng.integers(0, 256, size=(width, count, block * bits // 8)), np.uint8)
    scales = g.const(g.rng.random((width, count)) * 0.05 + 0.01, np.float32)
    inputs = [x, packed, scales]
    if g.rng.random() < 0.5:
        inputs.append(g.const(g.rng.integers(0, 256, size=(width, -(-count * bits // 8))), np.uint8))
    g.put("MatMulNBits", inputs, domain="com.microsoft", K=depth, N=width, bits=bits, block_size=block)


STEPS = (rounded, rounded, weighted, weighted, convolved, dynamic, integers, blocks)
