"""Follows moves: what a tensor is, as a table of elements of the value that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.respell.skew.places import Places, extents_of, places
from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable, per_symbol, varies
from tilegraph.rewrites.attention.respell.skew.traced import (
    Array,
    Traced,
    chosen,
    constant,
    filled,
    joined,
    leaf,
    padded,
    reshaped,
    taken,
    transposed,
    widened,
    with_lanes,
)

_FAR = (1 << 31) - 1  # where a Slice ends that takes all, at least


def sources(value: ir.Value) -> list[ir.Value]:
    """What `value` is made from by moves alone, constants left out, in the order in which they are met."""
    found: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if one in seen or constant_of(one) is not None:
            continue
        seen.add(one)
        node = one.producer()
        if node is None or not moves(node):
            found[one] = None
            continue
        stack.extend(reversed(list(_operands(node))))
    return list(found)


def moves(node: ir.Node) -> bool:
    """Whether a node only moves elements; one that takes constants in may still turn out not to."""
    if node.domain != "" or (node.op_type not in _RULES and node.op_type != "Split"):
        return False
    if node.op_type in ("Cast", "Where"):  # constants are cast, and chosen by
        return _is_constant(node.inputs[0])
    return node.op_type != "Einsum" or _ones(node) is not None


def _operands(node: ir.Node) -> Iterator[ir.Value]:
    """The inputs of which elements are moved."""
    match node.op_type:
        case "Concat":
            wanted = range(len(node.inputs))
        case "Where":
            wanted = range(1, 3)
        case "ScatterND":
            wanted = range(0, 3, 2)
        case "Einsum":
            side = _ones(node)
            wanted = range(1) if side == 1 else range(1, 2)
        case "ConstantOfShape":
            wanted = range(0)
        case _:
            wanted = range(1)
    yield from (v for k in wanted if (v := node.inputs[k]) is not None)


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and (constant_of(value) is not None or not sources(value))


def _ones(node: ir.Node) -> int | None:
    """Which operand of an Einsum of two is constant, and may be all ones; None for neither."""
    if len(node.inputs) != 2:
        return None
    return next((k for k in (0, 1) if _is_constant(node.inputs[k])), None)


class Tracer:
    """Tables of elements of `source`, whose lanes are `lanes` (see `leaf`)."""

    def __init__(self, source: ir.Value, lanes: Sequence[int] | None = None) -> None:
        self.source = source
        self.lanes = lanes
        self.made: dict[ir.Value, Traced] = {}

    def trace(self, value: ir.Value) -> Traced:
        """`value` as a table of elements of the source; `Untraceable` with the reason where it is more than that."""
        if value not in self.made:
            self.made[value] = self._trace(value)
        return self.made[value]

    def _trace(self, value: ir.Value) -> Traced:
        if value is self.source:
            return leaf(extents_of(value), self.lanes)
        array = constant_of(value)
        if array is not None:
            return constant(np.asarray(array))
        node = value.producer()
        if node is None or not moves(node):
            raise Untraceable(f"{value.name} is made by more than moving elements")
        made = _split(self, node, value.index() or 0) if node.op_type == "Split" else _RULES[node.op_type](self, node)
        if made.shape != extents_of(value):
            raise Untraceable(f"{node.op_type} {node.name} makes another shape than is known of it")
        return made

    def given(self, node: ir.Node, index: int) -> Traced:
        value = node.inputs[index]
        assert value is not None
        return self.trace(value)


def _numbers(node: ir.Node, index: int) -> list[int] | None:
    """A list of integers that is an input."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    array = constant_of(value)
    if array is None:
        raise Untraceable(f"only a run knows what {node.op_type} {node.name} does")
    return [int(v) for v in np.asarray(array).reshape(-1)]


def _to_its_shape(t: Tracer, node: ir.Node) -> Traced:
    return reshaped(t.given(node, 0), extents_of(node.outputs[0]))


def _expand(t: Tracer, node: ir.Node) -> Traced:
    return widened(t.given(node, 0), extents_of(node.outputs[0]))


def _transpose(t: Tracer, node: ir.Node) -> Traced:
    x = t.given(node, 0)
    perm = node.attributes.get("perm")
    return transposed(x, list(range(x.rank))[::-1] if perm is None else list(perm.as_ints()))


def _identity(t: Tracer, node: ir.Node) -> Traced:
    return t.given(node, 0)


def _cast(t: Tracer, node: ir.Node) -> Traced:
    """Of constants: to bool, or to what holds them."""
    x = t.given(node, 0)
    if not x.is_constant:
        raise Untraceable(f"Cast {node.name} changes elements")
    if node.outputs[0].dtype == ir.DataType.BOOL:
        return replace(x, numbers=(x.numbers != 0).astype(np.float64))
    if node.outputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.INT64) or (x.numbers % 1).any():
        raise Untraceable(f"Cast {node.name} rounds")
    return x


def _filled(t: Tracer, node: ir.Node) -> Traced:
    attribute = node.attributes.get("value")
    number = 0.0 if attribute is None else float(attribute.as_tensor().numpy().reshape(-1)[0])
    return filled(extents_of(node.outputs[0]), number)


