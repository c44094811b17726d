"""Values in blocked layout that are joined: their channels one after the other, or their sum, upsampled on the way.

The body says so in plain ONNX: every part is brought out of its blocks, repeated by a nearest Resize if it is smaller,
then Concat or Add, and the result goes into blocks. A Gather behind the Concat, or behind a single part, chooses
channels and their order. Parts need not fill whole blocks. Extents that are equal in every valid run, but not provably,
are left to the run: `JoinSpace.equal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.ops.conv.form import block, unblock
from tilegraph.ops.conv.upsample import factors
from tilegraph.ops.lower import domain_of
from tilegraph.ops.lower.base import constant_of, shape_of
from tilegraph.ops.prims import Decline, Input, Lowered, Prim
from tilegraph.spec.dims import Dim, Shape

_VIEWS = frozenset({"Transpose", "Reshape", "Slice", "Pad"})


@dataclass(frozen=True, eq=False)
class Joined(Prim):
    """[N, blocks, *spatial, L] of `parts`, blocked too, of which part k has `channels[k]` channels and is repeated
    `factors[k]` times along each spatial dim. `kind`: concat or sum (of one part or more). `order`: the channels of the
    concatenation that the result has; None for all of them as they are."""

    kind: str = "concat"
    parts: tuple[Input, ...] = ()
    channels: tuple[int, ...] = ()
    factors: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] | None = None

    @property
    def args(self) -> tuple[Prim, ...]:
        return self.parts

    def text(self) -> str:
        return f"{self.kind}{self.channels}{self.factors}" + ("" if self.order is None else str(self.order))


@dataclass(frozen=True)
class Part:
    """An input of a join: the tensor `slot` [N, blocks, rows, columns, L], each element `down` times `across`."""

    slot: int
    channels: int
    rows: Dim
    columns: Dim
    down: int
    across: int


@dataclass(frozen=True)
class JoinSpace:
    """The result [n, blocks, rows, columns, lanes] and its parts. `equal`: extents that must be equal. `order`: see
    `Joined`."""

    kind: str
    lanes: int
    n: Dim
    channels: int
    rows: Dim
    columns: Dim
    parts: tuple[Part, ...]
    equal: tuple[tuple[Dim, Dim], ...]
    order: tuple[int, ...] | None = None

    @property
    def blocks(self) -> int:
        return -(-self.channels // self.lanes)


def lower_join(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
    """Lowers `nodes` (in topological order); `Decline` where they are no join of blocked values."""
    made = {v: node for node in nodes for v in node.outputs}
    (output,) = outputs
    lanes = shape_of(output)[-1].as_int() if output.shape is not None and len(output.shape) else None
    result, views = _behind(output, made)
    root = made.get(result)
    if root is None or lanes is None or not _equal(views, block(_alike(result), lanes).nodes):
        raise Decline("the result of the join is not brought into blocks")
    order = None
    if root.op_type == "Gather" and domain_of(root) == "":
        order, result = _chosen(root)
        root = made.get(result, root)
    chosen = order is not None and root.op_type != "Concat"
    concat = chosen or (root.op_type == "Concat" and root.attributes["axis"].as_int() == 1)
    if domain_of(root) != "" or not (concat or root.op_type in ("Add", "Resize")):
        raise Decline(f"{root.op_type} joins no values")
    operands = [v for v in root.inputs if v is not None]
    if chosen or root.op_type == "Resize":
        operands = [result]
    found = [_part(operand, made, lanes) for operand in operands]
    if not concat and len({channels for _, channels, _ in found}) != 1:
        raise Decline("a sum of values with different channels")
    slots = list(dict.fromkeys(value for value, _, _ in found))
    rename = _names(slots)
    inputs = {value: Input(tuple(rename.get(d, d) for d in shape_of(value)), "float32", slot, "float")
              for slot, value in enumerate(slots)}
    parts = tuple(inputs[value] for value, _, _ in found)
    channels = tuple(count for _, count, _ in found)
    repeats = tuple(f for _, _, f in found)
    first = parts[0].shape
    total = len(order) if order is not None else sum(channels) if concat else channels[0]
    if order is not None and not (order and 0 <= min(order) <= max(order) < sum(channels)):
        raise Decline(f"channels {sorted(order)} are chosen of {sum(channels)}")
    spatial = tuple(d * f for d, f in zip(first[2:-1], repeats[0], strict=True))
    shape = (first[0], Dim.of(-(-total // lanes)), *spatial, Dim.of(lanes))
    joined = Joined(shape, "float32", "concat" if concat else "sum", parts, channels, repeats, order)
    return Lowered((joined,), ("float",), tuple((slot, value) for slot, value in enumerate(slots)))


def plan_join(lowered: Lowered) -> JoinSpace:
    """The space of the join that `lowered` is, or `Decline`."""
    (joined,) = lowered.outputs
    if not isinstance(joined, Joined):
        raise Decline("no values are joined")
    n, rows, columns = _sizes(joined.shape)
    parts, pairs = [], []
    for source, channels, repeats in zip(joined.parts, joined.channels, joined.factors, strict=True):
        batch, high, wide = _sizes(source.shape)
        down, across = repeats if len(repeats) == 2 else (1, *repeats)
        parts.append(Part(source.slot, channels, high, wide, down, across))
        pairs += [(n, batch), (rows, high * down), (columns, wide * across)]
    for a, b in pairs:
        static = a.as_int() is not None and b.as_int() is not None
        if a != b and (static or a == 1 or b == 1):  # 1 may be a broadcast, in a sum
            raise Decline(f"extents {a} and {b} are joined")
    kept = tuple(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
    channels = sum(joined.channels) if joined.kind == "concat" else joined.channels[0]
    if joined.order is not None:
        channels = len(joined.order)
    return JoinSpace(joined.kind, joined.shape[-1].value, n, channels, rows, columns, tuple(parts), kept, joined.order)


def _chosen(node: ir.Node) -> tuple[tuple[int, ...], ir.Value]:
    """The channels that the Gather `node` chooses, and of what."""
    source, places = node.inputs[:2]
    array = None if places is None else constant_of(places)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if source is None or array is None or array.ndim != 1 or axis != 1:
        raise Decline("Gather of something else than constant channels")
    return tuple(int(c) for c in array), source


def _part(value: ir.Value, made: Mapping[ir.Value, ir.Node], lanes: int) -> tuple[ir.Value, int, tuple[int, ...]]:
    """(blocked tensor, its channels, how often each element stands) of one operand."""
    repeats: tuple[int, ...] | None = None
    node = made.get(value)
    if node is not None and node.op_type == "Resize":
        repeats = tuple(factors(node))
        first = node.inputs[0]
        assert first is not None
        value = first
    source, views = _behind(value, made)
    channels = shape_of(value)[1].as_int()
    if source in made or channels is None or source.dtype != ir.DataType.FLOAT or source.shape is None \
            or source.shape[-1] != lanes or not _equal(views, unblock(_alike(source), channels).nodes):
        raise Decline(f"{value.name} is joined, which is not brought out of blocks of {lanes} channels")
    return source, channels, repeats or (1,) * (len(source.shape) - 3)


def _behind(value: ir.Value, made: Mapping[ir.Value, ir.Node]) -> tuple[ir.Value, list[ir.Node]]:
    """What `value` is a view of, and the views in order."""
    views: list[ir.Node] = []
    while value in made and made[value].op_type in _VIEWS:
        views.append(made[value])
        first = made[value].inputs[0]
        assert first is not None
        value = first
    return value, views[::-1]


def _equal(found: Sequence[ir.Node], wanted: Sequence[ir.Node]) -> bool:
    """Whether two chains do the same: operators, attributes and constants."""
    wanted = [n for n in wanted if n.op_type != "Constant"]
    return len(found) == len(wanted) and all(_facts(a) == _facts(b) for a, b in zip(found, wanted, strict=True))


def _facts(node: ir.Node) -> tuple[object, ...]:
    constants = [None if v is None else constant_of(v) for v in node.inputs[1:]]
    return (node.op_type, sorted((a.name, tuple(np.atleast_1d(a.value))) for a in node.attributes.values()),
            [None if c is None else c.tolist() for c in constants])


def _alike(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, shape=value.shape, type=value.type)


def _names(values: Sequence[ir.Value]) -> dict[Dim, Dim]:
    """Dims such as "past+seq" whose parts no input binds, as one symbol each (as `lower_region` has it)."""
    dims = [d for v in values for d in shape_of(v)]
    bare = {d.bare_symbol for d in dims}
    return {d: Dim.symbol(str(d)) for d in dims if d.bare_symbol is None and not d.symbols <= bare}


def _sizes(shape: Shape) -> tuple[Dim, Dim, Dim]:
    """(batch, rows, columns) of a blocked shape with one or two spatial dims."""
    return shape[0], shape[2] if len(shape) == 5 else Dim.of(1), shape[-2]
