"""Weights that are sums or differences of softmaxes: (A - f B) V becomes A V - f (B V), a product for each softmax.

Differential attention (Ye et al. 2024) subtracts one map of weights from another. A factor may change from row to row,
not along the keys. Where values are infinite the parts may be of opposite infinities, and the difference NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from tilegraph.rewrites.attention.respell.edit import Builder, Site, rename, take_over, whole
from tilegraph.spec.dims import Dim

_SOFTMAX = frozenset({"Softmax", "Div", "Where"})  # what may be the last node of one


@dataclass(frozen=True)
class _Term:
    """Weights, and what they are multiplied by: the factor, and whether it is the left operand."""

    weights: ir.Value
    factor: ir.Value | None = None
    left: bool = False


def product_for_each(site: Site) -> bool:
    changed = False
    for core in site.cores():
        node = core.second
        if core.weights != 0 or node.op_type != "MatMul" or node.domain != "":
            continue
        weights, values = node.inputs
        made = None if weights is None else weights.producer()
        if weights is None or values is None or made is None or made.op_type not in ("Add", "Sub") or made.domain != "":
            continue
        terms = [_term(v, weights) for v in made.inputs if v is not None]
        shape = whole(node.outputs[0])
        if shape is None or len(weights.uses()) != 1 or weights.is_graph_output():
            continue
        found = [t for t in terms if t is not None]
        if len(found) == 2 and found[0].weights is not found[1].weights:
            _apart(site, node, made.op_type, found)
            changed = True
    return changed


def _term(value: ir.Value, total: ir.Value) -> _Term | None:
    """The softmax that `value` is, as large as the sum is, perhaps times what is the same along the keys."""
    maker = value.producer()
    if maker is None or value.is_graph_output() or whole(value) is None or whole(value) != whole(total):
        return None
    if maker.op_type in _SOFTMAX:
        return _Term(value)
    if maker.op_type == "Mul" and maker.domain == "":
        for k in (0, 1):
            weights, factor = maker.inputs[k], maker.inputs[1 - k]
            inner = None if weights is None else _term(weights, total)
            shape = whole(factor)
            if inner is not None and inner.factor is None and factor is not None and shape is not None \
                    and (not shape or shape[-1] == Dim.of(1)):
                return _Term(inner.weights, factor, k == 1)
    return None


def _apart(site: Site, node: ir.Node, op_type: str, terms: list[_Term]) -> None:
    out, values = node.outputs[0], node.inputs[1]
    shape = whole(out)
    assert values is not None
    assert shape is not None
    b = Builder(site, node)
    products = [b.add("MatMul", [term.weights, values], shape, out) for term in terms]
    parts = []
    for term, product in zip(terms, products, strict=True):
        pair = [] if term.factor is None else [term.factor, product] if term.left else [product, term.factor]
        parts.append(b.add("Mul", pair, shape, out) if pair else product)
    result = b.add(op_type, parts, shape, out)
    take_over(out, result)
    b.put()
    site.graph.remove(node, safe=True)
    rename(products[0], node.name)
