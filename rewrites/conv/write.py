"""One node [N, C, *spatial] -> the nodes that compute the same on values in blocks of channels.

A blocked value is [N, ceil(C/L), *spatial, L], see `ops.conv.form`. Lanes past C hold zeros or whatever finite numbers
came of them; the views in front of a convolution leave them out again, so they reach no channel that exists.

Windows (convolutions and pooling) stay what they are between views out of and into that layout, and codegen reads the
views as addresses. Pointwise nodes and splits of channels compute on the blocked tensors themselves; joins are in
`rewrites.conv.join`. `Decline` says why a node cannot be written so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from tilegraph.ops.conv.form import block, block_constant, blocked_shape, unblock
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.normalise.edit import groups_of

Array = np.ndarray[Any, Any]

CONVS = frozenset({"Conv", "ConvTranspose"})
POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
MIN_OPSET = 11  # Pad and Slice by inputs
_AXES_AS_INPUTS = 13  # of Unsqueeze and Split
PLAIN_CHANNELS = 4  # a convolution of so few channels reads plain values: filling up blocks would cost more

# Operators whose result is finite for every finite operand of ordinary size: safe on lanes that hold nothing.
_FINITE = frozenset({
    "Abs", "Add", "Ceil", "Celu", "Clip", "Elu", "Erf", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max",
    "Min", "Mish", "Mul", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sub", "Sum",
    "Swish", "Tanh", "ThresholdedRelu"})


class Source(Protocol):
    """Where a writer takes operands from."""

    def blocked(self, value: ir.Value) -> ir.Value:
        """`value` in blocked layout."""

    def plain(self, value: ir.Value) -> ir.Value:
        """`value` as it is."""

    def constant(self, name: str, array: Array) -> ir.Value:
        """A new constant."""


class BlockedWriter:
    """Collects `nodes`, in order, and `blocked`: value -> its blocked form, for what they make."""

    def __init__(self, source: Source, lanes: int, opset: int) -> None:
        self.source = source
        self.lanes = lanes
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.blocked: dict[ir.Value, ir.Value] = {}

    def write(self, node: ir.Node) -> None:
        """Adds the blocked form of `node`; `Decline` if it has none."""
        self.check(node)
        if node.op_type in CONVS or node.op_type in POOLS:
            self._window(node)
        elif node.op_type == "BatchNormalization":
            self._batch_norm(node)
        elif node.op_type == "Split":
            self._split(node)
        elif node.op_type == "Slice":
            self._slice(node)
        elif kind_of(node) == "pointwise":
            self._pointwise(node)
        else:
            raise Decline(f"{node.op_type} has no blocked form")

    def check(self, node: ir.Node) -> None:
        """`Decline` for what no operator may be."""
        if self.opset < MIN_OPSET:
            raise Decline(f"opset {self.opset} has attributes where the views of blocked values have inputs, "
                          f"which opset {MIN_OPSET} brought")
        if domain_of(node) != "":
            raise Decline(f"{node.op_type} of domain {node.domain} has no blocked form")
        for output in node.outputs:
            if output.dtype != ir.DataType.FLOAT:
                raise Decline(f"{output.name} is {output.dtype}: blocked values are float32")

    def read(self, value: ir.Value) -> ir.Value:
        """The blocked form of an operand."""
        return self.blocked[value] if value in self.blocked else self.source.blocked(value)

    def inside(self, name: str, array: Array) -> ir.Value:
        """Adds a constant that is part of the body, so that its kernel knows it."""
        tensor = ir.tensor(array)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=name)
        out = node.outputs[0]
        out.name, out.shape, out.type = name, ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        self.nodes.append(node)
        return out

    # -- windows ------------------------------------------------------------------------------------------------------

    def write_plain(self, nodes: Sequence[ir.Node]) -> ir.Value:
        """Adds a window, behind the scales of its source, with a plain result and what follows it; the result."""
        first = next(k for k, n in enumerate(nodes) if n.op_type in CONVS)
        for node in nodes[:first]:
            self.write(node)
        window = nodes[first]
        kept: dict[ir.Value, ir.Value] = {}
        self.check(window)
        operands, _ = self._window_operands(window)
        for node in nodes[first:]:
            if node is not window:
                operands = [None if v is None else kept.get(v) or self.source.plain(v) for v in node.inputs]
            out = node.outputs[0]
            kept[out] = self.add(node, node.op_type, operands, ir.Shape(_shape(out)), _attributes(node), "_plain")
        return kept[nodes[-1].outputs[0]]

    def _window(self, node: ir.Node) -> None:
        out = node.outputs[0]
        operands, kept = self._window_operands(node)
        shape = ir.Shape([d if k != 1 or node.op_type not in POOLS else kept for k, d in enumerate(_shape(out))])
        made = self.add(node, node.op_type, operands, shape, _attributes(node), "_blocked")
        views = block(made, self.lanes, f"{node.name}_out")
        self.nodes += views.nodes
        self.blocked[out] = views.value

    def _window_operands(self, node: ir.Node) -> tuple[list[ir.Value | None], int]:
        """The operands of a window, its source brought out of the blocks, and how many channels of that there are."""
        first = _present(node, 0)
        channels = channels_of(first)
        pooled = node.op_type in POOLS
        if not pooled and constant_of(_present(node, 1)) is None:
            raise Decline(f"the weights {_present(node, 1).name} are not constant")
        bias = node.inputs[2] if not pooled and len(node.inputs) > 2 else None
        if bias is not None and channels_of(node.outputs[0]) % self.lanes and constant_of(bias) is None:
            raise Decline(f"the bias {bias.name} is not constant, and its {channels_of(node.outputs[0])} filters fill "
                          f"no whole blocks of {self.lanes}")
        if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
            raise Decline("MaxPool whose positions are used")
        if not reads_plain(node):
            # Pooling does the same to every channel, so lanes that hold nothing may take part.
            kept = -(-channels // self.lanes) * self.lanes if pooled else channels
            views = unblock(self.read(first), kept, f"{node.name}_in")
            self.nodes += views.nodes
            operand = views.value
        else:
            operand, kept = self.source.plain(first), channels
        return [operand, *(None if v is None else self.source.plain(v) for v in node.inputs[1:])], kept

    # -- on the blocked tensors themselves ----------------------------------------------------------------------------

    def _pointwise(self, node: ir.Node) -> None:
        out = node.outputs[0]
        if len(node.outputs) != 1:
            raise Decline(f"{node.op_type} has {len(node.outputs)} results")
        channels = channels_of(out)
        if channels % self.lanes and node.op_type not in _FINITE:
            raise Decline(f"{node.op_type} of {channels} channels, which fill no whole blocks of {self.lanes}, could "
                          "make infinities of lanes that hold nothing")
        operands = [None if v is None else self._operand(node, v, channels, len(_shape(out))) for v in node.inputs]
        self._result(out, node, node.op_type, operands, _attributes(node))

    def _operand(self, node: ir.Node, value: ir.Value, channels: int, rank: int) -> ir.Value:
        array = constant_of(value)
        if array is not None and array.size == 1:
            return self.source.constant(f"{value.name}_one", array.reshape(())) if array.ndim > rank \
                else self.source.plain(value)
        if array is not None:
            if array.ndim < rank - 1 or array.size != channels or array.shape[1 - rank] != channels:
                raise Decline(f"the constant {value.name} {list(array.shape)} is neither one number nor one a channel")
            if channels % self.lanes and node.op_type not in ("Add", "Sub", "Mul"):
                raise Decline(f"{node.op_type} with one number a channel, and lanes that hold nothing")
            return self._by_channel(value.name or "constant", array, rank - 2)
        if value.dtype != ir.DataType.FLOAT or len(_shape(value)) != rank or channels_of(value) != channels:
            raise Decline(f"{value.name} {value.shape} is broadcast to {channels} channels, or not float32")
        return self.read(value)

    def _by_channel(self, name: str, array: Array, spatial: int) -> ir.Value:
        return self.source.constant(f"{name}_blocked", block_constant(array, self.lanes, spatial))

    def _batch_norm(self, node: ir.Node) -> None:
        """x * factor + shift, computed in float64 from the constants."""
        first, out = _present(node, 0), node.outputs[0]
        training = node.attributes.get("training_mode")
        if (training is not None and training.as_int()) or any(o.uses() for o in node.outputs[1:]):
            raise Decline("BatchNormalization in training mode")
        constants = [constant_of(_present(node, i)) for i in range(1, 5)]
        if any(c is None for c in constants):
            raise Decline("BatchNormalization whose parameters are computed")
        scale, bias, mean, variance = (np.asarray(c, np.float64) for c in constants)
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        factor = scale / np.sqrt(variance + epsilon)
        shift = bias - mean * factor
        name = node.name or "norm"
        by, plus = (self._by_channel(f"{name}_{what}", a.astype(np.float32), len(_shape(out)) - 2)
                    for what, a in (("factor", factor), ("shift", shift)))
        shape = blocked_shape(_known(out), self.lanes)
        scaled = self.add(node, "Mul", [self.read(first), by], shape, [], "_scaled")
        self.blocked[out] = self.add(node, "Add", [scaled, plus], shape, [], "_blocked")

    def _split(self, node: ir.Node) -> None:
        first = _present(node, 0)
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if axis % len(_shape(first)) != 1:
            raise Decline("Split of another axis than the channels")
        widths = [channels_of(o) for o in node.outputs]
        self._whole(widths)
        sizes = [-(-w // self.lanes) for w in widths]
        more, attributes = self._numbers(node, "split", sizes)
        copy = ir.Node("", "Split", [self.read(first), *more], [ir.AttrInt64("axis", 1), *attributes],
                       num_outputs=len(node.outputs), name=f"{node.name}_blocked")
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name, new.type, new.shape = f"{old.name}_blocked", old.type, blocked_shape(_known(old), self.lanes)
            self.blocked[old] = new
        self.nodes.append(copy)

    def _slice(self, node: ir.Node) -> None:
        """Of neighbouring channels that are whole blocks; up to the last one."""
        first, out = _present(node, 0), node.outputs[0]
        given = [constant_of(_present(node, k)) for k in (1, 2, 3)]
        if any(a is None or a.size != 1 for a in given) or len(node.inputs) > 4:
            raise Decline("Slice of several axes, with steps or by computed limits")
        start, _, axis = (int(a.reshape(-1)[0]) for a in given if a is not None)
        channels, kept = channels_of(first), channels_of(out)
        if axis % len(_shape(first)) != 1:
            raise Decline("Slice of another axis than the channels")
        start = max(start + channels, 0) if start < 0 else min(start, channels)
        if start % self.lanes or (kept % self.lanes and start + kept != channels):
            raise Decline(f"channels {start} to {start + kept} are no whole blocks of {self.lanes}")
        low = start // self.lanes
        limits = [self.source.constant(f"{node.name}_{what}", np.asarray([k], np.int64))
                  for what, k in (("start", low), ("end", low - (-kept // self.lanes)), ("axis", 1))]
        self._result(out, node, "Slice", [self.read(first), *limits], [])

    def _whole(self, widths: Sequence[int]) -> None:
        """Parts but the last must be whole blocks."""
        for width in widths[:-1]:
            if width % self.lanes:
                raise Decline(f"a part of {width} channels fills no whole blocks of {self.lanes}")

    def _numbers(self, node: ir.Node, name: str, numbers: Sequence[int]) -> tuple[list[ir.Value], list[ir.Attr]]:
        """A parameter that became an input in opset 13."""
        if self.opset < _AXES_AS_INPUTS:
            return [], [ir.AttrInt64s(name, list(numbers))]
        return [self.source.constant(f"{node.name}_{name}", np.asarray(numbers, np.int64))], []

    # -- building -----------------------------------------------------------------------------------------------------

    def _result(self, out: ir.Value, node: ir.Node, op: str, operands: Sequence[ir.Value | None],
                attributes: Sequence[ir.Attr]) -> None:
        self.blocked[out] = self.add(node, op, operands, blocked_shape(_known(out), self.lanes), attributes,
                                     "_blocked")

    def add(self, node: ir.Node, op: str, operands: Sequence[ir.Value | None], shape: ir.Shape,
            attributes: Sequence[ir.Attr], suffix: str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        """Adds an `op` that stands for `node`, named with `suffix`; its result."""
        made = ir.Node("", op, operands, attributes, name=f"{node.name}{suffix}", version=node.version)
        result = made.outputs[0]
        result.name, result.shape, result.type = f"{node.outputs[0].name}{suffix}", shape, ir.TensorType(dtype)
        self.nodes.append(made)
        return result


def reads_plain(node: ir.Node) -> bool:
    """Whether a convolution reads its source in plain layout whatever is chosen."""
    groups = groups_of(node)
    if node.op_type != "Conv" or groups != 1:
        return False
    shape = _present(node, 0).shape
    channels = shape[1] if shape is not None and shape.rank() > 1 else None
    return isinstance(channels, int) and channels <= PLAIN_CHANNELS


def channels_of(value: ir.Value) -> int:
    """C of [N, C, *spatial] with one or two spatial dims; `Decline` otherwise."""
    shape = _shape(value)
    if len(shape) not in (3, 4):
        raise Decline(f"{value.name} has rank {len(shape)}: blocked values have one or two spatial dims")
    if not isinstance(shape[1], int) or any(not isinstance(d, int) and d.value is None for d in shape):
        raise Decline(f"{value.name} {value.shape}: the channels are symbolic or an extent is unknown")
    if shape[1] == 0:
        raise Decline(f"{value.name} is empty")
    return shape[1]


def _known(value: ir.Value) -> ir.Shape:
    channels_of(value)
    assert value.shape is not None
    return value.shape


def _shape(value: ir.Value) -> Sequence[Any]:
    if value.shape is None:
        raise Decline(f"the shape of {value.name} is unknown")
    return list(value.shape)


def _present(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise Decline(f"{node.op_type} lacks input {index}")
    return value


def _attributes(node: ir.Node) -> list[ir.Attr]:
    return [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()]
