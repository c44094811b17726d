"""What `--fast-winograd` computes, in standard ONNX: its rounding errors are those of the algorithm, not of a kernel.

The body of a composite of kind ConvFast is the exact Conv. `as_computed` puts Winograd's F(4x4, 3x3) in its place, in
float32: the source's transform is a Conv of each channel by itself with stride 4, the products are a 1x1 Conv with a
group for each of the 36 points, and the transform back is a ConvTranspose with stride 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.spec.winograd import RESULT, SOURCE, WEIGHTS

Array = np.ndarray[Any, Any]

KIND = "ConvFast"
_M = 4
_POINTS = (_M + 2) ** 2


def as_computed(model: ir.Model) -> None:
    """Rewrites the bodies of all composites of kind ConvFast in `model`, in place."""
    for function in model.functions.values():
        if function.name.partition("_")[0] == KIND:
            for node in [n for n in function if n.op_type == "Conv"]:
                _replace(function, node)


def _replace(function: ir.Function, conv: ir.Node) -> None:
    """`conv`: a 3x3 window of stride 1 and one group, [N, C, H, W] to [N, K, H', W']."""
    source, weights = conv.inputs[0], conv.inputs[1]
    assert source is not None
    assert weights is not None
    assert weights.shape is not None
    filters, channels = weights.shape[0], weights.shape[1]
    assert isinstance(filters, int)
    assert isinstance(channels, int)
    top, left, bottom, right = _pads(conv)
    write = _Writer(conv)
    edge = range(_POINTS)

    # Weights [K, C, 3, 3] -> [36 K, C, 1, 1], by point, rounded once.
    wide = write("Cast", [weights], to=ir.DataType.DOUBLE)
    g = np.array(WEIGHTS[_M])
    flat = write("MatMul", [write("Reshape", [wide, write.ints(-1, 9)]), write.constant(np.kron(g, g).T.copy())])
    rounded = write("Reshape", [write("Cast", [flat], to=ir.DataType.FLOAT), write.ints(filters, channels, _POINTS)])
    points = write("Reshape", [write("Transpose", [rounded], perm=[2, 0, 1]),
                               write.ints(_POINTS * filters, channels, 1, 1)])

    # The last tile may hang over by three results.
    padded = write("Pad", [source, write.ints(0, 0, top, left, 0, 0, bottom + _M - 1, right + _M - 1)])
    b = np.array(SOURCE[_M])
    spread = np.kron(b, b).reshape(_POINTS, 1, _M + 2, _M + 2)
    tiles = write("Conv", [padded, write.floats(np.tile(spread, (channels, 1, 1, 1)))], group=channels,
                  strides=[_M, _M])
    by_point = write("Gather", [tiles, write.ints(*(c * _POINTS + p for p in edge for c in range(channels)))], axis=1)
    sums = write("Conv", [by_point, points], group=_POINTS)
    by_filter = write("Gather", [sums, write.ints(*(p * filters + k for k in range(filters) for p in edge))], axis=1)
    a = np.array(RESULT[_M])
    back = np.stack([np.outer(a[:, i], a[:, j]) for i in range(_M + 2) for j in range(_M + 2)])[:, None]
    whole = write("ConvTranspose", [by_filter, write.floats(np.tile(back, (filters, 1, 1, 1)))], group=filters,
                  strides=[_M, _M])
    size = write("Slice", [write("Shape", [source]), write.ints(2), write.ints(4), write.ints(0)])
    ends = write("Add", [size, write.ints(top + bottom - 2, left + right - 2)])
    result = write("Slice", [whole, write.ints(0, 0), ends, write.ints(2, 3)])
    if len(conv.inputs) > 2 and conv.inputs[2] is not None:
        result = write("Add", [result, write("Reshape", [conv.inputs[2], write.ints(filters, 1, 1)])])

    made = conv.outputs[0]
    result.shape, result.type = made.shape, made.type
    function.insert_before(conv, write.nodes)
    ir.convenience.replace_all_uses_with(made, result)
    function.outputs[:] = [result if v is made else v for v in function.outputs]
    function.remove(conv, safe=True)


def _pads(conv: ir.Node) -> tuple[int, int, int, int]:
    """(top, left, bottom, right)"""
    automatic = conv.attributes.get_string("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return 1, 1, 1, 1
    none = (0, 0, 0, 0)
    top, left, bottom, right = none if automatic == "VALID" else conv.attributes.get_ints("pads", none)
    return top, left, bottom, right


class _Writer:
    """Nodes in order, named after `conv`."""

    def __init__(self, conv: ir.Node) -> None:
        self.nodes: list[ir.Node] = []
        self._name = f"{conv.name or conv.outputs[0].name}_winograd"

    def __call__(self, op: str, inputs: list[ir.Value], **attributes: Any) -> ir.Value:
        attrs = [ir.AttrInt64(k, int(v)) if isinstance(v, int) else ir.AttrInt64s(k, v)
                 for k, v in attributes.items()]
        return self._add(ir.Node("", op, inputs, attrs))

    def constant(self, array: Array) -> ir.Value:
        return self._add(ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))]))

    def floats(self, array: Array) -> ir.Value:
        return self.constant(array.astype(np.float32))

    def ints(self, *numbers: int) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    def _add(self, node: ir.Node) -> ir.Value:
        node.name = node.outputs[0].name = f"{self._name}{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]
