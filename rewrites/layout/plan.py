"""The pass that keeps whole convolution trunks in blocked layout.

Every unit (a window with its epilogue, or a single node that has a blocked form) gets a layout so that the estimated
time of the whole graph, conversions included, is least (`assign`). Units that got the blocked one are written anew:
windows become composites of kind Conv or Pool that read and write blocked tensors, other nodes compute on blocked
tensors, and values that both sides read are converted once. Refused, with a reason each: nodes that have no blocked
form, and units that the assignment leaves where they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from tilegraph.graph import GraphView, all_graphs
from tilegraph.ops.conv import algorithm, lower_conv, lower_join, plan_conv, plan_join
from tilegraph.ops.conv.form import Views, block, unblock
from tilegraph.ops.prims import Decline
from tilegraph.ops.region import plan as plan_region
from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra.constants import Constants
from tilegraph.rewrites.conv import BlockedWriter, Unit, find_units, write_unit
from tilegraph.rewrites.conv.units import is_window
from tilegraph.rewrites.conv.write import Array
from tilegraph.rewrites.fusion.base import CompositePass, opsets_of
from tilegraph.rewrites.fusion.composite import DOMAIN, make_composite
from tilegraph.rewrites.fusion.legal import size_bytes
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.layout.assign import Assignment, assign, price
from tilegraph.rewrites.layout.problem import Problem, pose, scenarios
from tilegraph.rewrites.normalise.edit import replace

STAGE = "layout"
_MIN_RATIO = 1.03  # what the whole graph must gain: estimates are no better
_TINY = 1e-9


class LayoutPlanning(CompositePass):
    """`lanes`: channels of a block, those of a vector register of the target. `fast`: Winograd's F(4x4, 3x3), whose
    errors are larger, where it takes less; such windows become composites of kind ConvFast."""

    name = "plan-layouts"

    def __init__(self, offload: str = "auto", lanes: int = 16, fast: bool = False) -> None:
        super().__init__(offload)
        self.lanes, self.fast = lanes, fast

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        planned = [self._plan(model, graph, context) for graph in list(all_graphs(model.graph))]
        return any(planned)

    def _plan(self, model: ir.Model, graph: ir.Graph, context: PassContext) -> bool:
        """One graph; a body of control flow is planned as one of its own, and what it captures is plain."""
        view, opsets = GraphView(graph), opsets_of(model)
        units, refusals = find_units(view, opsets, self.lanes)
        windows = any(unit.is_window for unit in units)
        for node, reason in refusals.items():
            # In a model without windows every node would have a reason, and kernels of passes before need none.
            if (windows or is_window(node)) and node.domain != DOMAIN:
                context.diagnostics.refused(STAGE, node.name or "", reason, op=node.op_type,
                                            general=not is_window(node))
        if not windows:
            return False
        units = _with_windows([_faster(unit) for unit in units] if self.fast else units)
        problem, found = choose([pose(units, view, self.lanes, known=known, force=self.offload == "all")
                                 for known in scenarios(units)])
        self._report(units, problem, found, refusals, context)
        if not found.blocked:
            return False
        _Rewriting(model, graph, self.lanes, opsets, context).apply([u for u in units if u in found.blocked])
        return True

    def _report(self, units: list[Unit], problem: Problem, found: Assignment[Unit], refusals: Mapping[ir.Node, str],
                context: PassContext) -> None:
        for unit in units:
            if unit not in found.blocked:
                choice = problem.choices[unit]
                context.diagnostics.refused(
                    STAGE, unit.first.name or "", f"stays in plain layout: {choice.plain_us or 0:.1f} µs there, "
                    f"{choice.blocked_us or 0:.1f} in blocks and conversions beside that", op=unit.first.op_type,
                    general=not unit.is_window)
        for conversion in found.conversions:
            value = problem.by_name[conversion.value]
            readers = Counter(user.op_type for user, _ in value.uses())
            made = value.producer()
            way = "into" if conversion.blocks else "out of"
            context.diagnostics.took(
                STAGE, conversion.value, f"{way} blocks of {self.lanes} channels: "
                f"{_why(value, conversion.blocks, found.blocked, refusals)}",
                op="conversion", bytes=size_bytes(value), us=round(conversion.us, 2), into_blocks=conversion.blocks,
                producer="graph input" if made is None else made.op_type, readers=dict(readers))


def _why(value: ir.Value, into: bool, blocked: Collection[Unit], refusals: Mapping[ir.Node, str]) -> str:
    """Why `value` is converted: what is plain on the other side."""
    made, inside = value.producer(), {node for unit in blocked for node in unit.nodes}
    if into and made is None:
        return "it is a graph input"
    found = ["it is a graph output"] if value.is_graph_output() and not into else []
    nodes = [made] if made is not None and into else [user for user, _ in value.uses() if user not in inside]
    found += [f"{node.op_type}: {refusals.get(node, 'stays in plain layout')}" for node in nodes]
    return "; ".join(dict.fromkeys(found)) or "one of its readers takes it plain"


def _faster(unit: Unit) -> Unit:
    """`unit` by F(4x4, 3x3), where that takes less."""
    if unit.space is None or unit.space.plain is not None:
        return unit
    space = dataclasses.replace(unit.space, fast=True)
    return dataclasses.replace(unit, kind="ConvFast", space=space) if algorithm(space) == "winograd4" else unit


def _with_windows(units: Sequence[Unit]) -> list[Unit]:
    """The units that values connect to a window. Others are pointwise, and regions take those without a layout."""
    links: dict[ir.Value, list[Unit]] = {}
    for unit in units:
        for value in (*unit.reads, *unit.outputs):
            links.setdefault(value, []).append(unit)
    found = {unit for unit in units if unit.is_window}
    pending = list(found)
    while pending:
        unit = pending.pop()
        near = {other for value in (*unit.reads, *unit.outputs) for other in links[value]} - found
        found |= near
        pending += near
    return [unit for unit in units if unit in found]


def choose(problems: Sequence[Problem]) -> tuple[Problem, Assignment[Unit]]:
    """The assignment for sizes that only the run knows, with the problem that it is the answer to.

    Each scenario's best assignment is priced under all; the one wins whose worst ratio to a scenario's best is least.
    Nothing is blocked if that gains less than `_MIN_RATIO` over the scenarios (geometric mean).
    """
    answers = [assign(p.choices, p.values) for p in problems]
    best, least = 0, math.inf
    for k, answer in enumerate(answers):
        worst = max(price(p.choices, p.values, answer.blocked) / max(own.us, _TINY)
                    for p, own in zip(problems, answers, strict=True))
        if worst < least - _TINY:
            best, least = k, worst
    problem, found = problems[best], answers[best]
    plain = found.plain_us
    if plain is not None:
        gains = [price(p.choices, p.values, frozenset()) / max(price(p.choices, p.values, found.blocked), _TINY)
                 for p in problems]
        if math.prod(gains) < _MIN_RATIO ** len(gains):
            found = Assignment(frozenset(), plain, plain, ())
    return problem, found


def _replaced(units: Sequence[Unit], graph: ir.Graph) -> list[ir.Node]:
    """The nodes of `units` that nobody needs any more when what the units make is made anew, in order: one that chooses
    channels may be on the way to plain values, too."""
    made = {v for unit in units for v in unit.outputs}
    old = {node for unit in units for node in unit.nodes}
    while True:
        needed = {n for n in old for v in n.outputs if v not in made
                  and (v.is_graph_output() or any(user not in old for user, _ in v.uses()))}
        if not needed:
            return [n for n in graph if n in old]
        old -= needed


@dataclass
class _Rewriting:
    """Takes blocked operands from what was written before, or converts plain ones."""

    model: ir.Model
    graph: ir.Graph
    lanes: int
    opsets: dict[str, int]
    context: PassContext
    map: dict[ir.Value, ir.Value] = field(default_factory=dict)
    instead: dict[ir.Value, ir.Value] = field(default_factory=dict)  # plain results of kernels
    conversions: list[Views] = field(default_factory=list)
    windows: list[tuple[str, list[ir.Node], ir.Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.constants = Constants(self.model, self.context)
        self.regions = Verdicts(self.opsets, plan_region)
        self._made: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}

    # -- the writer's source ------------------------------------------------------------------------------------------

    def blocked(self, value: ir.Value) -> ir.Value:
        if value not in self.map:
            views = block(value, self.lanes, f"{value.name}_to_blocks")
            self._convert(views)
            self.map[value] = views.value
        return self.map[value]

    def plain(self, value: ir.Value) -> ir.Value:
        return value

    def constant(self, name: str, array: Array) -> ir.Value:
        key = str(array.dtype), array.tobytes(), array.shape
        if key not in self._made:
            dtype = ir.DataType.from_numpy(array.dtype)
            self._made[key] = self.constants.make(name, array, dtype)
        return self._made[key]

    # -- the graph ----------------------------------------------------------------------------------------------------

    def apply(self, units: list[Unit]) -> None:
        """`units`: those to be blocked, in topological order of their ends."""
        graph = self.graph
        for unit in units:
            writer = BlockedWriter(self, self.lanes, self.opsets.get("", 1))
            made = write_unit(writer, unit)
            self._name(writer.nodes)
            graph.extend(writer.nodes)
            (self.instead if unit.plain else self.map).update(zip(unit.outputs, made, strict=True))
            if unit.kind:
                self.windows.append((unit.kind, writer.nodes, made[0]))
        old = _replaced(units, graph)  # what was written may read plain values that are made on the way to others
        self._hand_over(units, set(old))
        graph.remove(old[::-1], safe=True)
        graph.sort()
        checked = Verdicts(self.opsets, plan_conv, lower_conv)
        for kind, nodes, output in self.windows:
            # As found: what was examined is what is written.
            if kind == "Join":
                plan_join(lower_join(nodes, [output], self.opsets))
            else:
                checked.ask(nodes, [output])
            call = make_composite(self.model, graph, nodes, [output], kind=kind)
            kinds = [n.op_type for n in nodes if n.op_type not in ("Constant", "Transpose", "Reshape", "Slice", "Pad")]
            self.context.diagnostics.took(STAGE, call.name or "", f"{len(kinds)} nodes in one kernel", op=call.op_type,
                                          ops=kinds)
        for views in self.conversions:
            self._compose(views)
        graph.sort()

    def _name(self, nodes: list[ir.Node]) -> None:
        for node in nodes:
            node.name = self.constants.names.node(node.name or node.op_type)
            for value in node.outputs:
                value.name = self.constants.names.value(value.name or node.name)

    def _hand_over(self, units: list[Unit], old: set[ir.Node]) -> None:
        """Plain copies for those who still read what blocked units make."""
        for unit in units:
            for value in unit.outputs:
                outside = [(user, index) for user, index in value.uses() if user not in old]
                if not outside and not value.is_graph_output():
                    continue
                made = self.instead.get(value)
                if made is None:
                    assert value.shape is not None
                    channels = value.shape[1]
                    assert isinstance(channels, int)
                    views = unblock(self.map[value], channels, f"{value.name}_from_blocks")
                    self._convert(views)
                    made = views.value
                for user, index in list(value.uses()):
                    if user in old:
                        user.replace_input_with(index, None)  # it goes anyway
                replace(value, made, self.model.graph)

    def _convert(self, views: Views) -> None:
        self._name(list(views.nodes))
        self.graph.extend(views.nodes)
        self.conversions.append(views)

    def _compose(self, views: Views) -> None:
        """One kernel for a conversion, where the row kernel can be it; otherwise its nodes stay."""
        nodes = list(views.nodes)
        try:
            self.regions.ask(nodes, [views.value])
        except Decline as reason:
            self.context.diagnostics.refused(STAGE, views.value.name or "", f"its conversion is no kernel: "
                                             f"{reason.reason}", op="conversion")
            return
        make_composite(self.model, self.graph, nodes, [views.value])
