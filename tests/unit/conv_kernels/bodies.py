"""Bodies of convolution composites from the plain operators: what stands between the views of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from tests.unit.fusion.parse import model
from tilegraph.ops.conv import WINDOWS, Views, block, blocked_shape, unblock
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise.shapes import Shapes


@dataclass(frozen=True)
class Body:
    """`nodes` in order over `inputs`; `plain`: the model that they stand for, on plain values."""

    inputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]
    output: ir.Value
    plain: ir.Model

    def proto(self, opset: int = 20) -> onnx.ModelProto:
        """The body as a model of its own. Takes the nodes: use it last."""
        graph = ir.Graph(list(self.inputs), [self.output], nodes=list(self.nodes), opset_imports={"": opset}, name="b")
        return ir.to_proto(ir.Model(graph, ir_version=10))


def body(text: str, lanes: int = 16, blocked: Sequence[str] = ("x",), plain_result: bool = False) -> Body:
    """`text`: a model with a window. Inputs named in `blocked` arrive in blocks, the others as they are; the window's
    result is blocked unless `plain_result`, and so is what comes before and after it."""
    plain = model(text)
    Shapes().run(plain, PassContext())
    values: dict[ir.Value, ir.Value] = {}
    inputs, nodes = [], []
    behind = False
    for value in plain.graph.inputs:
        outside = ir.Value(name=value.name, shape=value.shape, type=value.type)
        if value.name in blocked and value.shape is not None:
            outside.shape = blocked_shape(value.shape, lanes)
        inputs.append(outside)
        values[value] = outside
    for node in plain.graph:
        window = ("", node.op_type) in WINDOWS
        behind |= window
        operands = []
        for k, value in enumerate(node.inputs):
            inner = None if value is None else values[value]
            if window and k == 0 and value is not None and (value.name in blocked or value.producer() is not None):
                assert inner is not None
                assert value.shape is not None
                inner = _add(unblock(inner, value.shape[1]), nodes)  # type: ignore[arg-type]
            operands.append(inner)
        copy = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()), name=node.name,
                       num_outputs=len(node.outputs))
        nodes.append(copy)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name, new.type = old.name, old.type
            new.shape = old.shape if window or (behind and plain_result) else blocked_shape(old.shape, lanes)  # type: ignore[arg-type]
            values[old] = new
        if window and not plain_result:
            values[node.outputs[0]] = _add(block(copy.outputs[0], lanes), nodes)
    return Body(tuple(inputs), tuple(nodes), values[plain.graph.outputs[0]], plain)


def _add(views: Views, nodes: list[ir.Node]) -> ir.Value:
    nodes.extend(views.nodes)
    return views.value
