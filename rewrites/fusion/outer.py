"""What ONNX Runtime's operators cost beyond moving the bytes, where its fast paths do not apply.

It has fast paths for sums, means and extrema whose axes form at most three runs of reduced and kept ones, but for none
that begin with kept extents of 1. Softmax over an axis that is not the last one transposes there and back. The figures,
in ns for each element of the operand, are the lower ones of what was measured on a Zen 5 core over a dozen shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.lower.resize import mode_of

_FAST = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})
_NO_FAST_PATH = 0.5  # for (1, N, M) over N: 0.70 to 0.73
_MANY_RUNS = 0.2
_EXTREMA = 0.2  # (N, M) over N: 0.28
_OTHERS = 0.2  # norms and the like over outer axes: 0.21 to 0.73
_SOFTMAX = 0.35  # 0.37 to 6.4
_PLACE = 0.35  # ArgMax, ArgMin: 0.43 to 1.0
_CUBIC = 100.0  # for each element of the result: 147
_ONE_HOT = 0.8  # for each element of the result: 1.1
_BLOCK = 0.6  # DepthToSpace, SpaceToDepth: 0.9
_GRID_POINT = 30.0  # GridSample: 39 for each place of the grid, whatever the channels


def slow_us(node: ir.Node, elements: Callable[[ir.Value], int]) -> float:
    """µs that `node` costs ONNX Runtime in addition; 0 where nothing says so. `elements`: how many a value has."""
    if node.domain in ("", "ai.onnx"):
        if node.op_type == "Resize" and mode_of(node.attributes) == "cubic":
            return _CUBIC * elements(node.outputs[0]) / 1e3
        if node.op_type in ("DepthToSpace", "SpaceToDepth"):
            return _BLOCK * elements(node.outputs[0]) / 1e3
        if node.op_type == "OneHot":
            return _ONE_HOT * elements(node.outputs[0]) / 1e3
        if node.op_type == "GridSample" and node.inputs[1] is not None:
            return _GRID_POINT * elements(node.inputs[1]) / 2e3
    slow = slow_ns(node)
    source = node.inputs[0] if slow else None
    return 0.0 if source is None else slow * elements(source) / 1e3


def slow_ns(node: ir.Node) -> float:
    """ns that each element of the first operand costs ONNX Runtime in addition; 0 where nothing says so."""
    source = node.inputs[0] if node.inputs else None
    if node.domain not in ("", "ai.onnx") or source is None or source.shape is None:
        return 0.0
    if node.op_type in ("ArgMax", "ArgMin"):
        return _PLACE
    rank = len(source.shape)
    if node.op_type in ("Softmax", "LogSoftmax"):
        version = node.version if node.version is not None else 13
        axis = node.attributes["axis"].as_int() % rank if "axis" in node.attributes and rank else rank - 1
        return _SOFTMAX if version >= 13 and _larger(source.shape, range(axis + 1, rank)) else 0.0
    axes = _axes(node, rank) if node.op_type.startswith("Reduce") else None
    if not axes or not _larger(source.shape, [k for k in range(min(axes), rank) if k not in axes]):
        return 0.0
    if node.op_type not in _FAST:
        return _OTHERS
    if min(axes) > 0 and not _larger(source.shape, range(min(axes))):
        return _NO_FAST_PATH
    runs = len([key for key, _ in groupby(k in axes for k in range(rank))])
    if runs > 3:
        return _MANY_RUNS
    return _EXTREMA if runs == 2 and node.op_type in ("ReduceMax", "ReduceMin") else 0.0


def _axes(node: ir.Node, rank: int) -> set[int] | None:
    if "axes" in node.attributes:
        return {a % rank for a in node.attributes["axes"].as_ints()}
    value = node.inputs[1] if len(node.inputs) > 1 else None
    array = None if value is None else constant_of(value)
    return None if array is None else {int(a) % rank for a in array.reshape(-1)}


def _larger(shape: ir.Shape, axes: range | list[int]) -> bool:
    """Whether any of these extents is not 1."""
    return any(shape[k] != 1 for k in axes)
