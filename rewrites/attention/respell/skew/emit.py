"""The attention of blocks in plain nodes: rows of queries, keys and values are gathered, the mask is a choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.respell.edit import Builder, Shape, Site, rename, swap, take_over, whole
from tilegraph.rewrites.attention.respell.skew.bases import Base
from tilegraph.rewrites.attention.respell.skew.proof import Skewed, Term
from tilegraph.rewrites.attention.respell.skew.traced import Array
from tilegraph.spec.dims import Dim


def emit(site: Site, found: Skewed) -> None:
    """Puts the attention where its second product is."""
    node = found.second.node
    out = node.outputs[0]
    b = Builder(site, node)
    blocks, rows, columns = found.visible.shape
    q, k, v = (_windows(b, base, found.lanes, table) for base, table in
               zip(found.bases, (found.queries, found.keys, found.values), strict=True))
    depth, width = found.bases[0].depth, found.bases[2].depth
    grid = (*found.lanes, blocks, rows, columns)
    rank = len(grid)
    turned = b.add("Transpose", [k], (*found.lanes, blocks, depth, columns), k, perm=swap(rank))
    scores = b.add("MatMul", [q, turned], grid, q)
    for scale in found.scales:
        scores = _scaled(b, scale, scores, grid)
    for term in found.terms:
        scores = b.add("Add", [scores, _laid(b, term, found.lanes, -2)], grid, scores)
    if not found.visible.all():
        scores = b.add("Where", [_visible(b, found.visible), scores, b.scalar(-np.inf)], grid, scores)
    given_up = None if found.given_up is None else _laid(b, found.given_up, found.lanes, -1)
    zero = b.scalar(0.0)
    if given_up is not None:  # the scores of such a row are any that hide no key: each value counts, times 0
        scores = b.add("Where", [given_up, *((zero, scores) if found.when else (scores, zero))], grid, scores)
    weights = b.add("Softmax", [scores], grid, scores, axis=rank - 1)
    made = (*found.lanes, blocks, rows, width)
    product = b.add("MatMul", [weights, v], made, q)
    result = product
    if given_up is not None:
        nothing = b.add("Mul", [result, zero], made, q)
        result = b.add("Where", [given_up, *((nothing, result) if found.when else (result, nothing))], made, q)
    result = _in_place(b, found, result)
    name = node.name
    take_over(out, result)
    b.put()
    site.graph.remove(node, safe=True)
    rename(product, name)


def _scaled(b: Builder, scale: ir.Node, scores: ir.Value, grid: Sequence[int]) -> ir.Value:
    arrays = (None if v is None else constant_of(v) for v in reversed(scale.inputs))
    number = next(a for a in arrays if a is not None)
    return b.add(scale.op_type, [scores, b.scalar(float(number.reshape(-1)[0]))], grid, scores)


def _windows(b: Builder, base: Base, lanes: Shape, table: Array) -> ir.Value:
    """[lanes.., blocks, n, depth]: the rows `table`; where it is negative, any or zeros."""
    value, count, depth = base.value, base.count, base.depth
    if base.perm is not None:
        given = whole(value)
        assert given is not None
        value = b.add("Transpose", [value], [given[k] for k in base.perm], value, perm=list(base.perm))
    if base.between:
        n = len(lanes)
        value = _reshaped(b, value, (count, *lanes, depth))
        value = b.add("Transpose", [value], (*lanes, count, depth), value, perm=[*range(1, n + 1), 0, n + 1])
    else:
        value = _reshaped(b, value, (*lanes, count, depth))
    shape = (*lanes, *table.shape, depth)
    if table.size == count and (table.reshape(-1) == np.arange(count)).all():
        return _reshaped(b, value, shape)
    table, before, after = _whole(table, count)
    if before or after:
        none = [0] * len(lanes)
        value = b.add("Pad", [value, b.ints([*none, before, 0, *none, after, 0])],
                      (*lanes, before + count + after, depth), value)
    return b.add("Gather", [value, b.table(table)], shape, value, axis=len(lanes))


def _reshaped(b: Builder, value: ir.Value, shape: Sequence[Dim | int]) -> ir.Value:
    """At most one of the extents is symbolic."""
    sizes = [Dim.of(d).as_int() for d in shape]
    return b.add("Reshape", [value, b.ints([-1 if s is None else s for s in sizes])], shape, value)


def _whole(table: Array, count: int) -> tuple[Array, int, int]:
    """The table without holes, and how many rows lie before and behind those that there are.

    Evenly spaced rows go on beyond the ends; whatever else a hole may read is hidden.
    """
    known = table >= 0
    if known.all():
        return table, 0, 0
    columns = np.arange(table.shape[1])
    if known.any(1).all():
        start = np.where(known, table - columns, 0).max(1, where=known, initial=-(1 << 40))
        even = start[:, None] + columns
        if (even == table)[known].all():
            before, after = max(0, -int(even.min())), max(0, int(even.max()) + 1 - count)
            return even + before, before, after
    return np.maximum(table, 0), 0, 0


def _laid(b: Builder, term: Term, lanes: Shape, axis: int) -> ir.Value:
    """The elements of a term at [lanes.., blocks, rows, columns]; what its table lacks of these is of extent 1."""
    own = [d if has else Dim.of(1) for d, has in zip(lanes, term.lanes, strict=True)]
    count = Dim.of(term.count)
    value = _reshaped(b, term.value, (*own, count))
    value = b.add("Gather", [value, b.table(term.table)], (*own, *term.table.shape), value, axis=len(own))
    if term.table.ndim == 3:
        return value
    shape: list[Dim | int] = [*own, *term.table.shape]
    shape.insert(len(shape) + axis + 1, 1)
    return b.add("Unsqueeze", [value, b.ints([axis])], shape, value)


def _visible(b: Builder, visible: Array) -> ir.Value:
    """The mask [blocks, rows, columns], made of positions where it is a band of keys that are there."""
    blocks, rows, columns = visible.shape
    away = np.arange(columns)[None] - np.arange(rows)[:, None]
    keys: Array = np.any(visible, 1)
    band: Array = np.any(visible, 0)
    low, high = int(away[band].min()), int(away[band].max())
    if not (visible == (keys[:, None] & ((away >= low) & (away <= high)))).all():
        return b.table(visible)
    column, row = b.table(np.arange(columns)), b.table(np.arange(rows)[:, None])
    distance = b.add("Sub", [column, row], (rows, columns), column)
    bounds = [b.truth("GreaterOrEqual", [distance, b.table(np.array(low))], (rows, columns)),
              b.truth("LessOrEqual", [distance, b.table(np.array(high))], (rows, columns))]
    inside = b.truth("And", bounds, (rows, columns))
    return inside if keys.all() else b.truth("And", [inside, b.table(keys[:, None])], (blocks, rows, columns))


def _in_place(b: Builder, found: Skewed, result: ir.Value) -> ir.Value:
    """[lanes.., blocks, rows, width] in the shape of what the second product made."""
    shape = whole(found.second.node.outputs[0])
    assert shape is not None
    order = found.second.out  # of batch.., row, column
    laid = [shape[k] for k in order]
    value = _reshaped(b, result, laid)
    if order == tuple(range(len(order))):
        return value
    perm = [order.index(k) for k in range(len(order))]
    return b.add("Transpose", [value], shape, value, perm=perm)
