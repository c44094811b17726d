"""CumSum and CumProd."""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.lower.views import transpose
from tilegraph.ops.prims import Prim, Scan


def _running(kind: str) -> Callable[[NodeContext], list[Prim]]:
    def lower(c: NodeContext) -> list[Prim]:
        x = c.arg(0)
        axes = c.ints(1)
        rank = len(x.shape)
        if not axes or rank == 0:
            raise c.decline(f"{c.node.op_type} lacks an axis")
        axis = axes[0] % rank
        order = [*(k for k in range(rank) if k != axis), axis]
        moved = x if axis == rank - 1 else transpose(x, order)
        result: Prim = Scan(moved.shape, x.dtype, kind=kind, operand=moved, exclusive=bool(int(c.attr("exclusive", 0))),
                            reverse=bool(int(c.attr("reverse", 0))))
        return [result if axis == rank - 1 else transpose(result, [order.index(k) for k in range(rank)])]

    return lower


RUNNING: dict[tuple[str, str], Callable[[NodeContext], list[Prim]]] = {
    ("", "CumSum"): _running("sum"),
    ("", "CumProd"): _running("prod"),
}
