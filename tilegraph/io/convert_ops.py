"""How single nodes move to a newer definition of their op. Source: the ONNX operator changelog.

An adapter is called as `adapter(node, step, apply)`. With `apply` false it only checks, and raises `Refusal` when the
node cannot keep its meaning; with `apply` true it changes the node, and may add nodes around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir


class Refusal(Exception):
    """Why a node cannot be converted."""


_ENLARGES = "tilegraph.enlarges"  # on a Resize that was an Upsample
Adapter = Callable[[ir.Node, int, bool], None]

# Changes of meaning that no rewrite covers.
REFUSED: dict[tuple[str, int], str] = {
    ("Scan", 9): "Scan before opset 9 has a batch axis",
    ("Attention", 24): "Attention changed its outputs and masks in opset 24",
    ("Attention", 25): "Attention changed again in opset 25",
}


def _attr(node: ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _constant(node: ir.Node, array: np.ndarray[Any, Any], hint: str) -> ir.Value:
    """A Constant node before `node`; initializers would not do, functions have none."""
    tensor = ir.tensor(array)
    made = ir.node("Constant", [], attributes={"value": tensor})
    value = made.outputs[0]
    value.name = f"{node.name or node.op_type}_{hint}"
    value.shape = ir.Shape(array.shape)
    value.dtype = tensor.dtype
    node.prepend(made)
    return value


def _constant_value(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or a Constant; None when it is only known at run time."""
    if value is None or value.is_graph_input():
        return None
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        attribute = producer.attributes["value"]
        return None if attribute.is_ref() else attribute.as_tensor()
    return value.const_value if value.is_initializer() else None


def _ints(node: ir.Node, values: Sequence[int], hint: str) -> ir.Value:
    return _constant(node, np.array(list(values), dtype=np.int64), hint)


def _set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _dtype_of(value: ir.Value | None, what: str) -> np.dtype[Any]:
    if value is None or value.dtype is None:
        raise Refusal(f"the element type of its input is unknown, so {what} cannot become an input")
    return value.dtype.numpy()


def _ints_to_input(attribute: str, index: int) -> Adapter:
    """An attribute of integers that became the input at `index`."""

    def adapt(node: ir.Node, step: int, apply: bool) -> None:
        if not apply:
            return
        values = _attr(node, attribute)
        node.attributes.pop(attribute, None)
        # An empty list meant "all", which is now said by leaving the input out.
        if values:
            _set_input(node, index, _ints(node, values, attribute))

    return adapt


def _clip_11(node: ir.Node, step: int, apply: bool) -> None:
    low, high = _attr(node, "min"), _attr(node, "max")
    if low is None and high is None:
        return
    dtype = _dtype_of(node.inputs[0], "its limits")
    if apply:
        for index, (name, limit) in enumerate((("min", low), ("max", high)), 1):
            node.attributes.pop(name, None)
            if limit is not None:
                _set_input(node, index, _constant(node, np.array(limit, dtype=np.float32).astype(dtype), name))


