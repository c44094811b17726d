"""Concat, Split, Slice, Gather and shuffles of channels: nodes that only say which channel of which value goes where.

Chains of them that end where something else reads are one kernel each (`ops.conv.join`): a channel is moved once,
however many such nodes are on its way, and those that nobody reads there are not moved. A shuffle is Reshape
[N, C, ...] to [N, *groups, ...], Transpose of the groups, Reshape back to [N, C, ...].

Left alone: other axes, channels that a run computes or that are symbolic.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.conv.form import block, unblock
from tilegraph.ops.lower import domain_of
from tilegraph.ops.lower.base import constant_of, shape_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.conv.write import BlockedWriter, channels_of
from tilegraph.spec.dims import Dim

Channel = tuple[ir.Value, int]
_MOVES = frozenset({"Concat", "Split", "Slice", "Gather", "Reshape"})


@dataclass(frozen=True)
class Chosen:
    """`value` [N, C, *spatial] has these `channels`, and `nodes`, in order, are on their way. Nothing else reads what
    all but the last of them make of those channels."""

    value: ir.Value
    channels: tuple[Channel, ...]
    nodes: tuple[ir.Node, ...]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        return tuple(dict.fromkeys(v for v, _ in self.channels))


class Channels:
    """Where the channels of each value of a graph come from."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        # value -> where its channels come from, by which nodes
        self.moves: dict[ir.Value, tuple[tuple[Channel, ...], tuple[ir.Node, ...]]] = {}
        self.inside: set[ir.Node] = set()
        for node in view.nodes:
            if domain_of(node) == "" and node.op_type in _MOVES:
                try:
                    self._learn(node)
                except Decline:
                    continue

    def _learn(self, node: ir.Node) -> None:
        found, nodes = (_shuffled(node, self.view) if node.op_type == "Reshape" else (_moved(node), (node,)))
        if not all(found):
            raise Decline("a part without channels")
        for value, channels in zip(node.outputs, found, strict=True):
            channels_of(value)
            self.moves[value] = tuple(channels), nodes
        self.inside.update(nodes)

    def is_read(self, value: ir.Value) -> bool:
        """Whether something else than a node of this kind reads `value`."""
        return value in self.view.outputs or any(user not in self.inside for user in self.view.users(value))

    def found(self) -> list[Chosen]:
        """What is read, in order of the nodes that make it; but not what one Concat, Split or Slice alone does."""
        chosen = [self._from(value) for value in self.moves if self.is_read(value)]
        return sorted(chosen, key=lambda c: self.view.order[c.nodes[-1]])

    def _from(self, value: ir.Value) -> Chosen:
        channels, nodes = self.moves[value]
        on_the_way = dict.fromkeys(nodes)
        while True:
            inner = {v for v, _ in channels if v in self.moves and not self.is_read(v)}
            if not inner:
                break
            for v in inner:
                on_the_way |= dict.fromkeys(self.moves[v][1])
            channels = tuple(self.moves[v][0][c] if v in inner else (v, c) for v, c in channels)
        return Chosen(value, channels, tuple(sorted(on_the_way, key=self.view.order.__getitem__)))


def write_chosen(writer: BlockedWriter, chosen: Chosen) -> None:
    """Adds the blocked form of what is chosen."""
    last, parts, first, total = chosen.nodes[-1], [], {}, 0
    writer.check(last)
    for number, value in enumerate(chosen.reads):
        first[value] = total
        total += channels_of(value)
        views = unblock(writer.read(value), channels_of(value), f"{last.name}_part{number}")
        writer.nodes += views.nodes
        parts.append(views.value)
    joined = parts[0]
    dims = list(joined.shape or ())
    if len(parts) > 1:
        joined = writer.add(last, "Concat", parts, ir.Shape([dims[0], total, *dims[2:]]), [ir.AttrInt64("axis", 1)],
                            "_joined")
    order = [first[v] + c for v, c in chosen.channels]
    if order != list(range(total)):
        places = writer.inside(f"{last.name}_channels", np.asarray(order, np.int64))
        joined = writer.add(last, "Gather", [joined, places], ir.Shape([dims[0], len(order), *dims[2:]]),
                            [ir.AttrInt64("axis", 1)], "_chosen")
    views = block(joined, writer.lanes, f"{last.name}_out")
    writer.nodes += views.nodes
    writer.blocked[chosen.value] = views.value


