"""Which rule lowers which operator, by kind."""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.ops.lower import (
    blocks,
    casts,
    extremes,
    gathers,
    generators,
    local,
    pads,
    quantize,
    reductions,
    resize,
    rotary,
    running,
    sampling,
    views,
)
from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.prims import Prim

Rule = Callable[[NodeContext], list[Prim]]

# Only move elements; every input but the first steers, except for those of Concat and computed places. All are of
# ai.onnx.
VIEWS: dict[str, Rule] = {
    "Reshape": views.lower_reshape,
    "Transpose": views.lower_transpose,
    "Expand": views.lower_expand,
    "Slice": views.lower_slice,
    "Split": views.lower_split,
    "Concat": views.lower_concat,
    "Squeeze": views.lower_squeeze,
    "Unsqueeze": views.lower_unsqueeze,
    "Flatten": views.lower_flatten,
    "Gather": gathers.lower_gather,
    "GatherElements": gathers.lower_gather_elements,
    "GatherND": gathers.lower_gather_nd,
    "ReverseSequence": gathers.lower_reverse_sequence,
    "Pad": pads.lower_pad,
    "CenterCropPad": pads.lower_center_crop_pad,
    "Tile": blocks.lower_tile,
    "DepthToSpace": blocks.lower_depth_to_space,
    "SpaceToDepth": blocks.lower_space_to_depth,
}

REDUCTIONS: dict[tuple[str, str], Rule] = {**reductions.REDUCTIONS, **extremes.EXTREMES, **running.RUNNING,
                                        **local.LOCAL}

GENERATORS: dict[tuple[str, str], Rule] = generators.GENERATORS

# Pointwise as a whole, made of entries of the operator table; all inputs are data but for those of STEERED.
COMPOSED: dict[tuple[str, str], Rule] = {
    ("", "Cast"): casts.lower_cast,
    ("", "CastLike"): casts.lower_cast,
    ("", "BitCast"): casts.lower_bitcast,
    ("", "QuantizeLinear"): quantize.lower_quantize,
    ("", "DequantizeLinear"): quantize.lower_quantize,
    ("", "RotaryEmbedding"): rotary.lower_rotary,
    ("", "OneHot"): gathers.lower_one_hot,
    ("", "GridSample"): sampling.lower_grid_sample,
    ("", "AffineGrid"): sampling.lower_affine_grid,
    ("", "Resize"): resize.lower_resize,
    ("", "Upsample"): resize.lower_resize,
}

# Those of COMPOSED of which every input but the first steers.
STEERED: frozenset[str] = frozenset({"Resize", "Upsample"})
