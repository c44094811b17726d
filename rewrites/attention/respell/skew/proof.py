"""Whether what lies around a softmax is attention, whatever way its scores and weights were moved.

The softmax's rows hold scores, elements of one product of matrices, and numbers; the second product reads its weights,
elements of the softmax. Put together: row r and column t of a block of the second product read the weight of a score of
one query and one key. It is attention where

- all weights of row r are of one row of the softmax, and all scores of that row are of one query;
- all weights of column t are of one key;
- every score of that softmax row is read once;
- what else the softmax's row holds is minus infinity.

Then block c is the attention of `queries[c]` to `keys[c]` with the mask `visible[c]`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.respell.edit import whole
from tilegraph.rewrites.attention.respell.skew.bases import Base, base_of
from tilegraph.rewrites.attention.respell.skew.moves import Tracer, sources
from tilegraph.rewrites.attention.respell.skew.places import extents_of
from tilegraph.rewrites.attention.respell.skew.product import Product, product_of
from tilegraph.rewrites.attention.respell.skew.stand_in import PRIMES, Untraceable, standing_in
from tilegraph.rewrites.attention.respell.skew.traced import Array, Traced, transposed, widened
from tilegraph.spec.dims import Dim

_SKEWS = frozenset({"Concat", "Gather", "Pad", "ScatterND", "Slice"})


@dataclass(frozen=True)
class Term:
    """What is added to the scores, or decides over a row: elements `table` of `value`, in lanes of its own.

    table: element numbers [blocks, columns], [blocks, rows] or [blocks, rows, columns]. lanes: whether it has each of
    the attention's lanes. count: elements of one lane.
    """

    value: ir.Value
    table: Array
    lanes: tuple[bool, ...]
    count: int

    @property
    def key(self) -> Hashable:
        return self.value, self.table.shape, self.table.tobytes(), self.lanes, self.count


@dataclass(frozen=True)
class Skewed:
    """An attention of blocks.

    lanes: the extents of batch and heads. bases: of queries, keys and values, whose rows are queries: int64 [blocks,
    rows], and keys and values: int64 [blocks, columns] (negative: none). visible: bool [blocks, rows, columns].
    scales: the nodes between the first product and the moves, nearest first. given_up: rows whose weights are 0 where
    its value is `when`.
    """

    second: Product
    softmax: ir.Node
    lanes: tuple[Dim, ...]
    bases: tuple[Base, Base, Base]
    queries: Array
    keys: Array
    values: Array
    visible: Array
    scales: tuple[ir.Node, ...]
    terms: tuple[Term, ...]
    given_up: Term | None
    when: bool

    @property
    def key(self) -> Hashable:
        """Equal where two proofs found the same attention."""
        tables = (self.queries, self.keys, self.values, self.visible)
        return (self.second.node, self.lanes, tuple(b.key for b in self.bases), self.scales, self.when,
                tuple((t.shape, t.tobytes()) for t in tables), tuple(t.key for t in self.terms),
                None if self.given_up is None else self.given_up.key)


@dataclass(frozen=True)
class _Rows:
    """The softmax, and what takes back its weights in some rows."""

    softmax: ir.Node
    condition: ir.Value | None
    when: bool


def read(node: ir.Node) -> Skewed:
    """The attention of which `node` is the second product; `Untraceable` with the reason."""
    shapes = [whole(v) for v in node.inputs]
    symbols = sorted({s for shape in shapes if shape is not None for d in shape for s in d.symbols})
    if not symbols:
        return _read(node)
    if len(symbols) > 1:
        raise Untraceable(f"only a run knows the extents {', '.join(symbols)}")
    found = []
    for prime in PRIMES:
        with standing_in(symbols[0], prime):
            found.append(_read(node))
    if found[0].key != found[1].key:
        raise Untraceable(f"what is read depends on the extent {symbols[0]}")
    return found[0]


def _read(node: ir.Node) -> Skewed:
    second = product_of(node)
    weights = second.sides[0]
    made = sources(weights)
    if len(made) != 1 or made[0] is weights:
        raise Untraceable(f"the weights of {node.op_type} {node.name} come from {len(made)} values")
    rows = _rows(made[0])
    scores, terms = _terms(rows.softmax.inputs[0])
    first, scales, source = scores
    if len(first.out) < 3 or first.out[0] != 0:
        raise Untraceable("the scores have no leading batch")
    if not any(op in _SKEWS for op in (*_way(weights, made[0]), *_way(terms[0], source))):
        raise Untraceable("nothing but views lies between the products")
    shape = extents_of(made[0])
    x = widened(Tracer(source).trace(terms[0]), shape)
    lanes = _lanes(x, prod(leaf_plain(source)))
    if prod(lanes) != extents_of(source)[0]:
        raise Untraceable("scores of some batches or heads are not read")
    axes = sorted(x.steps)
    table = Tracer(made[0], axes).trace(weights)
    plain = x.plain
    if _lanes(table, prod(plain)) and prod(_lanes(table, prod(plain))) != prod(lanes):
        raise Untraceable("the second product reads other batches or heads than there are")
    laid = transposed(table, second.left)
    if set(laid.steps) != set(range(len(laid.steps))):
        raise Untraceable("the second product has batch and heads behind its blocks")
    blocks = (-1, *(laid.plain[k] for k in (-2, -1)))
    read_ = np.ascontiguousarray(laid.full_ids()).reshape(blocks)
    if (laid.full_numbers()[laid.full_ids() < 0] != 0).any():
        raise Untraceable("numbers stand for weights")
    at = np.maximum(read_, 0)
    score = np.where(read_ < 0, -1, x.full_ids().reshape(-1)[at])
    visible = score >= 0
    if (x.full_numbers()[x.full_ids() < 0] != -np.inf).any():
        raise Untraceable("a finite number stands for a score")
    added = []
    for value in terms[1:]:
        term, visible = _added(value, shape, axes, at, visible)
        added += term
    _complete(x, read_, visible, plain)
    sides = [base_of(side, axes, prod(lanes)) for side, axes in zip(first.sides, (first.left, first.keys), strict=True)]
    queries, keys = _queries_and_keys(first, score, visible, *sides)
    values = base_of(second.sides[1], second.right, prod(lanes))
    given_up = None
    if rows.condition is not None:
        given_up = _given_up(rows.condition, shape, axes, read_, visible)
    dims = whole(made[0])
    assert dims is not None
    return Skewed(second, rows.softmax, tuple(dims[k] for k in axes), (sides[0], sides[1], values), queries, keys,
                  values.rows.reshape(keys.shape), visible, scales, tuple(added), given_up, rows.when)


def leaf_plain(value: ir.Value) -> tuple[int, ...]:
    """The shape of one lane."""
    shape = extents_of(value)
    return shape[1:] if len(shape) > 1 else shape


def _way(value: ir.Value, source: ir.Value) -> Iterator[str]:
    """The operators from `source` to `value`."""
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        node = one.producer()
        if one is source or one in seen or node is None:
            continue
        seen.add(one)
        yield node.op_type
        stack.extend(v for v in node.inputs if v is not None)


def _rows(value: ir.Value) -> _Rows:
    node = value.producer()
    if node is not None and node.op_type == "Where" and node.domain == "":
        condition, one, other = node.inputs
        for zero, kept, when in ((one, other, True), (other, one, False)):
            array = None if zero is None else constant_of(zero)
            if array is not None and kept is not None and condition is not None and not np.asarray(array).any():
                found = _rows(kept)
                if found.condition is None and extents_of(kept) == extents_of(value):
                    return _Rows(found.softmax, condition, when)
    if node is not None and node.op_type == "Softmax" and node.domain == "":
        axis = node.attributes.get("axis")
        if (-1 if axis is None else axis.as_int()) in (-1, len(extents_of(value)) - 1):
            return _Rows(node, None, False)
    raise Untraceable(f"{value.name}, of which the weights are, is no softmax of rows")


def _terms(value: ir.Value | None) -> tuple[tuple[Product, tuple[ir.Node, ...], ir.Value], list[ir.Value]]:
    """((product, scales behind it, its scaled result), [the term with the scores, the other terms])."""
    assert value is not None
    terms = [value]
    while (node := terms[0].producer()) is not None and node.op_type == "Add" and node.domain == "":
        one, other = node.inputs
        assert one is not None
        assert other is not None
        terms[:1] = [one, other]
        if _scores(one) is None:
            terms[:2] = [other, one]
    found = _scores(terms[0])
    if found is None:
        raise Untraceable("the scores are not the result of one product that is moved")
    return found, terms


def _scores(value: ir.Value) -> tuple[Product, tuple[ir.Node, ...], ir.Value] | None:
    made = sources(value)
    if len(made) != 1:
        return None
    scales: list[ir.Node] = []
    node = made[0].producer()
    while node is not None and node.op_type in ("Mul", "Div") and node.domain == "":
        arrays = [None if v is None else constant_of(v) for v in node.inputs]
        scale = next((k for k in (1, 0) if (a := arrays[k]) is not None and a.size == 1), None)
        source = None if scale is None else node.inputs[1 - scale]
        if scale is None or source is None or (scale == 0 and node.op_type == "Div"):
            return None
        scales.insert(0, node)
        node = source.producer()
    try:
        return None if node is None else (product_of(node), tuple(scales), made[0])
    except Untraceable:
        return None


def _lanes(x: Traced, size: int) -> tuple[int, ...]:
    """The extents of the lanes, which must run through those of the source in order; `size`: elements of one."""
    inner = size
    for axis in sorted(x.steps, reverse=True):
        if x.steps[axis] != inner:
            raise Untraceable("batch and heads change places")
        inner *= x.shape[axis]
    return tuple(x.shape[k] for k in sorted(x.steps))


def _own_lanes(x: Traced, axes: list[int], size: int) -> tuple[bool, ...]:
    """Which of the lanes `axes` a value that is broadcast has."""
    if any(k not in axes for k in x.steps) or any(x.ids.shape[k] != 1 or x.numbers.shape[k] != 1 for k in axes):
        raise Untraceable("a mask differs among batch or heads in a way of its own")
    _lanes(x, size)
    return tuple(k in x.steps for k in axes)


def _table(x: Traced, axes: list[int]) -> tuple[Array, Array]:
    """Elements and numbers at each place of one lane, flat."""
    shape = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
    return np.broadcast_to(x.ids, shape).reshape(-1), np.broadcast_to(x.numbers, shape).reshape(-1)


def _followed(value: ir.Value, shape: tuple[int, ...],
              axes: list[int]) -> tuple[ir.Value, Array, Array, tuple[bool, ...], int]:
    """(its source, elements and numbers at each place of one lane, which lanes it has, elements of one lane)."""
    made = sources(value)
    if len(made) > 1:
        raise Untraceable(f"a mask is put together of {len(made)} values")
    source = made[0] if made else value
    try:
        return source, *_placed(Tracer(source).trace(value), source, shape, axes)
    except Untraceable:  # a view of it as one row, which places lay out in lanes again, or one that has no batch
        return source, *_placed(Tracer(source, ()).trace(value), source, shape, axes)


def _placed(x: Traced, source: ir.Value, shape: tuple[int, ...],
            axes: list[int]) -> tuple[Array, Array, tuple[bool, ...], int]:
    x = widened(x, shape)
    count = prod(extents_of(source)) // prod(x.shape[k] for k in x.steps)
    lanes = _own_lanes(x, axes, count)
    if x.ids.max() >= count:
        raise Untraceable("a mask is read beyond its end")
    return *_table(x, axes), lanes, count


def _added(value: ir.Value, shape: tuple[int, ...], axes: list[int], at: Array,
           visible: Array) -> tuple[list[Term], Array]:
    """What a term adds, and what is visible with it."""
    source, ids, numbers, lanes, count = _followed(value, shape, axes)
    ids, numbers = ids[at], numbers[at]
    visible = visible & ((ids >= 0) | (numbers != -np.inf))
    known = ids[visible]
    if (known < 0).any():
        if (known >= 0).any() or numbers[visible].any():
            raise Untraceable("a mask is a number here and a value there")
        return [], visible
    columns = _same(ids, visible, 1)
    table = np.where(visible, ids, 0) if columns is None else np.maximum(columns, 0)
    return [Term(source, table, lanes, count)], visible


def _same(table: Array, visible: Array, axis: int) -> Array | None:
    """What all visible entries along `axis` are, -1 where there is none; None where they differ."""
    found = np.where(visible, table, -1).max(axis)
    return found if (np.where(visible, table, np.expand_dims(found, axis)) == np.expand_dims(found, axis)).all() \
        else None


def _complete(x: Traced, weights: Array, visible: Array, plain: tuple[int, ...]) -> None:
    """That each row of weights holds all scores of one row of the softmax, each once."""
    columns = plain[-1]
    row = _same(weights // columns, weights >= 0, 2)
    if row is None or (row < 0).any():
        raise Untraceable("a row of weights is of several rows of the softmax, or of none")
    scores = (x.full_ids() >= 0).reshape(-1, columns)
    if not visible.any(2).all():
        raise Untraceable("a row has no score")
    order = np.sort(np.where(visible, weights, -1), axis=2)
    if ((order[..., 1:] == order[..., :-1]) & (order[..., 1:] >= 0)).any():
        raise Untraceable("a weight is read twice")
    hidden = weights[(weights >= 0) & ~visible]
    seen = np.zeros(scores.size, bool)
    seen[hidden] = True
    missing = scores.reshape(-1) & ~seen
    if (missing.reshape(-1, columns).sum(1)[row] != visible.sum(2)).any():
        raise Untraceable("scores count in the softmax whose weights are not read")


def _queries_and_keys(first: Product, score: Array, visible: Array, q: Base, k: Base) -> tuple[Array, Array]:
    """The query of each row and the key of each column, as rows of the bases; -1 for columns without a key."""
    plain = [1, *extents_of(first.node.outputs[0])[1:]]
    at = np.unravel_index(np.maximum(score, 0), plain)
    batch = np.zeros_like(score)
    for axis in first.out[:-2]:
        batch = batch * plain[axis] + at[axis]
    row, column = first.out[-2:]
    queries = _same(q.rows[batch * plain[row] + at[row]], visible, 2)
    keys = _same(k.rows[batch * plain[column] + at[column]], visible, 1)
    if queries is None or keys is None:
        raise Untraceable("a row of weights is of several queries, or a column of several keys")
    return queries, keys


def _given_up(condition: ir.Value, shape: tuple[int, ...], axes: list[int], weights: Array, visible: Array) -> Term:
    source, ids, _, lanes, count = _followed(condition, shape, axes)
    rows = _same(ids[np.maximum(weights, 0)], weights >= 0, 2)
    if rows is None or (rows < 0).any():
        raise Untraceable("what sets weights to 0 does not do so for whole rows")
    return Term(source, rows, lanes, count)