# -- single nodes -----------------------------------------------------------------------------------------------------


def _moved(node: ir.Node) -> list[list[Channel]]:
    """Where the channels of each output of `node` come from."""
    values = [v for v in node.inputs if v is not None]
    if not values:
        raise Decline(f"{node.op_type} without inputs")
    rank = len(shape_of(values[0]))
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if node.op_type == "Slice":
        return [_sliced(node)]
    if axis % max(rank, 1) != 1:
        raise Decline(f"{node.op_type} of another axis than the channels")
    if node.op_type == "Concat":
        return [[(v, c) for v in values for c in range(channels_of(v))]]
    count = channels_of(values[0])
    if node.op_type == "Split":
        ends = np.cumsum([0, *(channels_of(o) for o in node.outputs)])
        return [[(values[0], c) for c in range(low, high)] for low, high in pairwise(ends)]
    places = constant_of(values[1])
    if places is None or places.ndim != 1 or not all(-count <= p < count for p in places):
        raise Decline("Gather of channels that are not constant")
    return [[(values[0], int(p) % count) for p in places]]


def _sliced(node: ir.Node) -> list[Channel]:
    source = node.inputs[0]
    given = [None if v is None else constant_of(v) for v in node.inputs[1:]]
    if source is None or len(given) < 3 or any(a is None for a in given):
        raise Decline("Slice by computed limits, or of all axes")
    starts, ends, axes, *steps = (np.asarray(a).reshape(-1).tolist() for a in given)
    if [a % len(shape_of(source)) for a in axes] != [1]:
        raise Decline("Slice of other axes than the channels")
    chosen = range(channels_of(source))[slice(starts[0], ends[0], steps[0][0] if steps else 1)]
    return [(source, c) for c in chosen]


def _shuffled(last: ir.Node, view: GraphView) -> tuple[list[list[Channel]], tuple[ir.Node, ...]]:
    """The shuffle that the Reshape `last` ends."""
    turn = _maker(last, "Transpose")
    first = _maker(turn, "Reshape")
    source, middle = first.inputs[0], first.outputs[0]
    assert source is not None
    for node in (first, turn):
        if node.outputs[0] in view.outputs or len(view.users(node.outputs[0])) != 1:
            raise Decline("something else reads what is inside of a shuffle")
    before, inner, after = shape_of(source), shape_of(middle), shape_of(last.outputs[0])
    perm = list(turn.attributes["perm"].as_ints()) if "perm" in turn.attributes else []
    channels = Dim.of(channels_of(source))
    # The groups are as many dims as the channels make; behind them the order stays.
    groups = next((k for k in range(1, len(inner)) if Dim.product(inner[1:1 + k]) == channels), 0)
    rest = list(range(1 + groups, len(inner)))
    if not groups or before[0] != inner[0] or before != after or Dim.product(inner[1 + groups:]) != \
            Dim.product(before[2:]) or not perm or perm[0] != 0 or perm[1 + groups:] != rest:
        raise Decline("Reshape, Transpose, Reshape that is no shuffle of channels")
    order = np.arange(channels.value).reshape([d.value for d in inner[1:1 + groups]])
    order = order.transpose([p - 1 for p in perm[1:1 + groups]]).reshape(-1)
    return [[(source, int(c)) for c in order]], (first, turn, last)


def _maker(node: ir.Node, op: str) -> ir.Node:
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is None or domain_of(maker) != "" or maker.op_type != op:
        raise Decline(f"no {op} is in front of {node.op_type}")
    return maker