def _slice(t: Tracer, node: ir.Node) -> Traced:
    x = t.given(node, 0)
    starts, ends, axes, steps = (_numbers(node, k) for k in range(1, 5))
    assert starts is not None
    assert ends is not None
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[k] if axes is not None else k) % x.rank
        step = steps[k] if steps is not None else 1
        if step < 1:
            raise Untraceable(f"Slice {node.name} runs backwards")
        if varies(x.shape[axis]) and ((start, step) != (0, 1) or end < _FAR):
            raise Untraceable(f"Slice {node.name} cuts batch or heads")
        chosen_ = np.arange(x.shape[axis])[slice(start, end, step)]
        if len(chosen_) != x.shape[axis]:
            x = taken(x, axis, chosen_)
    return x


def _split(t: Tracer, node: ir.Node, output: int) -> Traced:
    x = t.given(node, 0)
    attribute = node.attributes.get("axis")
    axis = (0 if attribute is None else attribute.as_int()) % x.rank
    sizes = [extents_of(o)[axis] for o in node.outputs]
    start = sum(sizes[:output])
    return taken(x, axis, np.arange(start, start + sizes[output]))


def _pad(t: Tracer, node: ir.Node) -> Traced:
    x = t.given(node, 0)
    mode = node.attributes.get("mode")
    pads, axes = _numbers(node, 1), _numbers(node, 3)
    filler = node.inputs[2] if len(node.inputs) > 2 else None
    number = np.zeros(1) if filler is None else constant_of(filler)
    if pads is None or number is None or (mode is not None and mode.as_string() != "constant"):
        raise Untraceable(f"Pad {node.name} adds more than a constant")
    along = range(x.rank) if axes is None else [a % x.rank for a in axes]
    before, after = [0] * x.rank, [0] * x.rank
    for k, axis in enumerate(along):
        before[axis], after[axis] = pads[k], pads[k + len(along)]
    return padded(x, before, after, float(np.asarray(number).reshape(-1)[0]))


def _concat(t: Tracer, node: ir.Node) -> Traced:
    pieces = [t.given(node, k) for k in range(len(node.inputs))]
    return joined(pieces, node.attributes["axis"].as_int() % pieces[0].rank)


def _where(t: Tracer, node: ir.Node) -> Traced:
    return chosen(*(t.given(node, k) for k in range(3)))


def _gather(t: Tracer, node: ir.Node) -> Traced:
    x, index = t.given(node, 0), node.inputs[1]
    assert index is not None
    attribute = node.attributes.get("axis")
    axis = (0 if attribute is None else attribute.as_int()) % x.rank
    shape = extents_of(index)
    same = x.ids.size == x.numbers.size == 1 and x.is_constant
    if x.rank == 1 and len(shape) > 1 and shape[0] > 1 and not x.steps \
            and (same or (x.ids.size == x.shape[0] and (x.ids == np.arange(x.shape[0])).all())):
        try:
            made = _evenly(places(index, frozenset({0})))
        except Untraceable:
            if varies(x.shape[0]):
                raise
        else:
            if same and not _inside(made, x.shape[0]):
                raise Untraceable("places lie outside of what they are read from, or may in a run")
            return filled(shape, float(x.numbers[0])) if same else made
    where = places(index)
    flat = np.broadcast_to(where.first, shape).reshape(-1)
    flat = np.where(flat < 0, flat + x.shape[axis], flat)
    if flat.size and (flat.min() < 0 or flat.max() >= x.shape[axis]):
        raise Untraceable(f"Gather {node.name} reads outside of what it reads from")
    return reshaped(taken(x, axis, flat), (*x.shape[:axis], *shape, *x.shape[axis + 1:]))


def _evenly(where: Places) -> Traced:
    """Elements of a flat value at places that grow by the same along a lane; whether they are there is not said."""
    growth = where.growth[0]
    step = int(growth.reshape(-1)[0])
    if (growth != step).any() or step < 0 or where.first.min() < 0:
        raise Untraceable("places do not grow evenly")
    return Traced(where.shape, np.broadcast_to(where.first, where.plain), np.zeros((1,) * len(where.shape)), {0: step})


def _inside(x: Traced, count: int) -> bool:
    """Whether elements lie in a flat value of `count`, for any number of lanes that both may have."""
    step, lanes, size = x.steps[0], per_symbol(x.shape[0]), per_symbol(count)
    return varies(count) == varies(x.shape[0]) and int(x.ids.max()) + step * (lanes - 1) < size \
        and (not varies(count) or step * lanes <= size)


