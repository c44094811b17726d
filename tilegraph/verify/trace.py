"""Where an output comes from, as far as it changes how it must be compared.

An index output (ArgMax, ArgMin, TopK, NonMaxSuppression) may pick another of two equal values; an 8-bit output of a
quantised graph may round to the neighbour. Both are found by walking back from the output through nodes that only
move or convert values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

_ORDER_KEEPING = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_MOVING = _ORDER_KEEPING | {"Transpose", "Slice", "Gather", "Concat", "Split", "MaxPool", "Relu", "Clip", "Pad",
                            "Expand", "Tile", "Max", "Min", "Where", "DepthToSpace", "SpaceToDepth"}
_QUANTISING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm",
                         "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearAveragePool", "QLinearConcat",
                         "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearWhere"})
_QUANTISED_ARITHMETIC = _QUANTISING | {"MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul",
                                       "MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM"}
_RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
                     "Bernoulli", "BitmaskDropout"})
_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class IndexOrigin:
    """An index output: `data` is the value it indexes, `axis` the indexed axis, `kind` arg, topk or nms; `node_value`
    the index value itself; `permutations` are the Transposes between it and the output, nearest the output first."""

    kind: str
    data: str
    node_value: str
    axis: int
    keepdims: bool
    permutations: tuple[tuple[int, ...], ...]

    def undo(self, array: Array, data: Array) -> Array:
        """The output's array in the layout of the index op, as int64, with the indexed axis kept for arg ops."""
        for perm in self.permutations:
            array = array.transpose(np.argsort(perm))
        array = array.astype(np.int64)
        axis = self.axis % data.ndim if data.ndim else 0
        if self.kind == "arg":
            return array.reshape(tuple(1 if i == axis else d for i, d in enumerate(data.shape)))
        if self.kind == "topk":
            return array.reshape(tuple(-1 if i == axis else d for i, d in enumerate(data.shape)))
        return array.reshape(-1, 3)


def index_origin(output: ir.Value) -> IndexOrigin | None:
    """None if the output is no index, or is moved in a way that cannot be undone from its shape."""
    value: ir.Value = output
    permutations: list[tuple[int, ...]] = []
    reshaped = False
    while (node := value.producer()) is not None:
        if node.op_type in _ORDER_KEEPING and node.inputs[0] is not None:
            reshaped |= node.op_type not in ("Identity", "Cast")
            value = node.inputs[0]
        elif node.op_type == "Transpose" and not reshaped and node.inputs[0] is not None and "perm" in node.attributes:
            permutations.append(tuple(node.attributes["perm"].as_ints()))
            value = node.inputs[0]
        else:
            break
    if node is None or not node.inputs or node.inputs[0] is None or value.name is None:
        return None

    def number(name: str, default: int) -> int:
        attr = node.attributes.get(name)
        return attr.as_int() if attr is not None else default

    if node.op_type in ("ArgMax", "ArgMin"):
        return IndexOrigin("arg", node.inputs[0].name or "", value.name, number("axis", 0),
                           number("keepdims", 1) == 1, tuple(permutations))
    if node.op_type == "TopK" and value is node.outputs[1]:
        return IndexOrigin("topk", node.inputs[0].name or "", value.name, number("axis", -1), True,
                           tuple(permutations))
    if node.op_type == "NonMaxSuppression" and node.inputs[1] is not None:
        return IndexOrigin("nms", node.inputs[1].name or "", value.name, 2, True, tuple(permutations))
    return None


def is_quantised(output: ir.Value) -> bool:
    """Whether an integer output holds quantised values: it is what a quantising op wrote, moved or clipped."""
    queue, seen = [output], {id(output)}
    while queue:
        node = queue.pop().producer()
        if node is None:
            continue
        if node.op_type in _QUANTISING:
            return True
        if node.op_type in _MOVING:
            for value in node.inputs:
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    queue.append(value)
    return False


def precision(output: ir.Value) -> np.dtype[Any] | None:
    """The coarsest float dtype that anything on the way to a float `output` was rounded to; None if nothing computes.

    Nodes that only move values, and casts to a wider dtype, round nothing. Values on the way that are no floats end it:
    what a comparison or an index makes of a rounding error is no rounding error.
    """
    found: np.dtype[Any] | None = None
    queue, seen = [output], {id(output)}
    while queue:
        value = queue.pop()
        node = value.producer()
        if node is None or node.op_type == "Constant":
            continue
        sources = [v for v in node.inputs if v is not None and _float_of(v) is not None]
        here = np.dtype(np.float32) if _stashes_float32(node) else _float_of(value)
        if node.op_type in ("Cast", "CastLike"):
            sources = sources[:1]
            before = _float_of(sources[0]) if sources else None
            rounds = here is not None and before is not None and _eps(here) > _eps(before)
        else:
            rounds = node.op_type not in _MOVING
        if rounds and here is not None and (found is None or _eps(here) > _eps(found)):
            found = here
        for source in sources:
            if id(source) not in seen:
                seen.add(id(source))
                queue.append(source)
    return found


