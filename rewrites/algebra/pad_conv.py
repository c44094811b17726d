"""Zeros that a Pad writes around an image become the padding of the convolution that reads it.

    Conv(Pad(x; p), W; pads q)  =  Conv(x, W; pads p + q)

is exact: padding means zeros. ONNX Runtime does the same where both stay with it, but our blocked kernels would leave
their layout for the Pad. TensorFlow's "SAME" padding is exported so before every strided convolution, and MobileNet of
transformers has one before every depthwise convolution.

Handles: Pad of mode constant with zeros, its amounts as an input or an attribute, with `axes` or without, of one or
more spatial axes of a Conv's input (any rank, groups, strides, dilations); several readers, of which each Conv takes
its own padding, and the Pad goes when nothing else reads it.

Refused: amounts or a value that are not constant; negative amounts, which crop; channels or batch; automatic padding
other than VALID, which asks for the padded size.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import constant_of, is_op, is_used, remove


class PadConv(Pass):
    name = "pad-conv"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for pad in reversed([n for n in graph if is_op(n, "Pad")]):  # the last of several in a row first
                readers = [(user, index) for user, index in pad.outputs[0].uses() if is_op(user, "Conv") and index == 0]
                for conv, _ in readers:
                    reason = _moved(pad, conv)
                    if reason:
                        context.diagnostics.refused(self.name, pad.name or "", f"stays before {conv.name}: {reason}",
                                                    op="Pad")
                        continue
                    context.diagnostics.took(self.name, conv.name or "", f"pads as {pad.name} did", op="Conv")
                    modified = True
                if readers and not is_used(pad.outputs[0]):
                    remove(pad)
        return PassResult(modified)


def _moved(pad: ir.Node, conv: ir.Node) -> str:
    """Gives `conv` the padding of `pad`, or says why not."""
    source = pad.inputs[0]
    rank = None if source is None or source.shape is None else len(source.shape)
    if source is None or rank is None or rank < 3:
        return "the rank of its operand is unknown"
    mode = pad.attributes.get("mode")
    if mode is not None and (mode.is_ref() or mode.as_string() != "constant"):
        return "it repeats elements"
    if not _is_zero(pad):
        return "what it writes is not known to be 0"
    amounts = _amounts(pad, rank)
    if amounts is None:
        return "its amounts are not constant"
    if any(n < 0 for n in amounts):
        return "it crops"
    if any(amounts[axis] or amounts[rank + axis] for axis in (0, 1)):
        return "it adds channels or batches"
    automatic = conv.attributes.get("auto_pad")
    if automatic is not None and (automatic.is_ref() or automatic.as_string() not in ("NOTSET", "VALID")):
        return "the convolution's own padding depends on the padded size"
    spatial = [*amounts[2:rank], *amounts[rank + 2:]]
    given = conv.attributes.get("pads")
    if given is not None and given.is_ref():
        return "the convolution's padding is not constant"
    valid = automatic is not None and automatic.as_string() == "VALID"
    own = [0] * len(spatial) if given is None or valid else list(given.as_ints())
    if len(own) != len(spatial):
        return f"the convolution has {len(own)} pads for {rank - 2} axes"
    conv.attributes.pop("auto_pad", None)
    conv.attributes.add(ir.AttrInt64s("pads", [a + b for a, b in zip(spatial, own, strict=True)]))
    conv.replace_input_with(0, source)
    return ""


def _is_zero(pad: ir.Node) -> bool:
    if "value" in pad.attributes:  # before opset 11
        value = pad.attributes["value"]
        return not value.is_ref() and value.as_float() == 0
    if len(pad.inputs) < 3 or pad.inputs[2] is None:
        return True
    tensor = constant_of(pad.inputs[2])
    return tensor is not None and not np.any(tensor.numpy())


def _amounts(pad: ir.Node, rank: int) -> list[int] | None:
    """Elements before each axis, then those behind each axis."""
    if "pads" in pad.attributes:  # before opset 11
        given = pad.attributes["pads"]
        return None if given.is_ref() or len(given.as_ints()) != 2 * rank else list(given.as_ints())
    found = constant_of(pad.inputs[1]) if len(pad.inputs) > 1 else None
    if found is None:
        return None
    pads = [int(n) for n in found.numpy().reshape(-1)]
    axes = list(range(rank))
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        named = constant_of(pad.inputs[3])
        if named is None:
            return None
        axes = [int(n) % rank for n in named.numpy().reshape(-1)]
    if len(pads) != 2 * len(axes):
        return None
    amounts = [0] * (2 * rank)
    for k, axis in enumerate(axes):
        amounts[axis], amounts[rank + axis] = pads[k], pads[len(axes) + k]
    return amounts
