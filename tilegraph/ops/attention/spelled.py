"""What a value of an attention is by its spelling: choices, quotients, sums, what is never negative; and new values."""

from __future__ import annotations

from dataclasses import dataclass

from tilegraph.ops.lower.base import point
from tilegraph.ops.prims import Input
from tilegraph.ops.space import Apply, Fold, Inst, Literal, Load

LOWEST = float("-inf")
_HIDING = -50.0


def operator(inst: Inst) -> str:
    """The ONNX operator of a pointwise value, domain included; "" for others."""
    return inst.point.key.partition("<")[0] if isinstance(inst, Apply) else ""


@dataclass(frozen=True)
class Kept:
    """A choice by a value that is never below 0: `chosen` where it is above. `strict`: and `otherwise` for NaN too."""

    value: Inst
    chosen: Inst
    otherwise: Inst
    strict: bool


def where_positive(condition: Inst, one: Inst, other: Inst) -> Kept | None:
    test = operator(condition)
    if test == "Not":
        return where_positive(condition.args[0], other, one)
    if test in ("Greater", "Less"):
        left, right = condition.args if test == "Greater" else condition.args[::-1]
        return Kept(left, one, other, True) if is_number(right, 0) else None
    if test == "Equal":
        for value, zero in (condition.args, condition.args[::-1]):
            if is_number(zero, 0):
                return Kept(value, other, one, False)
    return None


def may_hide(inst: Inst) -> bool:
    """Whether a part of the scores may be so low that powers are 0 next to others: a number, or one from memory."""
    if isinstance(inst, Load):
        return inst.dtype.startswith("float")
    return isinstance(inst, Literal) and inst.dtype.startswith("float") and LOWEST < inst.value <= _HIDING


def is_never_negative(value: Inst) -> bool:
    match operator(value):
        case "Exp" | "Sigmoid" | "Abs" | "Relu" | "Sqrt":
            return True
        case "Cast":
            return value.args[0].dtype == "bool"
        case "Mul" | "Add" | "Min" | "Div":
            return all(is_never_negative(v) for v in value.args)
        case "Max":
            return any(is_never_negative(v) for v in value.args)
        case "Sub":
            one, other = value.args
            return is_number(one, 1) and operator(other) in ("Cast", "Sigmoid") and is_never_negative(other)
    return isinstance(value, Literal) and bool(value.value >= 0)


def has_peak(powers: Inst) -> bool:
    """Whether one of the powers is 1: the greatest exponent is subtracted from all."""
    shifted = powers.args[0] if operator(powers) == "Exp" else powers
    if operator(shifted) != "Sub":
        return False
    x, peak = shifted.args
    return isinstance(peak, Fold) and peak.kind in ("max", "peak") and peak.operand is x


def has_least(peak: Inst) -> bool:
    """Whether a greatest score is not below some finite number: then rows without a key are not NaN."""
    match operator(peak):
        case "Relu":
            return True
        case "Max":
            limits = peak.args
        case "Clip" if isinstance(peak, Apply) and not peak.point.key.endswith("[0, 2]"):
            limits = peak.args[1:2]
        case _:
            return False
    return any(isinstance(one, Literal) and one.value > LOWEST for one in limits)


def terms_of(value: Inst) -> list[tuple[Inst, int]]:
    """What `value` is the sum of, with signs."""
    if operator(value) == "Sub":
        return [*terms_of(value.args[0]), *((t, -sign) for t, sign in terms_of(value.args[1]))]
    if operator(value) == "Add" and any(operator(v) == "Log" for v in value.args):
        return [*terms_of(value.args[0]), *terms_of(value.args[1])]
    return [(value, 1)]


def quotient_of(inst: Inst) -> tuple[Inst, Inst] | None:
    """(a, b) of a / b or of a * reciprocal(b)."""
    if operator(inst) in ("Div", "quotient"):
        return inst.args[0], inst.args[1]
    if operator(inst) == "Mul":
        for a, b in (inst.args, inst.args[::-1]):
            if operator(b) == "Reciprocal":
                return a, b.args[0]
    return None


def unrounded(inst: Inst) -> Inst:
    """Without the rounding to a 16-bit float: the kernel keeps what it has."""
    return inst.args[0] if operator(inst).startswith("round[") else inst


def is_number(inst: Inst, value: float) -> bool:
    return isinstance(inst, Literal) and inst.value == value


def is_term(part: Inst, x: Inst) -> bool:
    """Whether x is minus infinity or NaN wherever `part` is minus infinity: x is a sum that it is added to."""
    return part is x or (operator(x) == "Add" and any(is_term(part, one) for one in x.args))


def applied(op_type: str, dtype: str, *operands: Inst) -> Inst:
    made = point(op_type, [Input((), one.dtype, stored="") for one in operands], dtype)
    return Apply(dtype, made, tuple(operands))


def choose(condition: Inst, one: float, other: float) -> Inst:
    return applied("Where", "float32", condition, Literal("float32", one), Literal("float32", other))


def added(x: Inst, term: Inst) -> Inst:
    """x + term. NaN of a hidden key stays, as it does where weights are multiplied by 0."""
    return applied("Add", "float32", x, term)