def _stashes_float32(node: ir.Node) -> bool:
    """Whether float64 values are rounded to float32 inside: stash_type, which the engines heed here only."""
    stash = node.attributes.get("stash_type")
    return node.op_type == "GroupNormalization" and node.domain == "" and node.outputs[0].dtype == ir.DataType.DOUBLE \
        and node.graph is not None and (node.graph.opset_imports.get("") or 0) >= 21 \
        and (stash is None or stash.as_int() == ir.DataType.FLOAT)


def _float_of(value: ir.Value) -> np.dtype[Any] | None:
    """The numpy dtype of a float16, bfloat16, float32 or float64 value."""
    return np.dtype(value.dtype.numpy()) if value.dtype is not None and value.dtype in _FLOATS else None


def _eps(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def has_quantised_arithmetic(model: ir.Model) -> bool:
    """Whether somewhere in the model a rounding to integers can amplify a last-bit difference to a step."""
    return any(n.op_type in _QUANTISED_ARITHMETIC or _rounds_rows(n) for n in model.graph.all_nodes())


def _rounds_rows(node: ir.Node) -> bool:
    """MatMulNBits at accuracy level 4 rounds what it multiplies to 8 bits by block."""
    level = node.attributes.get("accuracy_level")
    return node.op_type == "MatMulNBits" and level is not None and level.as_int() == 4


def random_ops(model: ir.Model) -> list[str]:
    """Names of op types that draw random numbers (a training Dropout included)."""
    found = {n.op_type for n in model.graph.all_nodes() if n.op_type in _RANDOM}
    found |= {"Dropout" for n in model.graph.all_nodes()
              if n.op_type == "Dropout" and len(n.inputs) > 2 and n.inputs[2] is not None}
    return sorted(found)


def ties(origin: IndexOrigin, wanted: Array, given: Array, data: Array, bound: float) -> str | None:
    """None if both index arrays (in the output's layout) select values of `data` within `bound` of each other, else
    why not."""
    if origin.kind == "nms":
        return _nms_ties(origin.undo(wanted, data), origin.undo(given, data), data, bound)
    try:
        left, right = origin.undo(wanted, data), origin.undo(given, data)
    except ValueError:
        return "the shape is not that of an index of its data"
    axis = origin.axis % data.ndim if data.ndim else 0
    extent = data.shape[axis] if data.ndim else 1
    if right.size and (right.min() < 0 or right.max() >= extent):
        return f"an index is outside [0, {extent})"
    if origin.kind == "topk":
        ordered = np.sort(right, axis=axis)
        if ordered.shape[axis] > 1 and bool(np.any(np.diff(ordered, axis=axis) == 0)):
            return "an index occurs twice"
    chosen = np.take_along_axis(data, right, axis).astype(np.float64)
    expected = np.take_along_axis(data, left, axis).astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(chosen - expected)
    equal = (chosen == expected) | (np.isnan(chosen) & np.isnan(expected))
    worst = float(np.max(np.where(equal, 0.0, apart), initial=0.0))
    if not worst <= bound:
        return f"it selects values that differ by {worst:.3g}, more than {bound:.3g}"
    return None


def _nms_ties(left: Array, right: Array, scores: Array, bound: float) -> str | None:
    if left.shape != right.shape:
        return f"{len(right)} boxes are selected instead of {len(left)}"
    if not np.array_equal(left[:, :2], right[:, :2]):
        return "boxes of another batch entry or class are selected"
    if len(np.unique(right, axis=0)) != len(right):
        return "a box is selected twice"
    if right.size and (right.min() < 0 or right[:, 2].max() >= scores.shape[2]):
        return "a box index is out of range"
    a, b = (scores[x[:, 0], x[:, 1], x[:, 2]].astype(np.float64) for x in (left, right))
    worst = float(np.max(np.abs(a - b), initial=0.0))
    return None if worst <= bound else f"it selects scores that differ by {worst:.3g}, more than {bound:.3g}"
