"""Whether a set of nodes can be one kernel, and what that would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx_ir as ir

from tilegraph.cost import CostModel, Extents, RegionCost, estimate
from tilegraph.graph import GraphView
from tilegraph.ops.dtypes import BYTES
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.ops.space import Apply, Fold, Load, Place, Space, crossed, traffic, uneven
from tilegraph.rewrites.fusion.blocked import cut_out, free_in_runtime
from tilegraph.rewrites.fusion.copies import Copies
from tilegraph.rewrites.fusion.outer import slow_us
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.spec.dims import Dim

MAX_INPUTS = 48
_TURNED = 8.0  # vector instructions of a vector of a transposed operand: a load, four shuffles, strided lines of memory
_GATHERS = frozenset({"Gather", "GatherElements", "GatherND"})


@dataclass(frozen=True)
class Candidate:
    """A legal region: its nodes in order, its outputs, and the kernel that it would be.

    `clones` are those of its nodes that stay in the graph for others too.
    """

    nodes: tuple[ir.Node, ...]
    outputs: tuple[ir.Value, ...]
    lowered: Lowered
    space: Space
    clones: frozenset[ir.Node] = frozenset()


def outputs_of(nodes: Sequence[ir.Node], view: GraphView, clones: frozenset[ir.Node],
               copies: Copies | None = None) -> tuple[ir.Value, ...]:
    """The values of `nodes` that something else reads; nobody outside reads a clone.

    `copies`: of this view's nodes, in regions found before.
    """
    members = set(nodes)
    copies = copies or Copies()
    return tuple(v for node in nodes if node not in clones for v in node.outputs
                 if copies.read_outside(v, members, view))


def examine(nodes: Sequence[ir.Node], view: GraphView, verdicts: Verdicts[Space],
            clones: frozenset[ir.Node] = frozenset(), copies: Copies | None = None) -> Candidate:
    """The candidate, or `Decline` with the reason."""
    ordered = tuple(sorted(nodes, key=view.order.__getitem__))
    outputs = outputs_of(ordered, view, clones, copies)
    if not outputs:
        raise Decline("nothing reads its results")
    lowered, space = verdicts.ask(ordered, outputs)
    if len(lowered.inputs) > MAX_INPUTS:
        raise Decline(f"{len(lowered.inputs)} inputs are too many for one kernel")
    return Candidate(ordered, outputs, lowered, space, clones)


def work(space: Space, *, per_row: float = 1.0) -> float:
    """Vector instructions of one run, of up to 16 lanes; values that are equal in all columns count `per_row`."""
    cols = set(space.cols)
    lanes = max(min(16, estimate(space.lanes.extent)), 1)
    if space.across is not None:  # many rows at a time: their values fill lanes, too
        per_row = 1 / lanes
    rows = estimate(Dim.product(v.extent for v in space.rows))
    columns = estimate(Dim.product(v.extent for v in space.cols))
    turned = crossed(space) is not None
    depends: dict[int, bool] = {}
    total = 0.0
    for inst in space.insts():
        if isinstance(inst, Fold):
            moving = False
            total += rows * columns / lanes
        elif isinstance(inst, Load):
            moving = bool(inst.address.vars() & cols)
            if uneven(inst, space.lanes) is not None and turned:
                total += _TURNED * rows * columns / lanes
            elif uneven(inst, space.lanes) is not None:  # a load, an insertion and divisions for each element
                total += rows * (columns if moving else per_row * lanes) * (2 + 6 * len(inst.address.hidden()))
            else:
                total += rows * (columns / lanes if moving else per_row)
        elif isinstance(inst, Place):
            moving = bool(inst.index.vars() & cols)
        else:
            moving = any(depends[id(a)] for a in inst.args)
            if isinstance(inst, Apply):
                total += inst.point.cost * rows * (columns / lanes if moving else per_row)
        depends[id(inst)] = moving
    return total


def elements(value: ir.Value, known: Extents = ()) -> int:
    """The estimated number of elements, see `estimate`; 0 where the shape is unknown."""
    if value.shape is None:
        return 0
    return _count(tuple(d if isinstance(d, int) else d.value for d in value.shape), known)


@lru_cache(maxsize=16384)
def _count(dims: tuple[int | str | None, ...], known: Extents) -> int:
    return 0 if any(d is None for d in dims) else estimate(Dim.product(d for d in dims if d is not None), known)


def size_bytes(value: ir.Value, known: Extents = ()) -> int:
    name = "" if value.dtype is None else value.dtype.name.lower()
    return elements(value, known) * BYTES.get(name, 4)


def _moved(node: ir.Node) -> int:
    """Bytes that a node reads and writes in ONNX Runtime; of what is gathered from, only what is taken."""
    outputs = sum(size_bytes(v) for v in node.outputs)
    if node.op_type in _GATHERS:
        return 2 * outputs + sum(size_bytes(v) for v in node.inputs[1:] if v is not None)
    return outputs + sum(size_bytes(v) for v in node.inputs if v is not None)


def price(candidate: Candidate, view: GraphView, model: CostModel) -> RegionCost:
    """The region in ONNX Runtime, with what its own fusions save there, and as one kernel."""
    members = set(candidate.nodes)
    runtime = 0.0
    for node in candidate.nodes:
        if node in candidate.clones or free_in_runtime(node, view):
            continue
        moved = _moved(node)
        runtime += model.node_us(node.op_type, max((elements(v) for v in node.outputs), default=0), moved)
        runtime += slow_us(node, elements)
    read, written = traffic(candidate.space)
    inputs = [value for _, value in candidate.lowered.inputs if value.const_value is None]
    kernel = model.kernel_us(vectors=work(candidate.space), bytes_moved=estimate(read + written), inputs=len(inputs))
    kernel += sum(model.reorder_us(size_bytes(v)) for v in cut_out(
        [v for _, v in candidate.lowered.inputs], candidate.outputs, members, view))
    return RegionCost(runtime, kernel, len(candidate.nodes))
