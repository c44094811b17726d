"""Scores of several blocks of keys side by side under one softmax: the keys are put side by side instead.

Block-sparse attention (BigBird) multiplies the same queries with several blocks of keys, each masked by itself,
concatenates the scores, and multiplies slices of the weights with blocks of values:

    softmax([f1(q k1'), f2(q k2'), ..]) = [w1, w2, ..],   w1 v1 + w2 v2 + ..

With [k1, k2, ..] and [v1, v2, ..] it is one attention. The masks must be sums after one common scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.ops.broadcast import broadcast
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.respell.edit import Builder, Shape, Site, rename, take_over, whole
from tilegraph.spec.dims import Dim


@dataclass(frozen=True)
class _Part:
    """One block: its product q k', the factor of its scores and what is added to them."""

    product: ir.Node
    factor: float
    term: ir.Value | None
    columns: Dim


def blocks_together(site: Site) -> bool:
    changed = False
    for node in [n for n in site.graph if n.op_type == "Softmax" and n.domain == ""]:
        changed = _rewrite(site, node) or changed
    return changed


def _rewrite(site: Site, softmax: ir.Node) -> bool:
    source, weights = softmax.inputs[0], softmax.outputs[0]
    concat = None if source is None else source.producer()
    shape = whole(weights)
    if source is None or concat is None or concat.op_type != "Concat" or shape is None or len(source.uses()) != 1 \
            or weights.is_graph_output() or not _last(softmax, len(shape)) or not _last(concat, len(shape)):
        return False
    parts = [p for v in concat.inputs if (p := _part(v)) is not None]
    if len(parts) != len(concat.inputs) or len(parts) < 2 or len({p.factor for p in parts}) != 1:
        return False
    queries = {p.product.inputs[0] for p in parts}
    pieces = _pieces(weights, [p.columns for p in parts])
    if len(queries) != 1 or pieces is None:
        return False
    total = _total([node for node, _ in pieces])
    if total is None or not site.wants(total):
        return False
    (query,) = queries
    rows = whole(query)
    result = whole(total.outputs[0])
    keys = [_operand(p.product, True) for p in parts]
    values = [_operand(node, False) for node, _ in pieces]
    if query is None or rows is None or result is None or None in keys or None in values \
            or [c for _, c in pieces] != [p.columns for p in parts]:
        return False
    b = Builder(site, total)
    batch = shape[:-2]
    laid = [_laid(b, one, batch) for one in (*keys, *values) if one is not None]
    sides = [v for v in laid if v is not None]
    if len(sides) != len(laid):
        return False
    key = b.add("Concat", sides[:len(parts)], (*batch, rows[-1], shape[-1]), query, axis=len(shape) - 1)
    scores = b.add("MatMul", [query, key], shape, query)
    if parts[0].factor != 1.0:
        scores = b.add("Mul", [scores, b.scalar(parts[0].factor)], shape, query)
    if any(p.term is not None for p in parts):
        mask = _mask(b, parts, query)
        if mask is None:
            return False
        scores = b.add("Add", [scores, mask], shape, query)
    soft = b.add("Softmax", [scores], shape, query, axis=len(shape) - 1)
    value = b.add("Concat", sides[len(parts):], (*batch, shape[-1], result[-1]), query, axis=len(shape) - 2)
    product = b.add("MatMul", [soft, value], result, query)
    name = total.name
    take_over(total.outputs[0], product)
    b.put()
    site.graph.remove(total, safe=True)
    rename(product, name)
    return True


def _last(node: ir.Node, rank: int) -> bool:
    axis = node.attributes.get("axis")
    return (-1 if axis is None else axis.as_int()) in (-1, rank - 1)


def _part(value: ir.Value | None) -> _Part | None:
    """What a block of scores is: a product, perhaps scaled, perhaps with something added."""
    columns = whole(value)
    if value is None or columns is None or len(value.uses()) != 1:
        return None
    term = None
    node = value.producer()
    if node is not None and node.op_type == "Add" and node.domain == "":
        for scores, other in (node.inputs, node.inputs[::-1]):
            found = None if scores is None else _scaled(scores)
            if found is not None:
                term = other
                break
        else:
            return None
    else:
        found = _scaled(value)
    return None if found is None else _Part(found[0], found[1], term, columns[-1])


def _scaled(value: ir.Value) -> tuple[ir.Node, float] | None:
    node, factor = value.producer(), 1.0
    if node is not None and node.op_type == "Mul" and node.domain == "":
        for scores, other in (node.inputs, node.inputs[::-1]):
            array = None if other is None else constant_of(other)
            if scores is not None and array is not None and array.size == 1:
                node, factor = scores.producer(), float(array.reshape(-1)[0])
                break
    if node is None or node.op_type not in ("MatMul", "Einsum") or len(node.inputs) != 2 \
            or any(o.is_graph_output() or len(o.uses()) != 1 for o in node.outputs):
        return None
    return node, factor


