"""Concat of channels, sums with upsampled values and nearest Resize on values whose channels are in blocks.

Such a node, with the Resize nodes that only it reads, becomes one kernel (`ops.conv.join`). Parts may have any number
of channels. Left alone: other axes, Resize that does not repeat elements evenly, constants; sums without an upsampled
operand are pointwise.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.conv.form import block, unblock
from tilegraph.ops.conv.upsample import factors
from tilegraph.ops.lower import domain_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.conv.write import BlockedWriter, channels_of

_ROI_IS_OPTIONAL = 13


def join_of(node: ir.Node, view: GraphView, taken: Set[ir.Node]) -> tuple[ir.Node, ...]:
    """`node` behind the Resize nodes that it alone reads; empty where it joins nothing."""
    if domain_of(node) != "" or node in taken or node.op_type not in ("Concat", "Add", "Resize"):
        return ()
    found: list[ir.Node] = []
    for value in dict.fromkeys(node.inputs) if node.op_type != "Resize" else ():
        maker = None if value is None else value.producer()
        if maker is not None and maker in view.order and domain_of(maker) == "" and maker.op_type == "Resize" \
                and maker not in taken and view.consumers(maker) == [node] and maker.outputs[0] not in view.outputs \
                and _repeats(maker):
            found.append(maker)
    if node.op_type == "Add" and not found:
        return ()
    return (*sorted(found, key=view.order.__getitem__), node)


def write_join(writer: BlockedWriter, nodes: tuple[ir.Node, ...]) -> None:
    """Adds the blocked form of what `join_of` found; `Decline` if it has none."""
    root, upsampled = nodes[-1], {n.outputs[0]: n for n in nodes[:-1]}
    writer.check(root)
    out = root.outputs[0]
    if root.op_type == "Concat":
        rank = 0 if out.shape is None else len(out.shape)
        if not rank or root.attributes["axis"].as_int() % rank != 1:
            raise Decline("Concat of another axis than the channels, or of an unknown rank")
    operands = []
    for number, value in enumerate(root.inputs[:1] if root.op_type == "Resize" else root.inputs):
        if value is None:
            raise Decline(f"{root.op_type} lacks input {number}")
        maker = upsampled.get(value)
        source = value if maker is None else maker.inputs[0]
        assert source is not None
        channels = channels_of(source)
        if root.op_type == "Add" and channels != channels_of(out):
            raise Decline(f"{source.name} is broadcast to {channels_of(out)} channels")
        views = unblock(writer.read(source), channels, f"{root.name}_part{number}")
        writer.nodes += views.nodes
        operands.append(views.value if maker is None else _resized(writer, maker, views.value))
    channels_of(out)
    assert out.shape is not None
    if root.op_type == "Resize":
        made = _resized(writer, root, operands[0])
    else:
        attributes = [ir.AttrInt64("axis", 1)] if root.op_type == "Concat" else []
        made = writer.add(root, root.op_type, operands, out.shape, attributes, "_joined")
    views = block(made, writer.lanes, f"{root.name}_out")
    writer.nodes += views.nodes
    writer.blocked[out] = views.value


def _repeats(node: ir.Node) -> bool:
    try:
        factors(node)
    except Decline:
        return False
    return True


def _resized(writer: BlockedWriter, node: ir.Node, value: ir.Value) -> ir.Value:
    scales = writer.inside(f"{node.name}_scales", np.asarray([1.0, 1.0, *factors(node)], np.float32))
    roi = None if writer.opset >= _ROI_IS_OPTIONAL else writer.inside(f"{node.name}_roi", np.zeros(0, np.float32))
    attributes = [ir.AttrString("mode", "nearest"), ir.AttrString("coordinate_transformation_mode", "asymmetric"),
                  ir.AttrString("nearest_mode", "floor")]
    shape = node.outputs[0].shape
    assert shape is not None
    return writer.add(node, "Resize", [value, roi, scales], shape, attributes, "_joined")