def _scatter(t: Tracer, node: ir.Node) -> Traced:
    """Writes updates [rows.., tail..] over data [indexed.., tail..]."""
    data, updates, index = t.given(node, 0), t.given(node, 2), node.inputs[1]
    reduction = node.attributes.get("reduction")
    assert index is not None
    if reduction is not None and reduction.as_string() != "none":
        raise Untraceable(f"ScatterND {node.name} adds up")
    *rows, depth = extents_of(index)
    count = len(rows)
    if updates.shape != (*rows, *data.shape[depth:]) or not updates.ids.size or 0 in updates.shape:
        raise Untraceable(f"ScatterND {node.name} writes nothing, or another shape than it should")
    lanes = dict(updates.steps) or _alike(data, updates.shape)
    where = places(index, frozenset(k for k in lanes if k < count))
    first = np.broadcast_to(where.first, where.plain)
    of_axis = {k - count + depth: k for k in lanes if k >= count}
    for lane, growth in where.growth.items():
        axes = [p for p in range(depth) if np.broadcast_to(growth, where.plain)[..., p].any()]
        if len(axes) != 1 or (np.broadcast_to(growth, where.plain)[..., axes[0]] != 1).any() \
                or first[..., axes[0]].any() or updates.shape[lane] != data.shape[axes[0]]:
            raise Untraceable(f"ScatterND {node.name} mixes batch or heads")
        of_axis[axes[0]] = lane
    data = with_lanes(data, {p: lanes[lane] for p, lane in of_axis.items()})
    if set(data.steps) != set(of_axis):
        raise Untraceable(f"ScatterND {node.name} writes batch or heads one by one")
    updates = with_lanes(updates, {lane: data.steps[p] for p, lane in of_axis.items()})
    flat = _addresses(first, data.plain, [0 if p in of_axis else d for p, d in enumerate(data.shape[:depth])])
    tail = prod(data.plain[depth:])
    flat = (flat[:, None] * tail + np.arange(tail)).reshape(-1)
    ids, numbers = data.full_ids().reshape(-1).copy(), data.full_numbers().reshape(-1).copy()
    written = np.zeros(ids.size, bool)
    written[flat] = True
    if written.sum() != flat.size:
        raise Untraceable(f"ScatterND {node.name} writes an element twice")
    ids[flat], numbers[flat] = updates.full_ids().reshape(-1), updates.full_numbers().reshape(-1)
    return Traced(data.shape, ids.reshape(data.plain), numbers.reshape(data.plain), data.steps)


def _alike(data: Traced, rows: tuple[int, ...]) -> dict[int, int]:
    """The axes of `rows` that look like the lanes of `data`, in order."""
    found: dict[int, int] = {}
    start = 0
    for axis, step in sorted(data.steps.items()):
        lane = next((k for k in range(start, len(rows)) if rows[k] == data.shape[axis]), None)
        if lane is None:
            raise Untraceable("constants are written to single ones of batch or heads")
        found[lane], start = step, lane + 1
    return found


def _addresses(first: Array, plain: tuple[int, ...], extents: list[int]) -> Array:
    """Row-major places of index tuples, the last axis of `first`; lanes have an extent of 0."""
    flat = np.zeros(first.shape[:-1], np.int64)
    for p, extent in enumerate(extents):
        at = first[..., p]
        at = np.where(at < 0, at + extent, at)
        if extent and (at.min() < 0 or at.max() >= extent):
            raise Untraceable("ScatterND writes outside of its data")
        flat = flat * plain[p] + at
    return flat.reshape(-1)


def _times_one(t: Tracer, node: ir.Node) -> Traced:
    """An Einsum of which one operand is all ones and that adds nothing up."""
    side = _ones(node)
    assert side is not None
    ones, x = t.given(node, side), t.given(node, 1 - side)
    text = node.attributes["equation"].as_string().replace(" ", "")
    terms, arrow, out = text.partition("->")
    labels = terms.split(",")
    extents = dict(zip(labels[0], extents_of(_value(node, 0)), strict=True))
    extents |= {k: d for k, d in zip(labels[1], extents_of(_value(node, 1)), strict=True) if d != 1 or k not in extents}
    own = labels[1 - side]
    if not arrow or "." in text or len(set(own)) != len(own) or not ones.is_constant or (ones.numbers != 1).any() \
            or any(d != 1 for k, d in extents.items() if k not in out):
        raise Untraceable(f"Einsum {node.name} is a product")
    kept = [k for k in out if k in own]
    x = transposed(x, [own.index(k) for k in (*kept, *(k for k in own if k not in kept))])
    sizes = dict(zip((*kept, *(k for k in own if k not in kept)), x.shape, strict=True))
    x = reshaped(x, [sizes.get(k, 1) for k in out])
    return widened(x, [extents[k] for k in out])


def _value(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


_RULES: dict[str, Callable[[Tracer, ir.Node], Traced]] = {
    "Cast": _cast, "Concat": _concat, "ConstantOfShape": _filled, "Einsum": _times_one, "Expand": _expand,
    "Flatten": _to_its_shape, "Gather": _gather, "Identity": _identity, "Pad": _pad, "Reshape": _to_its_shape,
    "ScatterND": _scatter, "Slice": _slice, "Squeeze": _to_its_shape, "Transpose": _transpose,
    "Unsqueeze": _to_its_shape, "Where": _where,
}