def _pieces(weights: ir.Value, columns: list[Dim]) -> list[tuple[ir.Node, Dim]] | None:
    """(the product that reads it, its width) of the slices of the weights, in order; None if they are no partition."""
    sizes = [c.as_int() for c in columns]
    if None in sizes:
        return None
    starts = np.cumsum([0, *(s or 0 for s in sizes)])
    shape = whole(weights)
    found: dict[int, tuple[ir.Node, Dim]] = {}
    for use in weights.uses():
        node = use.node
        lists = [constant_of(v) if v is not None else None for v in node.inputs[1:]]
        if node.op_type != "Slice" or shape is None or len(lists) < 3 or any(a is None or a.size != 1 for a in lists):
            return None
        start, end, axis, *step = (int(a.reshape(-1)[0]) for a in lists if a is not None)
        width = int(starts[-1])
        start, end = (min(max(k + width if k < 0 else k, 0), width) for k in (start, end))
        readers = [u.node for u in node.outputs[0].uses()]
        if axis not in (-1, len(shape) - 1) or step not in ([], [1]) or len(readers) != 1 \
                or readers[0].op_type not in ("MatMul", "Einsum") or readers[0].inputs[0] is not node.outputs[0]:
            return None
        found[start] = readers[0], Dim.of(end - start)
    if sorted(found) != starts[:-1].tolist():
        return None
    return [found[int(k)] for k in starts[:-1]]


def _total(products: list[ir.Node]) -> ir.Node | None:
    """The last of the Adds that sum the products up, and nothing else."""
    open_ = {p.outputs[0] for p in products}
    while True:
        node = next((use.node for v in open_ for use in v.uses()), None)
        ready = [n for n in {use.node for v in open_ for use in v.uses()}
                 if n.op_type == "Add" and n.domain == "" and set(n.inputs) <= open_]
        if node is None or not ready or any(len(v.uses()) != 1 or v.is_graph_output() for n in ready for v in n.inputs
                                            if v is not None):
            return None
        for one in ready:
            open_ -= {v for v in one.inputs if v is not None}
            open_.add(one.outputs[0])
        if len(open_) == 1:
            return ready[-1]


def _operand(product: ir.Node, keys: bool) -> tuple[ir.Value, list[int | None]] | None:
    """The right operand of a product and, for each dim of [batch.., d, j] (keys) or [batch.., j, e], which of its own
    it is; None where it has none."""
    left, right = product.inputs
    a, b = whole(left), whole(right)
    if left is None or right is None or a is None or b is None:
        return None
    if product.op_type == "MatMul":
        return (right, list(range(len(b)))) if len(a) == len(b) else None
    equation = product.attributes["equation"].as_string().replace(" ", "")
    terms, _, out = equation.partition("->")
    one, _, other = terms.partition(",")
    if "." in equation or any(len(set(s)) != len(s) for s in (one, other, out)) or one[:-1] != out[:-1] \
            or set(other) - set(one) != {out[-1]} or one[-1] not in other or one[-2] in other:
        return None
    wanted = [*out[:-2], one[-1], out[-1]]
    return right, [other.index(label) if label in other else None for label in wanted]


def _laid(b: Builder, operand: tuple[ir.Value, list[int | None]], batch: Shape) -> ir.Value | None:
    """The operand with all batch dims, None where that cannot be written."""
    value, places = operand
    shape = whole(value)
    assert shape is not None
    own = [k for k in places if k is not None]
    if own != list(range(len(own))):
        value = b.add("Transpose", [value], [shape[k] for k in own], value, perm=own)
    missing = [k for k, place in enumerate(places) if place is None]
    full = tuple(Dim.of(1) if p is None else shape[p] for p in places)
    if missing:
        value = b.add("Unsqueeze", [value, b.ints(missing)], full, value)
    return _wide(b, value, full, (*batch, *full[-2:]))


def _wide(b: Builder, value: ir.Value, shape: Shape, wanted: Shape) -> ir.Value | None:
    """`value` expanded from `shape` to the sizes that are `wanted`; None where only a run knows one of them."""
    aligned = (*(Dim.of(1) for _ in range(len(wanted) - len(shape))), *shape)
    target = [1 if have == want else want.as_int() for have, want in zip(aligned, wanted, strict=True)]
    if any(size is None for size in target):
        return None
    if aligned == wanted and len(shape) == len(wanted):
        return value
    return b.add("Expand", [value, b.ints([size for size in target if size is not None])], wanted, value)


def _mask(b: Builder, parts: list[_Part], like: ir.Value) -> ir.Value | None:
    """The terms of all blocks side by side, in no more dims than they need."""
    shapes = [(Dim.of(1),) if p.term is None else whole(p.term) for p in parts]
    try:
        common = broadcast([s[:-1] for s in shapes if s is not None])
    except Decline:
        return None
    made: list[ir.Value] = []
    for part, shape in zip(parts, shapes, strict=True):
        value = part.term if part.term is not None else b.scalar(0.0)
        own = None if shape is None else shape if part.term is not None else ()
        wide = None if own is None else _wide(b, value, own, (*common, part.columns))
        if wide is None:
            return None
        made.append(wide)
    width = Dim.of(0)
    for part in parts:
        width = width + part.columns
    return b.add("Concat", made, (*common, width), like, axis=len(common))
