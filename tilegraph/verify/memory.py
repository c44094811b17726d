"""How much memory a run takes: dense attention of 8192 tokens keeps 7 GB alive, 14 in double.

Such runs get a process each, which gives everything back when it ends (ONNX Runtime keeps what a closed session had),
and which may not take more than was free when it started, see `tilegraph.system`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

HEAVY_BYTES = 256 << 20  # alive at once: from here on a run gets a process of its own


def live_bytes(model: ir.Model, feeds: Mapping[str, Any]) -> int:
    """Bytes of the most values that are alive at once when the main graph of `model` runs node by node on `feeds`.

    Values whose shape cannot be inferred from those of `feeds` count nothing, nor do weights. `model` is left alone.
    """
    copy = model.clone()
    for node in copy.graph:
        for value in node.outputs:
            value.shape = None
    for value in copy.graph.inputs:
        shape = getattr(feeds.get(value.name or ""), "shape", None)
        if shape is not None:
            value.shape = ir.Shape(shape)
    try:
        copy = ShapeInferencePass()(copy).model
    except Exception:  # it is an estimate: a model that inference fails on counts as a small one
        return 0
    nodes = list(copy.graph)
    last = {v: k for k, node in enumerate(nodes) for v in node.inputs if v is not None}
    last |= dict.fromkeys(copy.graph.outputs, len(nodes))
    ends: list[int] = [0] * (len(nodes) + 1)
    alive = most = 0
    for k, node in enumerate(nodes):
        for value in node.outputs:
            size = _bytes(value)
            alive += size
            ends[max(last.get(value, k), k)] += size
        most = max(most, alive)
        alive -= ends[k]
    return most


def _bytes(value: ir.Value) -> int:
    if value.shape is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 0
    extents = [d for d in value.shape if isinstance(d, int)]
    assert value.dtype is not None
    return math.ceil(math.prod(extents) * value.dtype.itemsize) if len(extents) == len(value.shape) else 0
