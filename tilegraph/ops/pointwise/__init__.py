"""The table of pointwise operators: what each computes, written once in `tilegraph.ops.math` primitives.

`POINTWISE[domain, op_type]` with domain "" for ai.onnx. docs/operators.md lists the entries; a test keeps it true.
"""

from tilegraph.ops.pointwise import activation, arithmetic, contrib, convert, logic, transcendental
from tilegraph.ops.pointwise.base import CONSTANTS, PointOp

POINTWISE: dict[tuple[str, str], PointOp] = {
    (op.domain, op.name): op
    for group in (arithmetic, logic, convert, transcendental, activation, contrib)
    for op in group.OPS
}

__all__ = ["CONSTANTS", "POINTWISE", "PointOp"]
