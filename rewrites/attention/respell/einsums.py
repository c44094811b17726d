"""Einsums that are a product per batch only after labels are written out.

`bhid,bjd->bhij` (keys that heads share), labels behind `...`, results that no arrow names.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from tilegraph.rewrites.attention.find import has_softmax, is_product
from tilegraph.rewrites.attention.respell.edit import Builder, Site, rename, take_over, whole
from tilegraph.spec.dims import Dim

_WAY = 8  # nodes between a softmax and its weights


def einsums_as_products(site: Site) -> bool:
    """Where batch labels are all in both operands already, lowering reads the Einsum as it is."""
    changed = False
    for node in site.products("Einsum"):
        changed = _rewrite(site, node) or changed
    return changed


def _rewrite(site: Site, node: ir.Node) -> bool:
    shapes = [s for s in (whole(v) for v in node.inputs) if s is not None]
    given = [v for v in node.inputs if v is not None]
    made = whole(node.outputs[0])
    if len(shapes) != 2 or len(given) != 2 or made is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    text = node.attributes["equation"].as_string().replace(" ", "")
    explicit = _explicit(text, [len(s) for s in shapes])
    if explicit is None:
        return False
    one, other, out = explicit
    extents = dict(zip(one, shapes[0], strict=True)) | dict(zip(other, shapes[1], strict=True))
    summed = [k for k in one if k in other and k not in out]
    rows, columns = ([k for k in out if k in mine and k not in theirs] for mine, theirs in ((one, other), (other, one)))
    plain = "." not in text and "->" in text and len(rows) == len(columns) == 1
    if plain or len(summed) != 1 or not rows or not columns or {*one, *other} != {*out, *summed} \
            or any(extents[k] != shape[term.index(k)] for term, shape in zip((one, other), shapes, strict=True)
                   for k in term):
        return False
    row, column = _own(rows, one, given[0]), _own(columns, other, given[1])
    batch = [k for k in out if k not in (row, column)]
    b = Builder(site, node)
    left = _laid(b, given[0], one, [*batch, row, summed[0]], extents)
    right = _laid(b, given[1], other, [*batch, summed[0], column], extents)
    order = [*batch, row, column]
    product = result = b.add("MatMul", [left, right], [extents[k] for k in order], given[0])
    if order != list(out):
        result = b.add("Transpose", [product], made, given[0], perm=[order.index(k) for k in out])
    take_over(node.outputs[0], result)
    b.put()
    site.graph.remove(node, safe=True)
    rename(product, node.name)
    return True


def _own(labels: list[str], term: str, operand: ir.Value) -> str:
    """Which of the labels that only one operand has is its row or column; the others are heads.

    Scores have queries and keys last. Weights are laid out as scores are, whatever their product's result is.
    """
    if _is_softmax(operand):
        return max(labels, key=term.index)
    named = [k for k in labels if k.islower()]
    return (named or labels)[-1]


def _is_softmax(value: ir.Value) -> bool:
    """Whether a softmax made it, by way of first inputs."""
    node = value.producer()
    for _ in range(_WAY):
        if node is None or is_product(node) or has_softmax({node}):
            break
        node = next((p for v in node.inputs if v is not None and (p := v.producer()) is not None), None)
    return node is not None and has_softmax({node})


def _explicit(text: str, ranks: list[int]) -> tuple[str, str, str] | None:
    """The labels of both operands and of the result; capital letters that are free stand for what `...` does."""
    terms, arrow, out = text.partition("->")
    one, comma, other = terms.partition(",")
    if not comma or "," in other:
        return None
    if not arrow:
        counts = Counter(k for k in one + other if k.isalpha())
        out = ("..." if "..." in terms else "") + "".join(sorted(k for k, n in counts.items() if n == 1))
    free = [k for k in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if k not in text]
    hidden = [rank - len(term.replace("...", "")) if "..." in term else 0
              for term, rank in zip((one, other), ranks, strict=True)]
    most = max(hidden)
    if min(hidden) < 0 or most > len(free):
        return None
    one, other = (t.replace("...", "".join(free[most - n:most])) for t, n in zip((one, other), hidden, strict=True))
    out = out.replace("...", "".join(free[:most]))
    known = {*one, *other}
    if any(len(set(t)) != len(t) or not t.isalpha() for t in (one, other, out)) or not set(out) <= known \
            or any(len(t) != rank for t, rank in zip((one, other), ranks, strict=True)):
        return None
    return one, other, out


def _laid(b: Builder, value: ir.Value, term: str, order: list[str], extents: dict[str, Dim]) -> ir.Value:
    """The operand with its labels in `order`; those that it lacks have an extent of 1."""
    own = [k for k in order if k in term]
    if own != list(term):
        value = b.add("Transpose", [value], [extents[k] for k in own], value, perm=[term.index(k) for k in own])
    lacking = [n for n, k in enumerate(order) if k not in term]
    if lacking:
        value = b.add("Unsqueeze", [value, b.ints(lacking)], [extents[k] if k in term else 1 for k in order], value)
    return value
