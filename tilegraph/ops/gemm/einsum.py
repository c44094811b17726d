"""Einsum with a constant matrix: any labels as rows, any as columns, any summed over."""

from __future__ import annotations

from tilegraph.ops.gemm.operands import operands
from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.lower.views import reshape, transpose
from tilegraph.ops.prims import Dot, Prim
from tilegraph.spec.dims import Dim


def lower_einsum(c: NodeContext) -> list[Prim]:
    """Two operands; the second is the matrix, its labels first the summed ones and then the columns, or the other way.

    Rows keep their order in the first operand, columns and summed labels that of the second, so that the matrix is
    read where it lies; the order of the result is a matter of addresses. Declines labels that both operands and the
    result have (a matrix for each), labels twice in an operand, ellipses, and a matrix whose labels are mixed.
    """
    left, right, out = _sides(c)
    what = f"Einsum {left},{right}->{out}"
    summed = [x for x in right if x in left and x not in out]
    columns = [x for x in right if x not in left]
    rows = [x for x in left if x in out]
    if set(rows) & set(right):
        raise c.decline(f"{what}: a matrix for each {', '.join(x for x in rows if x in right)}")
    if set(left) | set(right) != set(out) | set(summed) or len(out) != len(rows) + len(columns):
        raise c.decline(f"{what}: it sums or repeats labels of one operand")
    if not summed or not columns or [*right] not in ([*summed, *columns], [*columns, *summed]):
        raise c.decline(f"{what}: no matrix of the summed labels and the columns")
    extents = dict(zip([*left, *right], [*c.arg(0).shape, *c.arg(1).shape], strict=True))
    if any(a != extents[x] for x, a in zip(left, c.arg(0).shape, strict=True)):
        raise c.decline(f"{what}: extents are not equal for certain")
    first, matrix, rounded = operands(c)
    if any(p.dtype != "float32" for p in (first, matrix)):
        raise c.decline(f"a product of {first.dtype}: kernels are float32")
    depth, width = (Dim.product(tuple(extents[x] for x in labels)) for labels in (summed, columns))
    if [*left] != [*rows, *summed]:
        first = transpose(first, [left.index(x) for x in (*rows, *summed)])
    first = reshape(first, (*(extents[x] for x in rows), depth))
    matrix = reshape(matrix, (depth, width)) if [*right] == [*summed, *columns] else \
        transpose(reshape(matrix, (width, depth)), [1, 0])
    made = reshape(Dot((*first.shape[:-1], width), "float32", left=first, right=matrix, rounded=rounded),
                   tuple(extents[x] for x in (*rows, *columns)))
    order = [[*rows, *columns].index(x) for x in out]
    return [transpose(made, order) if order != sorted(order) else made]


def _sides(c: NodeContext) -> tuple[str, str, str]:
    """The labels of both operands and of the result, which without an arrow has those that occur once, sorted."""
    equation = c.attr("equation", "")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    terms, arrow, out = text.partition("->")
    sides = terms.split(",")
    if len(sides) != 2 or "." in text:
        raise c.decline(f"Einsum {text}: only two operands without an ellipsis")
    if not arrow:
        out = "".join(sorted(x for x in set(terms) - {","} if terms.count(x) == 1))
    if any(len(set(s)) != len(s) for s in (*sides, out)):
        raise c.decline(f"Einsum {text}: a label occurs twice in an operand")
    if any(len(s) != len(c.arg(k).shape) for k, s in enumerate(sides)):
        raise c.decline(f"Einsum {text}: as many labels as dims are needed")
    return sides[0], sides[1], out
