"""A source whose channels are scaled by computed numbers: squeeze and excite, with or without a shortcut.

`x * s` and `x + x * s`, s one number a channel, become x and a factor: s, or 1 + s.
"""

from __future__ import annotations

from tilegraph.ops.index import Var
from tilegraph.ops.lower.base import point
from tilegraph.ops.prims import Const, Decline, Prim
from tilegraph.ops.space import Apply, Inst, Literal, Load, insts


def scaled(made: Inst, inside: set[Var]) -> tuple[Load, Inst]:
    """(the tensor that is read, the factor of each of its channels); `Decline` for every other computation.

    `inside`: the spatial loops of the source, on which the factor does not depend.
    """
    moving = [i for i in insts(made) if isinstance(i, Load) and i.address.vars() & inside]
    if len(moving) != 1:
        raise Decline("the source is computed inside the kernel")
    (load,) = moving
    factor, _ = _factor(made, load)
    return load, factor


def _factor(made: Inst, load: Load) -> tuple[Inst, Prim]:
    """What `made` is of `load`, as a value and as a prim."""
    if isinstance(made, Apply) and len(made.operands) == 2:
        sides = list(zip(made.operands, made.point.operands, strict=True))
        here = [any(i is load for i in insts(inst)) for inst, _ in sides]
        if made.point.key.startswith("Mul<") and here.count(True) == 1:
            inst, _ = sides[here.index(True)]
            if inst is load:
                return sides[here.index(False)]
        if made.point.key.startswith("Add<") and all(here):
            parts = [side for side in sides if side[0] is not load]
            if len(parts) == 1:
                inst, prim = _factor(parts[0][0], load)
                one = Const((), "float32", 1.0)
                both = point("Add", [prim, one], "float32")
                return Apply("float32", both, (inst, Literal("float32", 1.0))), both
    raise Decline("the source is computed inside the kernel")