def _dropout_12(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        node.attributes.pop("ratio", None)  # no effect outside training


def _dropout_10(node: ir.Node, step: int, apply: bool) -> None:
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        raise Refusal("its mask output changed its type in opset 10")


def _pad_11(node: ir.Node, step: int, apply: bool) -> None:
    value = _attr(node, "value", 0.0)
    dtype = _dtype_of(node.inputs[0], "the padding value") if value else None
    if apply:
        pads = _attr(node, "pads")
        node.attributes.pop("pads", None)
        node.attributes.pop("value", None)
        _set_input(node, 1, _ints(node, pads, "pads"))
        if dtype is not None:
            _set_input(node, 2, _constant(node, np.array(value, dtype=np.float32).astype(dtype), "value"))


def _slice_10(node: ir.Node, step: int, apply: bool) -> None:
    if not apply:
        return
    starts, ends, axes = (_attr(node, n) for n in ("starts", "ends", "axes"))
    for name in ("starts", "ends", "axes"):
        node.attributes.pop(name, None)
    _set_input(node, 1, _ints(node, starts, "starts"))
    _set_input(node, 2, _ints(node, ends, "ends"))
    _set_input(node, 3, _ints(node, axes if axes is not None else range(len(starts)), "axes"))


def _softmax_13(node: ir.Node, step: int, apply: bool) -> None:
    """Before opset 13 the axes from `axis` on were one flat axis; the default axis was 1."""
    if not apply:
        return
    axis = _attr(node, "axis", 1)
    source = node.inputs[0]
    assert source is not None
    rank = None if source.shape is None else len(source.shape)
    if axis == -1 or (rank is not None and axis in (rank - 1, -1)):
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        return
    name = node.name or node.op_type
    shape = ir.node("Shape", [source])
    flat = ir.node("Flatten", [source], attributes={"axis": axis})
    shape.outputs[0].name, flat.outputs[0].name = f"{name}_shape", f"{name}_flat"
    for made in (shape, flat):
        node.prepend(made)
    node.replace_input_with(0, flat.outputs[0])
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    _append_restoring(node, lambda value: ir.node("Reshape", [value, shape.outputs[0]]))


def _append_restoring(node: ir.Node, make: Callable[[ir.Value], ir.Node]) -> None:
    """Puts `make(output)` after `node`; its result takes over the name, the uses and the graph outputs."""
    output = node.outputs[0]
    graph = node.graph
    assert graph is not None
    after = make(output)
    result = after.outputs[0]
    result.type, result.shape = output.type, output.shape
    name = output.name
    for index, value in enumerate(graph.outputs):
        if value is output:
            graph.outputs[index] = result
    for user, index in list(output.uses()):
        if user is not after:
            user.replace_input_with(index, result)
    output.name = f"{name}_flat"
    output.shape = None
    result.name = name
    node.append(after)


def _split_18(node: ir.Node, step: int, apply: bool) -> None:
    if apply and (len(node.inputs) < 2 or node.inputs[1] is None):
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


def _topk_10(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        k = _attr(node, "k")
        node.attributes.pop("k", None)
        _set_input(node, 1, _ints(node, [k], "k"))


def _upsample_9(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        scales = _attr(node, "scales")
        node.attributes.pop("scales", None)
        _set_input(node, 1, _constant(node, np.array(scales, dtype=np.float32), "scales"))


def _upsample_10(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        node.op_type = "Resize"  # the same inputs; `_resize_11` goes on from here
        node.meta[_ENLARGES] = True


def _resize_11(node: ir.Node, step: int, apply: bool) -> None:
    """Opset 10 sampled at `index / scale`, rounding down when it enlarges; it rounded up when it shrank."""
    scales = node.inputs[1] if len(node.inputs) > 1 else None
    nearest = _attr(node, "mode", "nearest") == "nearest"
    if nearest and not node.meta.get(_ENLARGES):
        known = _constant_value(scales)
        if known is None or (known.numpy() < 1).any():
            raise Refusal("Resize of opset 10 rounds differently when it shrinks, and the scales may shrink")
    if apply:
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "asymmetric")
        if nearest:
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
        node.resize_inputs(3)
        node.replace_input_with(1, _constant(node, np.zeros(0, np.float32), "roi"))  # may be left out since opset 13
        node.replace_input_with(2, scales)


def _batch_norm_9(node: ir.Node, step: int, apply: bool) -> None:
    if _attr(node, "spatial", 1) != 1:
        raise Refusal("BatchNormalization with spatial=0 is gone in opset 9")
    if apply:
        node.attributes.pop("spatial", None)


def _batch_norm_14(node: ir.Node, step: int, apply: bool) -> None:
    if sum(1 for o in node.outputs if o.name and (o.uses() or o.is_graph_output())) > 1:
        raise Refusal("BatchNormalization in training form changed its outputs in opset 14")


def _no_ceil(node: ir.Node, step: int, apply: bool) -> None:
    if _attr(node, "ceil_mode", 0):
        raise Refusal(f"ceil_mode counts windows in the padding differently since opset {step}")


def _roi_align_16(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "output_half_pixel")


def _grid_sample_20(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        mode = _attr(node, "mode", "bilinear")
        node.attributes["mode"] = ir.AttrString("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _dft_20(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        axis = _attr(node, "axis", 1)
        node.attributes.pop("axis", None)
        _set_input(node, 2, _constant(node, np.array(axis, dtype=np.int64), "axis"))


def _group_norm_21(node: ir.Node, step: int, apply: bool) -> None:
    """Scale and bias had one element a group, and have one a channel."""
    source, groups = node.inputs[0], _attr(node, "num_groups")
    channels = source.shape[1] if source is not None and source.shape is not None and len(source.shape) > 1 else None
    if not isinstance(channels, int) or channels % groups:
        raise Refusal("GroupNormalization takes a scale for each channel since opset 21, and the channels are unknown")
    if not apply or channels == groups:
        return
    for index in (1, 2):
        column = ir.node("Reshape", [node.inputs[index], _ints(node, [groups, 1], f"column{index}")])
        wide = ir.node("Expand", [column.outputs[0], _ints(node, [groups, channels // groups], f"wide{index}")])
        flat = ir.node("Reshape", [wide.outputs[0], _ints(node, [channels], f"flat{index}")])
        for kind, made in (("column", column), ("wide", wide), ("flat", flat)):
            made.outputs[0].name = f"{node.name}_{kind}_{index}"
            node.prepend(made)
        node.replace_input_with(index, flat.outputs[0])


def _scatter_11(node: ir.Node, step: int, apply: bool) -> None:
    if apply:
        node.op_type = "ScatterElements"


_REDUCTIONS_18 = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                  "ReduceProd", "ReduceSumSquare")

def _layer_norm_17(node: ir.Node, step: int, apply: bool) -> None:
    """ONNX Runtime's own until then, with a scale of any dtype."""
    if None in (found := {v.dtype for v in node.inputs if v is not None}) or len(found) > 1:
        raise Refusal("its scale has another element type than its input, or one of them is unknown")


ADAPTERS: dict[tuple[str, int], Adapter] = {
    ("BatchNormalization", 9): _batch_norm_9,
    ("BatchNormalization", 14): _batch_norm_14,
    ("Clip", 11): _clip_11,
    ("Dropout", 10): _dropout_10,
    ("Dropout", 12): _dropout_12,
    ("LayerNormalization", 17): _layer_norm_17,
    ("Pad", 11): _pad_11,
    ("Slice", 10): _slice_10,
    ("Softmax", 13): _softmax_13,
    ("LogSoftmax", 13): _softmax_13,
    ("Hardmax", 13): _softmax_13,
    ("Split", 13): _ints_to_input("split", 1),
    ("Split", 18): _split_18,
    ("Squeeze", 13): _ints_to_input("axes", 1),
    ("Unsqueeze", 13): _ints_to_input("axes", 1),
    ("ReduceSum", 13): _ints_to_input("axes", 1),
    **{(op, 18): _ints_to_input("axes", 1) for op in _REDUCTIONS_18},
    ("TopK", 10): _topk_10,
    ("Upsample", 9): _upsample_9,
    ("Upsample", 10): _upsample_10,
    ("Resize", 11): _resize_11,
    ("AveragePool", 19): _no_ceil,
    ("AveragePool", 22): _no_ceil,
    ("MaxPool", 22): _no_ceil,
    ("LpPool", 22): _no_ceil,
    ("RoiAlign", 16): _roi_align_16,
    ("GridSample", 20): _grid_sample_20,
    ("DFT", 20): _dft_20,
    ("GroupNormalization", 21): _group_norm_21,
    ("Scatter", 11): _scatter_11,
}
