"""Convolutions along one axis become two-dimensional ones over an image of height 1.

    Conv1d(x; W)  =  Squeeze(Conv2d(Unsqueeze(x); W with a kernel height of 1))

The same sums of the same products. The gain is that ONNX Runtime has blocked kernels for two axes only; for one axis it
multiplies a matrix for every element of the batch, at a quarter of the speed when signals are short. It takes input
channels in fours, so others are filled up with zeros, which add 0 times 0.

Handles: float32 Conv with constant weights, any kernel, stride, dilation and padding; single-input activations between
two such nodes, and sums of their results, so that a trunk has one Unsqueeze in front and one Squeeze behind.

Refused (docs/decisions.md has the measurements): outputs longer than 1024, of length 1 or of unknown length, and of
fewer than 16 positions in a batch of known size; fewer than 32 output channels, between 2 and 31 input channels, groups
other than depthwise in multiples of 16, and channels to fill up where outputs are longer than 64; opsets below 11.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.constants import Constants
from tilegraph.rewrites.normalise.edit import constant_of, groups_of, is_op, is_used, remove, replace
from tilegraph.rewrites.normalise.infer.info import shape_of

_LONGEST = 1024
_LONGEST_FILLED = 64
_POSITIONS = 16
_CHANNELS = 32
_BLOCK = 16
_FOURS = 4
_ACTIVATIONS = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu")
_OPSET = 11


class ConvRank(Pass):
    name = "conv-rank"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        if model.graph.opset_imports.get("", 1) < _OPSET:
            return PassResult(False)
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model):
            lift = _Lift(graph, constants)
            for node in list(graph):
                if lift.node(node, context, self.name):
                    modified = True
            lift.finish()
        return PassResult(modified)


class _Lift:
    """`made`: the three-dimensional results of lifted nodes, each a Squeeze of its four-dimensional one."""

    def __init__(self, graph: ir.Graph, constants: Constants) -> None:
        self.graph = graph
        self.constants = constants
        self.made: dict[ir.Value, ir.Value] = {}
        self.opset = constants.model.graph.opset_imports[""]

    def node(self, node: ir.Node, context: PassContext, stage: str) -> bool:
        if is_op(node, "Conv"):
            weights = constant_of(node.inputs[1])
            if weights is None or len(weights.shape) != 3 or node.outputs[0].dtype != ir.DataType.FLOAT:
                return False
            fill = self._fill(node, tuple(int(d) for d in weights.shape.numpy()))
            if isinstance(fill, str):
                context.diagnostics.refused(stage, node.name or "", fill, op="Conv")
                return False
            reason = self._conv(node, weights, fill)
            if reason is None:
                context.diagnostics.took(stage, node.name or "", "runs as a two-dimensional convolution", op="Conv")
            else:
                context.diagnostics.refused(stage, node.name or "", reason, op="Conv")
            return reason is None
        lifted = node.inputs and all(v in self.made for v in node.inputs)
        if lifted and (is_op(node, *_ACTIVATIONS) or is_op(node, "Add")):
            self._replace(node, [self.made[v] for v in node.inputs if v is not None], list(node.attributes.values()))
            return True
        return False

    def _fill(self, node: ir.Node, weights: tuple[int, ...]) -> int | str:
        """Channels to add to the input, or why the node stays as it is."""
        dims = shape_of(node.outputs[0].shape)
        length = None if dims is None or len(dims) != 3 or dims[2] is None else dims[2].as_int()
        outputs, channels = weights[0], weights[1]
        groups = groups_of(node)
        if length is None or length > _LONGEST:
            return f"its output is longer than {_LONGEST} or of unknown length"
        batch = None if dims is None or dims[0] is None else dims[0].as_int()
        if length < 2 or (batch is not None and batch * length < _POSITIONS):
            return "its output is too small to gain anything"
        if outputs < _CHANNELS:
            return f"it has {outputs} output channels, fewer than {_CHANNELS}"
        if groups > 1:
            depthwise = channels == 1 and outputs == groups and groups % _BLOCK == 0
            return 0 if depthwise else "its groups are not depthwise in multiples of 16"
        if 1 < channels < _CHANNELS:
            return f"it has {channels} input channels, fewer than {_CHANNELS}"
        fill = -channels % _FOURS if channels > 1 else 0
        return fill if not fill or length <= _LONGEST_FILLED else f"{channels} channels would have to be filled up"

    def _conv(self, node: ir.Node, weights: ir.TensorProtocol, fill: int) -> str | None:
        old, source = node.inputs[1], node.inputs[0]
        assert old is not None
        assert source is not None
        array = weights.numpy()
        if fill:
            array = np.pad(array, ((0, 0), (0, fill), (0, 0)))
        reason = self.constants.refusal(node, old, int(array.nbytes))
        if reason is not None:
            return reason
        self.constants.replace(node, 1, array[:, :, None, :], ir.DataType.FLOAT)
        wide = self.made[source] if source in self.made else self._unsqueezed(node, source)
        if fill:
            wide = self._filled(node, wide, fill)
        self._replace(node, [wide, *node.inputs[1:]], _two_axes(node))
        return None

    def _unsqueezed(self, node: ir.Node, source: ir.Value) -> ir.Value:
        return self._axis(node, "Unsqueeze", source, _with_height(source.shape))

    def _axis(self, before: ir.Node, op: str, source: ir.Value, shape: ir.Shape | None) -> ir.Value:
        """Unsqueeze or Squeeze of axis 2, put before a node."""
        if self.opset >= 13:
            axis = self.constants.make(f"{source.name}_axis", np.array([2]), ir.DataType.INT64)
            made = ir.node(op, [source, axis], name=self.constants.names.node(f"{source.name}_{op.lower()}"))
        else:
            made = ir.node(op, [source], {"axes": [2]}, name=self.constants.names.node(f"{source.name}_{op.lower()}"))
        return self._put(before, made, source, op, shape)

    def _filled(self, before: ir.Node, source: ir.Value, fill: int) -> ir.Value:
        pads = np.array([0, 0, 0, 0, 0, fill, 0, 0])
        value = self.constants.make(f"{source.name}_pads", pads, ir.DataType.INT64)
        made = ir.node("Pad", [source, value], name=self.constants.names.node(f"{source.name}_pad"))
        shape = None
        if source.shape is not None and isinstance(source.shape[1], int):
            shape = ir.Shape([source.shape[0], source.shape[1] + fill, *list(source.shape)[2:]])
        return self._put(before, made, source, "Pad", shape)

    def _put(self, before: ir.Node, made: ir.Node, source: ir.Value, op: str, shape: ir.Shape | None) -> ir.Value:
        result = made.outputs[0]
        result.name = self.constants.names.value(f"{source.name}_{op.lower()}")
        result.type, result.shape = source.type, shape
        before.prepend(made)
        return result

    def _replace(self, node: ir.Node, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr]) -> None:
        """A four-dimensional node with a Squeeze behind takes the place of `node`."""
        old = node.outputs[0]
        wide = ir.Node("", node.op_type, list(inputs), [ir.Attr(a.name, a.type, a.value) for a in attributes],
                       name=self.constants.names.node(f"{node.name}_wide"))
        result = self._put(node, wide, old, "wide", _with_height(old.shape))
        narrow = self._axis(node, "Squeeze", result, old.shape)
        replace(old, narrow, self.constants.model.graph)
        remove(node)
        self.made[narrow] = result

    def finish(self) -> None:
        """Takes out the Squeezes that nobody reads."""
        for narrow in self.made:
            producer = narrow.producer()
            if producer is not None and not is_used(narrow):
                remove(producer)


def _with_height(shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None:
        return None
    dims = list(shape)
    return ir.Shape([*dims[:2], 1, *dims[2:]])


def _two_axes(node: ir.Node) -> list[ir.Attr]:
    """The attributes of a Conv with a first spatial axis of kernel 1, stride 1 and no padding."""
    found = []
    for attribute in node.attributes.values():
        if attribute.name in ("kernel_shape", "strides", "dilations"):
            found.append(ir.AttrInt64s(attribute.name, [1, *attribute.as_ints()]))
        elif attribute.name == "pads":
            begin, end = attribute.as_ints()
            found.append(ir.AttrInt64s("pads", [0, begin, 0, end]))
        else:
            found.append(attribute)
    return found
