"""Which Resize nodes repeat every element a whole number of times."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline

# coordinate_transformation_mode -> the roundings with which result i comes from element i // factor. For half_pixel,
# (i + .5) / f - .5 is never further from i // f than (f - 1) / 2f < 1/2, so it rounds there; rounding down does not.
_REPEATS = {
    "asymmetric": ("floor",),
    "half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
    "half_pixel_symmetric": ("round_prefer_floor", "round_prefer_ceil"),
}


def factors(node: ir.Node) -> list[int]:
    """The factor of each spatial dim of a nearest Resize [N, C, *spatial]; `Decline` for every other Resize."""
    text = {name: node.attributes[name].as_string() for name in
            ("mode", "coordinate_transformation_mode", "nearest_mode") if name in node.attributes}
    mode, transform = text.get("mode", "nearest"), text.get("coordinate_transformation_mode", "half_pixel")
    rounding = text.get("nearest_mode", "round_prefer_floor")
    if mode != "nearest":
        raise Decline(f"Resize of mode {mode} has no blocked form")
    if rounding not in _REPEATS.get(transform, ()):
        raise Decline(f"Resize with {transform} and {rounding} does not repeat elements evenly")
    policy = node.attributes.get("keep_aspect_ratio_policy")
    if "axes" in node.attributes or (policy is not None and policy.as_string() != "stretch"):
        raise Decline("Resize of chosen axes or of kept proportions")
    found = _ratios(node)
    if any(f != int(f) or f < 1 for f in found) or found[0] != 1 or found[1] != 1:
        raise Decline(f"Resize by {found} is not by whole factors of the spatial dims")
    return [int(f) for f in found[2:]]


def _ratios(node: ir.Node) -> list[float]:
    source, out = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or out.shape is None:
        raise Decline("Resize of an unknown shape")
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if scales is not None:
        array = constant_of(scales)
        if array is None:
            raise Decline("Resize by computed scales")
        if array.size:
            return [float(v) for v in np.asarray(array).reshape(-1)]
    ratios = []
    for before, after in zip(source.shape, out.shape, strict=True):
        if before == after:
            ratios.append(1.0)
        elif isinstance(before, int) and isinstance(after, int) and before:
            ratios.append(after / before)
        else:
            raise Decline("Resize to a computed size")
    return ratios
