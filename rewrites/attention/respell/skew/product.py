"""A product of matrices, MatMul or Einsum, by what its axes mean."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from tilegraph.rewrites.attention.find import is_product
from tilegraph.rewrites.attention.respell.skew.places import extents_of
from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable


@dataclass(frozen=True)
class Product:
    """out[batch.., row, column] = sum_d left[batch.., row, d] right[batch.., d, column], axes in any order.

    left, right, out: for each of batch.., row, d / batch.., d, column / batch.., row, column the axis that it is.
    """

    node: ir.Node
    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def sides(self) -> tuple[ir.Value, ir.Value]:
        one, other = self.node.inputs
        assert one is not None
        assert other is not None
        return one, other

    @property
    def keys(self) -> tuple[int, ...]:
        """For each of batch.., column, d the axis of `right` that it is."""
        return (*self.right[:-2], self.right[-1], self.right[-2])


def product_of(node: ir.Node) -> Product:
    """`Untraceable` for what is no product of one matrix and one other in each batch."""
    if not is_product(node) or any(v is None for v in node.inputs):
        raise Untraceable(f"{node.op_type} {node.name} is no product of two matrices")
    a, b = (extents_of(v) for v in node.inputs if v is not None)
    if node.op_type == "MatMul":
        if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2]:
            raise Untraceable(f"MatMul {node.name} repeats one of its operands")
        axes = tuple(range(len(a)))
        return Product(node, axes, axes, axes)
    text = node.attributes["equation"].as_string().replace(" ", "")
    terms, arrow, out = text.partition("->")
    one, _, other = terms.partition(",")
    summed = [k for k in one if k in other and k not in out]
    rows, columns = ([k for k in mine if k in out and k not in theirs] for mine, theirs in ((one, other), (other, one)))
    batch = [k for k in out if k in one and k in other]
    if not arrow or "." in text or len(summed) != 1 or len(rows) != 1 or len(columns) != 1 \
            or any(len(set(s)) != len(s) for s in (one, other, out)) or len(batch) + 2 != len(out) \
            or len(one) != len(out) or len(other) != len(out) \
            or any(a[one.index(k)] != b[other.index(k)] for k in (*batch, *summed)):
        raise Untraceable(f"Einsum {text!r} is no product of one matrix and one other in each batch")
    return Product(node, tuple(one.index(k) for k in (*batch, *rows, *summed)),
                   tuple(other.index(k) for k in (*batch, *summed, *columns)),
                   tuple(out.index(k) for k in (*batch, *rows, *columns)))
