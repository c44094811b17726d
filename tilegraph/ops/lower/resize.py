"""Resize and Upsample: nearest as an index map, linear and cubic as weighted sums of neighbours along each axis.

Extents are static, so every coordinate is known: the integer formula of a nearest neighbour is compared with ONNX
Runtime's float32 arithmetic for each element when the node is lowered.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, point, quotient, scalar, view
from tilegraph.ops.prims import Pick, Position, Prim
from tilegraph.spec.dims import Dim, Shape

_DENOMINATOR = 4096  # of the fraction that a scale is taken for


@dataclass(frozen=True)
class _Axis:
    """One axis that is resized from `size` to `result` elements by `scale` (float32)."""

    axis: int
    size: int
    result: int
    scale: float


def mode_of(attributes: Any) -> str:
    """"nearest", "linear" or "cubic" of a node's attributes."""
    return attributes["mode"].as_string() if "mode" in attributes else "nearest"


def lower_resize(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    old = c.node.op_type == "Upsample" or c.opset < 11
    transform = "asymmetric" if old else str(c.attr("coordinate_transformation_mode", "half_pixel"))
    mode = str(c.attr("mode", "nearest"))
    if mode not in ("nearest", "linear", "cubic") or transform not in _COORDINATES:
        raise c.decline(f"Resize in mode {mode} with {transform} coordinates")
    if int(c.attr("antialias", 0)) or str(c.attr("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise c.decline("Resize that smoothes, or keeps the aspect ratio")
    if mode != "nearest" and not x.dtype.startswith("float"):
        raise c.decline(f"{mode} Resize of {x.dtype}")
    rounding = str(c.attr("nearest_mode", "round_prefer_floor"))
    for axis in _axes(c, x, old):
        if mode == "linear":
            x = _linear(x, axis, transform)
        elif mode == "cubic":
            exclude = bool(int(c.attr("exclude_outside", 0)))
            x = _cubic(x, axis, transform, float(c.attr("cubic_coeff_a", -0.75)), exclude)
        else:
            x = _nearest(c, x, axis, transform, "floor" if old else rounding)
    return [x]


def _axes(c: NodeContext, x: Prim, old: bool) -> list[_Axis]:
    """The axes whose scale is not 1."""
    rank = len(x.shape)
    chosen = c.attr("axes")
    axes = list(range(rank)) if chosen is None else [int(a) % rank for a in chosen]
    scales = c.attr("scales") if c.node.op_type == "Upsample" and c.attr("scales") else None
    if scales is None:
        array = c.constant(1 if old else 2)
        place = c.node.inputs[1 if old else 2] if len(c.node.inputs) > (1 if old else 2) else None
        if place is not None and array is None:
            raise c.decline("Resize by scales that are not constant")
        scales = None if array is None or not array.size else array.reshape(-1).tolist()
    sizes = None if old or scales is not None else c.ints(3)
    given = scales if scales is not None else sizes
    if given is None or len(given) != len(axes):
        raise c.decline("Resize lacks a scale or a size for each axis")
    found = []
    for k, axis in enumerate(axes):
        size = x.shape[axis].as_int()
        if scales is not None and scales[k] == 1:
            continue
        if size is None:
            raise c.decline(f"Resize of the symbolic extent {x.shape[axis]}")
        scale = np.float32(scales[k]) if scales is not None else np.float32(given[k]) / np.float32(size)
        result = int(np.floor(np.float32(size) * scale)) if sizes is None else sizes[k]
        if result < 1:
            raise c.decline("the result of Resize is empty")
        if scales is not None or result != size:
            found.append(_Axis(axis, size, result, float(scale)))
    return found


# -- coordinates ------------------------------------------------------------------------------------------------------

# (offset before, offset after) of x -> (x + before) / scale + after; align_corners has a factor of its own
_COORDINATES = {"asymmetric": (0.0, 0.0), "half_pixel": (0.5, -0.5), "pytorch_half_pixel": (0.5, -0.5),
                "tf_half_pixel_for_nn": (0.5, 0.0), "align_corners": (0.0, 0.0)}


def _to_zero(axis: _Axis, transform: str) -> bool:
    """Whether all elements come from coordinate 0."""
    return axis.result == 1 and transform in ("pytorch_half_pixel", "align_corners")


def _coordinates(axis: _Axis, transform: str) -> Any:
    """Where each element of the result lies in the operand, float32, computed as ONNX Runtime does."""
    x = np.arange(axis.result, dtype=np.float32)
    if _to_zero(axis, transform):
        return x * 0
    if transform == "align_corners":
        return x * np.float32(axis.size - 1) / np.float32(axis.result - 1)
    before, after = (np.float32(v) for v in _COORDINATES[transform])
    return (x + before) / np.float32(axis.scale) + after


def _places(coordinates: Any, axis: _Axis, rounding: str) -> Any:
    """The neighbours that ONNX Runtime picks for these coordinates."""
    match rounding:
        case "floor":
            found = np.floor(coordinates)
        case "ceil":
            found = np.ceil(coordinates)
        case "round_prefer_ceil":
            found = np.floor(np.abs(coordinates) + np.float32(0.5)) * np.sign(coordinates)
        case _:
            found = np.where(coordinates == np.floor(coordinates) + np.float32(0.5), np.floor(coordinates),
                             np.floor(np.abs(coordinates) + np.float32(0.5)) * np.sign(coordinates))
    return np.clip(found.astype(np.int64), 0, axis.size - 1)


def _with(shape: Shape, axis: _Axis) -> Shape:
    return (*shape[:axis.axis], Dim.of(axis.result), *shape[axis.axis + 1:])


# -- nearest ----------------------------------------------------------------------------------------------------------


def _nearest(c: NodeContext, x: Prim, axis: _Axis, transform: str, rounding: str) -> Prim:
    """Element k is element clamp((a k + b) // d)."""
    a, b, d = _formula(axis, transform, rounding)
    k = np.arange(axis.result, dtype=np.int64)
    raw = (a * k + b) // d
    if not np.array_equal(np.clip(raw, 0, axis.size - 1), _places(_coordinates(axis, transform), axis, rounding)):
        raise c.decline(f"Resize of {axis.size} to {axis.result} elements rounds where exact arithmetic does not")
    at = axis.axis
    shape = _with(x.shape, axis)
    if raw.min() >= 0 and raw.max() < axis.size:
        def pull(ix: tuple[Ix, ...]) -> tuple[Ix, ...]:
            return (*ix[:at], (ix[at] * a + b).floordiv(d), *ix[at + 1:])

        return view(x, shape, pull, f"nearest[{at},{a},{b},{d}]")
    shift = max(-int(raw.min()), 0)  # kernels divide towards zero
    place: Prim = Position(_along(shape, at), "int64", axis=at)
    place = point("Mul", [place, scalar(a, "int64")], "int64")
    place = point("Add", [place, scalar(b + shift * d, "int64")], "int64")
    place = point("Div", [place, scalar(d, "int64")], "int64")
    return _picked(x, shape, at, axis.size, point("Sub", [place, scalar(shift, "int64")], "int64"))


def _formula(axis: _Axis, transform: str, rounding: str) -> tuple[int, int, int]:
    """(a, b, d) of the exact coordinate, rounded."""
    if _to_zero(axis, transform):
        return 0, 0, 1
    if transform == "align_corners":
        factor, offset = Fraction(axis.size - 1, axis.result - 1), Fraction(0)
    else:
        scale = Fraction(axis.scale).limit_denominator(_DENOMINATOR)
        if Fraction(axis.result, axis.size) == scale or abs(axis.scale * axis.size - axis.result) < 1e-3:
            scale = Fraction(axis.result, axis.size)
        before, after = (Fraction(v) for v in _COORDINATES[transform])
        factor, offset = 1 / scale, before / scale + after
    if rounding == "round_prefer_floor":
        offset -= Fraction(1, 2)
    elif rounding == "round_prefer_ceil":
        offset += Fraction(1, 2)
    d = int(np.lcm(factor.denominator, offset.denominator))
    a, b = int(factor * d), int(offset * d)
    if rounding in ("ceil", "round_prefer_floor"):
        b += d - 1
    return a, b, d


def _along(shape: Shape, axis: int) -> Shape:
    return tuple(extent if k == axis else Dim.of(1) for k, extent in enumerate(shape))


def _picked(x: Prim, shape: Shape, axis: int, size: int, place: Prim) -> Pick:
    """`x` at `place` (int64, clamped here) of `axis`."""
    inside = point("Min", [point("Max", [place, scalar(0, "int64")], "int64"), scalar(size - 1, "int64")], "int64")

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:axis], at[0], *ix[axis + 1:])

    return Pick(shape, x.dtype, source=x, indices=(inside,), extents=(Dim.of(size),), pull=pull, key=f"axis{axis}")


# -- linear -----------------------------------------------------------------------------------------------------------


def _where(x: Prim, axis: _Axis, transform: str) -> Prim:
    """The coordinate of each element of the result, float32."""
    at, shape, f = axis.axis, _with(x.shape, axis), "float32"
    where: Prim = Position(_along(shape, at), f, axis=at)
    if _to_zero(axis, transform):
        where = point("Mul", [where, scalar(0, f)], f)
    elif transform == "align_corners":
        where = quotient(point("Mul", [where, scalar(axis.size - 1, f)], f), scalar(axis.result - 1, f))
    else:
        before, after = _COORDINATES[transform]
        where = quotient(point("Add", [where, scalar(before, f)], f), scalar(axis.scale, f))
        where = point("Add", [where, scalar(after, f)], f)
    return where


def _linear(x: Prim, axis: _Axis, transform: str) -> Prim:
    """The two neighbours by their distance; beyond the ends both are the end's element."""
    at, shape, f = axis.axis, _with(x.shape, axis), "float32"
    where = _where(x, axis, transform)
    where = point("Min", [point("Max", [where, scalar(0, f)], f), scalar(axis.size - 1, f)], f)
    low = point("Floor", [where], f)
    weight = point("Sub", [where, low], f)
    other = point("Sub", [scalar(1, f), weight], f)
    if x.dtype != f:
        weight, other = (point("Cast", [w], x.dtype, attrs={"to": 11}) for w in (weight, other))
    place = point("Cast", [low], "int64", attrs={"to": 7})
    after_place = point("Add", [place, scalar(1, "int64")], "int64")
    left = point("Mul", [_picked(x, shape, at, axis.size, place), other], x.dtype)
    right = point("Mul", [_picked(x, shape, at, axis.size, after_place), weight], x.dtype)
    return point("Add", [left, right], x.dtype)


# -- cubic ------------------------------------------------------------------------------------------------------------


def _cubic(x: Prim, axis: _Axis, transform: str, a: float, exclude: bool) -> Prim:
    """Four neighbours weighted by the cubic convolution of parameter `a`. Beyond the ends the end's element, or with
    `exclude` none, the other weights scaled to a sum of 1."""
    at, shape, f = axis.axis, _with(x.shape, axis), "float32"
    where = _where(x, axis, transform)
    low = point("Floor", [where], f)
    s = point("Sub", [where, low], f)
    far = [point("Add", [s, scalar(1, f)], f), s, *(point("Sub", [scalar(k, f), s], f) for k in (1, 2))]
    places = [point("Add", [low, scalar(k, f)], f) for k in (-1, 0, 1, 2)]
    weights: list[Prim] = [_convolved(d, a, k in (1, 2)) for k, d in enumerate(far)]
    if exclude:
        for k, place in enumerate(places):
            inside = point("And", [point("GreaterOrEqual", [place, scalar(0, f)], "bool"),
                                   point("LessOrEqual", [place, scalar(axis.size - 1, f)], "bool")], "bool")
            weights[k] = point("Where", [inside, weights[k], scalar(0, f)], f)
        total = point("Sum", weights, f)
        weights = [quotient(w, total) for w in weights]
    result: Prim | None = None
    for place, weight in zip(places, weights, strict=True):
        if x.dtype != f:
            weight = point("Cast", [weight], x.dtype, attrs={"to": 11})
        index = point("Cast", [place], "int64", attrs={"to": 7})
        part = point("Mul", [_picked(x, shape, at, axis.size, index), weight], x.dtype)
        result = part if result is None else point("Add", [result, part], x.dtype)
    assert result is not None
    return result


def _convolved(d: Prim, a: float, near: bool) -> Prim:
    """The weight of a neighbour at distance d: below 1 (`near`) or from 1 to 2."""
    f = "float32"
    factors = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
    value: Prim = scalar(factors[0], f)
    for factor in factors[1:]:
        value = point("Add", [point("Mul", [value, d], f), scalar(factor, f)], f)
    return value
