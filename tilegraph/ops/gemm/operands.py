"""The operands of a product, and the 16-bit float that both are rounded to on the way."""

from __future__ import annotations

from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.prims import Point, Prim

_BFLOAT16 = "round[bfloat16]"


def operands(c: NodeContext) -> tuple[Prim, Prim, str]:
    """Left, right, and "bfloat16" where both are Casts to it and back, which the product then does itself; else "".

    A product of which one operand is rounded keeps its Casts.
    """
    left, right = c.arg(0), c.arg(1)
    if isinstance(left, Point) and isinstance(right, Point) and left.key == right.key == _BFLOAT16:
        return left.operands[0], right.operands[0], "bfloat16"
    return left, right, ""
