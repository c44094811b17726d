"""What the layout planner decides about: windows with their epilogues, and single nodes, that have a blocked form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.conv import ConvSpace, lower_conv, lower_join, plan_conv, plan_join
from tilegraph.ops.conv.form import blocked_shape
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.rewrites.conv.channels import Channels, Chosen, write_chosen
from tilegraph.rewrites.conv.join import join_of, write_join
from tilegraph.rewrites.conv.write import CONVS, MIN_OPSET, POOLS, Array, BlockedWriter, reads_plain
from tilegraph.rewrites.fusion.epilogue import between, followers
from tilegraph.rewrites.fusion.verdicts import Verdicts

S = TypeVar("S")
_MAX_EPILOGUE = 40
_READ_BLOCKS = frozenset({"Concat", "Resize", "Split", "BatchNormalization"})  # beside windows


@dataclass(frozen=True, eq=False)
class Unit:
    """Nodes that get one layout, in order; all but the last are read inside only. A window may come behind the scales
    of its source's channels.

    `reads`: values that it reads in its layout. `outputs`: what it makes. `kind`: of the composite that it becomes,
    Conv, Pool or Join; empty for a single node that computes on blocked tensors. `space`: of a window with what
    follows. `plain`: what it makes is in plain layout. `chosen`: what a Join makes of single channels; other units may
    have its nodes, too.
    """

    nodes: tuple[ir.Node, ...]
    reads: tuple[ir.Value, ...]
    kind: str = ""
    space: ConvSpace | None = None
    plain: bool = False
    chosen: Chosen | None = None

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        if self.chosen is not None:
            return (self.chosen.value,)
        return tuple(v for v in self.nodes[-1].outputs if v.name)

    @property
    def is_window(self) -> bool:
        return self.space is not None

    @property
    def first(self) -> ir.Node:
        """The window, or the only node."""
        return next((n for n in self.nodes if is_window(n)), self.nodes[-1])


def is_window(node: ir.Node) -> bool:
    return domain_of(node) == "" and (node.op_type in CONVS or node.op_type in POOLS)


def find_units(view: GraphView, opsets: Mapping[str, int], lanes: int) -> tuple[list[Unit], dict[ir.Node, str]]:
    """All units of a graph, and why the other nodes have no blocked form. Windows take the longest epilogue that
    their kernel can compute; a node belongs to one unit, but for those that only say where channels go."""
    taken: set[ir.Node] = set()
    units: list[Unit] = []
    trials = Trials(opsets, lanes)
    refusals: dict[ir.Node, str] = {}
    for node in view.nodes:
        if is_window(node):
            try:
                unit = _window(node, view, trials, taken)
            except (Decline, ValueError) as reason:
                refusals[node] = str(getattr(reason, "reason", reason))
                continue
            taken.update(unit.nodes)
            units.append(unit)
    for chosen in _chosen(view, lanes):
        try:
            unit = _from_channels(chosen, opsets, lanes)
        except (Decline, ValueError) as reason:
            refusals[chosen.nodes[-1]] = str(getattr(reason, "reason", reason))
            continue
        taken.update(unit.nodes)
        units.append(unit)
    # Joins first, from their ends: a Resize that one of them reads is no unit of its own.
    singles = [n for n in view.nodes if n not in taken and n not in refusals]
    for node in sorted(singles, key=lambda n: n.op_type not in ("Concat", "Add")):
        if node in taken:
            continue
        try:
            unit = _join(node, view, opsets, lanes, taken) or trials.single(node)
        except (Decline, ValueError) as reason:
            refusals[node] = str(getattr(reason, "reason", reason))
            continue
        taken.update(unit.nodes)
        units.append(unit)
    return sorted(units, key=lambda u: view.order[u.nodes[-1]]), refusals


def _window(node: ir.Node, view: GraphView, trials: Trials, taken: set[ir.Node]) -> Unit:
    best = trials.window((node,))
    before = _scales(node, view, taken)
    if before:
        try:
            best = trials.window((*before, node))
        except Decline:
            before = ()
    ends = followers((node,), view, lambda n: n not in taken and follows(n), _MAX_EPILOGUE)
    for count in range(len(ends)):
        nodes = between((node,), ends[count], ends, view)
        if nodes is None:
            continue
        try:
            best = trials.window((*before, *nodes))
        except Decline:
            continue
    return _with_plain_result(best, view, trials)


def _with_plain_result(unit: Unit, view: GraphView, trials: Trials) -> Unit:
    """`unit`, with a plain result where that is small and no window reads it: blocks would hold little but zeros."""
    (out,) = unit.outputs
    count = unit.space.filters * math.prod(v.extent.value for v in unit.space.phases) if unit.space is not None else 0
    if unit.kind != "Conv" or not 0 < count <= trials.lanes // 2 or any(
            (is_window(u) and not reads_plain(u)) or u.op_type in _READ_BLOCKS for u in view.users(out)):
        return unit
    try:
        return trials.plain(unit)
    except Decline:
        return unit


def _scales(node: ir.Node, view: GraphView, taken: set[ir.Node]) -> tuple[ir.Node, ...]:
    """The product x * s, or the sum x + x * s, that only the convolution `node` reads, s one number a channel."""
    found: tuple[ir.Node, ...] = ()
    value, reader = node.inputs[0], node
    for op in ("Add", "Mul"):
        maker = None if value is None else value.producer()
        if maker is None or domain_of(maker) != "" or maker in taken or node.op_type not in CONVS:
            return ()
        if maker.op_type == op and set(view.users(maker.outputs[0])) == {reader} \
                and maker.outputs[0] not in view.outputs:
            found, reader = (maker, *found), maker
            if op == "Add":
                value = next((v for v in maker.inputs if v is not None and (p := v.producer()) is not None
                              and p.op_type == "Mul" and set(maker.inputs) - {v} <= set(p.inputs)), None)
    return found if found and found[0].op_type == "Mul" else ()


def follows(node: ir.Node) -> bool:
    """Whether `node` may be computed point by point from a window: BatchNormalization is a product and a sum."""
    return kind_of(node) == "pointwise" or (domain_of(node) == "" and node.op_type == "BatchNormalization")


class Trials:
    """Nodes written in blocks on copies of their operands, once for each structure (see `Verdicts`).

    All raise `Decline` with the reason.
    """

    def __init__(self, opsets: Mapping[str, int], lanes: int) -> None:
        self.opsets = opsets
        self.lanes = lanes
        self._windows = Verdicts(opsets, plan_conv, self._lower_window)
        self._plain = Verdicts(opsets, plan_conv, self._lower_plain)
        self._singles = Verdicts(opsets, lambda lowered: lowered, self._lower_single)

    def window(self, nodes: tuple[ir.Node, ...]) -> Unit:
        """A window, between scales of its source and an epilogue, with a result in blocks."""
        reads, space = self._ask(self._windows, nodes)
        return Unit(nodes, reads, "Conv" if any(n.op_type in CONVS for n in nodes) else "Pool", space)

    def plain(self, unit: Unit) -> Unit:
        """The unit of a window with a plain result instead."""
        reads, space = self._ask(self._plain, unit.nodes)
        return replace(unit, reads=reads, space=space, plain=True)

    def single(self, node: ir.Node) -> Unit:
        return Unit((node,), self._ask(self._singles, (node,))[0])

    def _ask(self, verdicts: Verdicts[S], nodes: tuple[ir.Node, ...]) -> tuple[tuple[ir.Value, ...], S]:
        if any(len(n.outputs) > 1 for n in nodes):  # whether the others are read is no part of a structure
            lowered = verdicts.lower(nodes, nodes[-1].outputs, self.opsets)
            space = verdicts.planner(lowered)
        else:
            lowered, space = verdicts.ask(nodes, nodes[-1].outputs)
        return tuple(value for _, value in lowered.inputs), space

    # The inputs of what these return are what is read in blocks: it was written on copies.

    def _lower_window(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) \
            -> Lowered:
        writer = trial(nodes, self.lanes, opsets.get("", 1))
        return _reading(writer, lower_conv(writer.nodes, [writer.blocked[outputs[0]]], opsets))

    def _lower_plain(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
        writer = _Trial(Twins(self.lanes), self.lanes, opsets.get("", 1))
        result = writer.write_plain(nodes)
        return _reading(writer, lower_conv(writer.nodes, [result], opsets))

    def _lower_single(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) \
            -> Lowered:
        return _reading(trial(nodes, self.lanes, opsets.get("", 1)), Lowered((), (), ()))


def _reading(writer: _Trial, lowered: Lowered) -> Lowered:
    return replace(lowered, inputs=tuple(enumerate(writer.source.reads)))


def _chosen(view: GraphView, lanes: int) -> list[Chosen]:
    """What needs a kernel of its own: neither one Concat, which may read upsampled values, nor a Split or Slice of
    whole blocks, which other kernels read as a view."""
    found = Channels(view).found()
    apart = {c.value for c in found if len(c.nodes) == 1}
    return [c for c in found if not (c.value in apart and (
        c.nodes[0].op_type == "Concat" or _is_view(c.nodes[0], lanes, apart)))]


def _is_view(node: ir.Node, lanes: int, apart: set[ir.Value]) -> bool:
    if node.op_type not in ("Split", "Slice") or not apart.issuperset(node.outputs):
        return False
    try:
        trial((node,), lanes, MIN_OPSET)
    except Decline:
        return False
    return True


def _from_channels(chosen: Chosen, opsets: Mapping[str, int], lanes: int) -> Unit:
    writer = _Trial(Twins(lanes), lanes, opsets.get("", 1))
    write_chosen(writer, chosen)
    plan_join(lower_join(writer.nodes, [writer.blocked[chosen.value]], opsets))
    return Unit(chosen.nodes, tuple(writer.source.reads), "Join", chosen=chosen)


def _join(node: ir.Node, view: GraphView, opsets: Mapping[str, int], lanes: int, taken: set[ir.Node]) -> Unit | None:
    """The join that `node` is the end of; None if it joins nothing."""
    nodes = join_of(node, view, taken)
    if not nodes:
        return None
    writer = _Trial(Twins(lanes), lanes, opsets.get("", 1))
    try:
        write_join(writer, nodes)
        plan_join(lower_join(writer.nodes, [writer.blocked[node.outputs[0]]], opsets))
    except Decline:
        if node.op_type == "Add":  # pointwise, then
            return None
        raise
    return Unit(nodes, tuple(writer.source.reads), "Join")


def write_unit(writer: BlockedWriter, unit: Unit) -> list[ir.Value]:
    """Adds the blocked form of `unit`; what stands for its outputs."""
    if unit.plain:
        return [writer.write_plain(unit.nodes)]
    if unit.chosen is not None:
        write_chosen(writer, unit.chosen)
    elif unit.kind == "Join":
        write_join(writer, unit.nodes)
    else:
        for node in unit.nodes:
            writer.write(node)
    return [writer.blocked[v] for v in unit.outputs]


@dataclass
class Twins:
    """Operands for a writer whose nodes are dropped again: copies, so that the graph sees no new uses."""

    lanes: int
    reads: dict[ir.Value, ir.Value] = field(default_factory=dict)
    others: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def blocked(self, value: ir.Value) -> ir.Value:
        if value not in self.reads:
            assert value.shape is not None
            if constant_of(value) is not None:
                raise Decline(f"the constant {value.name} is used as an image")
            self.reads[value] = ir.Value(name=value.name, shape=blocked_shape(value.shape, self.lanes), type=value.type)
        return self.reads[value]

    def plain(self, value: ir.Value) -> ir.Value:
        if value not in self.others:
            array = constant_of(value)
            self.others[value] = ir.Value(name=value.name, shape=value.shape, type=value.type,
                                          const_value=None if array is None else ir.tensor(array))
        return self.others[value]

    def constant(self, name: str, array: Array) -> ir.Value:
        tensor = ir.tensor(array)
        return ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)


class _Trial(BlockedWriter):
    source: Twins


def trial(nodes: Sequence[ir.Node], lanes: int, opset: int) -> _Trial:
    """The blocked form of `nodes` on copies of their operands; `Decline` with the reason if there is none."""
    writer = _Trial(Twins(lanes), lanes, opset)
    for node in nodes:
        writer.write(node)
    return writer


__all__ = ["Twins", "Unit", "find_units", "is_window", "reads_plain", "trial", "write_unit"]
