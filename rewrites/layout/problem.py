"""The graph as the planner's problem: what each unit costs under each layout, and what each value costs to convert.

"Plain" is what happens without the planner: ONNX Runtime, which has a blocked layout of its own between convolutions.
Its conversions are priced too. Those that happen whatever the neighbours choose belong to the unit; those that
happen only at the border of our layout are added to the conversion there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from tilegraph.cost import CostModel, Extents, estimate
from tilegraph.cost import conv as cost
from tilegraph.graph import GraphView
from tilegraph.ops.conv import algorithm, half_vectors
from tilegraph.ops.lower.base import shape_of
from tilegraph.rewrites.conv.units import Unit, follows, is_window
from tilegraph.rewrites.conv.write import reads_plain
from tilegraph.rewrites.fusion.blocked import free_in_runtime, has_small_groups, is_blocked
from tilegraph.rewrites.fusion.legal import elements, size_bytes
from tilegraph.rewrites.layout.assign import Choice, Moved
from tilegraph.spec.dims import Dim

Owners = Mapping[ir.Node, Sequence[Unit]]

_BATCHES = 1, 8
_OTHERS = 64, 512


@dataclass(frozen=True)
class Problem:
    """Units with their choices, and the values between them by name."""

    choices: dict[Unit, Choice]
    values: list[Moved[Unit]]
    by_name: dict[str, ir.Value]


def pose(units: Sequence[Unit], view: GraphView, lanes: int, *, known: Extents = (), force: bool = False) -> Problem:
    """`known`: what symbolic extents are taken to be. `force`: every window that can be blocked must be."""
    owners = owners_of(units)
    model = CostModel()
    choices: dict[Unit, Choice] = {}
    for unit in units:
        plain = None if force and unit.is_window else _plain_us(unit, owners, view, model, known)
        choices[unit] = Choice(_blocked_us(unit, owners, view, known), plain)
    values = dict.fromkeys(v for unit in units for v in (*unit.reads, *unit.outputs))
    return Problem(choices, [_moved(v, owners, view, lanes, known) for v in values], {v.name or "": v for v in values})


def owners_of(units: Sequence[Unit]) -> Owners:
    """The units of each node: several where nodes only say where channels go, see `Unit.chosen`."""
    owners: dict[ir.Node, list[Unit]] = {}
    for unit in units:
        for node in unit.nodes:
            owners.setdefault(node, []).append(unit)
    return owners


def scenarios(units: Sequence[Unit]) -> list[Extents]:
    """What symbolic extents may be when the model runs: batches of 1 and 8, other extents of 64 and 512.

    A symbol is a batch if it is the first dim of a value. One scenario without symbols.
    """
    shapes = [shape_of(v) for unit in units for v in (*unit.reads, *unit.outputs)]
    symbols = sorted({s for shape in shapes for d in shape for s in _bare(d)})
    batches = {shape[0].bare_symbol for shape in shapes}
    found = [tuple((s, batch if s in batches else other) for s in symbols) for batch in _BATCHES for other in _OTHERS]
    return list(dict.fromkeys(found))


def _bare(dim: Dim) -> set[str]:
    """The symbols of a dim, those inside named expressions too."""
    found: set[str] = set()
    for name in dim.symbols:
        inner = Dim.of(name)
        found |= {name} if inner.bare_symbol is not None else _bare(inner)
    return found


def _moved(value: ir.Value, owners: Owners, view: GraphView, lanes: int, known: Extents) -> Moved[Unit]:
    producer = value.producer()
    makers = () if producer is None else owners.get(producer, ())
    made = next((unit for unit in makers if value in unit.outputs), None)
    if made is not None and made.plain:
        made = None
    users = view.users(value)
    readers = [unit for u in users for unit in owners.get(u, ()) if value in unit.reads]
    plain = value in view.outputs or any(_reads_plain(u, value, owners) for u in users)
    size = size_bytes(value, known)
    assert value.shape is not None
    channels = value.shape[1]
    convert = cost.convert_us(size, isinstance(channels, int) and channels % lanes == 0)
    kept = is_blocked(value)
    windows = any(_in_blocks(u) and not reads_plain(u) for u in users)
    # ONNX Runtime brings its own value into plain layout for us, if it would not have done so anyway.
    leaves = kept and not _leaves(value, view)
    return Moved(value.name or "", made, tuple(dict.fromkeys(readers)), plain,
                 block_us=convert + (cost.reorder_us(size) if leaves else 0.0),
                 unblock_us=convert + (cost.reorder_us(size) if kept and windows else 0.0))


def _reads_plain(user: ir.Node, value: ir.Value, owners: Owners) -> bool:
    """Whether `user` reads `value` in plain layout whatever is chosen. Of what only says where channels go, none may
    be needed."""
    units = owners.get(user, ())
    return not any(unit.chosen is not None or value in unit.reads for unit in units)


def _leaves(value: ir.Value, view: GraphView) -> bool:
    """Whether ONNX Runtime alone makes a plain copy of its blocked `value`."""
    return value in view.outputs or any(not _in_blocks(u) and not is_blocked(u.outputs[0]) for u in view.users(value))


def _in_blocks(node: ir.Node) -> bool:
    """Whether ONNX Runtime computes the window `node` in its blocked layout."""
    return is_window(node) and node.op_type != "ConvTranspose" and not has_small_groups(node)


def _plain_us(unit: Unit, owners: Owners, view: GraphView, model: CostModel, known: Extents) -> float:
    """In ONNX Runtime, with the conversions of its own that do not depend on the neighbours."""
    total = 0.0
    for node in unit.nodes:
        if unit.chosen is not None:
            total += _move_us(node, model, known) / len(owners[node])
            continue
        if is_window(node):
            assert unit.space is not None
            total += cost.runtime_us(work_of(unit, known))
        elif not free_in_runtime(node, view):
            total += model.node_us(node.op_type, max(elements(v, known) for v in node.outputs), 0)
            total += sum(cost.pass_us(size_bytes(v, known)) for v in (*node.inputs, *node.outputs) if v is not None)
    for node in unit.nodes:
        for value in node.outputs:
            if is_blocked(value) and view.users(value) and _leaves(value, view):
                total += cost.reorder_us(size_bytes(value, known))
        source = node.inputs[0]
        if _in_blocks(node) and source is not None and not reads_plain(node) and not is_blocked(source):
            readers = sum(_in_blocks(u) for u in view.users(source))
            total += cost.reorder_us(size_bytes(source, known)) / max(readers, 1)
    return total


def _move_us(node: ir.Node, model: CostModel, known: Extents) -> float:
    """A node that only moves channels, in ONNX Runtime: a copy, but for Reshape."""
    sizes = [] if node.op_type == "Reshape" else [elements(v, known) for v in node.outputs]
    return model.node_us(node.op_type, max(sizes, default=0), 0) + 2 * cost.pass_us(4 * sum(sizes))


def _blocked_us(unit: Unit, owners: Owners, view: GraphView, known: Extents) -> float:
    """In our kernels. What passes from one pointwise node to the next stays in registers: they become one region."""
    if unit.chosen is not None:
        return 2 * cost.pass_us(size_bytes(unit.chosen.value, known))
    if unit.space is not None:
        return cost.kernel_us(work_of(unit, known)) + sum(cost.pass_us(size_bytes(v, known)) for v in unit.reads[1:])
    node = unit.nodes[-1]
    moved = [*unit.reads, *node.outputs]
    if _joins(unit):
        moved = [v for v in unit.reads if not _in_a_region(v.producer(), owners)]
        moved += [v for v in node.outputs if v in view.outputs
                  or not all(_in_a_region(u, owners) for u in view.users(v))]
    return sum(cost.pass_us(size_bytes(v, known)) for v in moved)


def _in_a_region(node: ir.Node | None, owners: Owners) -> bool:
    return node is not None and any(map(_joins, owners.get(node, ())))


def _joins(unit: Unit) -> bool:
    return not unit.kind and follows(unit.nodes[-1])


def work_of(unit: Unit, known: Extents = ()) -> cost.Work:
    """What the window of a unit has to do; symbolic extents count as `cost.estimate` assumes."""
    space = unit.space
    assert space is not None
    apart = math.prod(v.extent.value for v in space.phases)
    results = estimate(Dim.product(a.out for a in space.axes) * space.n, known)
    sizes = estimate(Dim.product(a.size for a in space.axes) * space.n, known)
    taps = estimate(Dim.product(a.kernel for a in space.axes), known)
    channels = space.depth * space.groups if space.kind in ("conv", "grouped") else space.filters
    return cost.Work(space.kind, algorithm(space), space.lanes, space.depth, space.filters, taps, results,
                     4 * sizes * channels,
                     4 * results * (space.filters * apart if space.plain else space.blocks * space.lanes),
                     plain=not space.blocked, phases=apart, narrow=space.plain is not None,
                     halves=half_vectors(space))
