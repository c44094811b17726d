"""The softmax over the keys, however it is written.

Weights are followed down to the powers that they are made of, `exp(y) * c` with c the same for all keys of a row. Such
a c does not matter: weights that are divided by their own sum are the softmax of y, whatever was subtracted from the
scores, however often they were divided before, and a factor m that is at least 0 only adds log(m) to y. So a Softmax
that is masked and divided by its sum again is one softmax with a mask, and so are an exponential of LogSoftmax, of a
difference to ReduceLogSumExp, and exponentials without a maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilegraph.ops.attention.space import Score, Sunk
from tilegraph.ops.attention.spelled import (
    LOWEST,
    added,
    applied,
    choose,
    has_least,
    has_peak,
    is_never_negative,
    is_number,
    is_term,
    may_hide,
    operator,
    quotient_of,
    terms_of,
    unrounded,
    where_positive,
)
from tilegraph.ops.index import Var
from tilegraph.ops.prims import Decline
from tilegraph.ops.space import Apply, Fold, Inst, Literal, Load, Place, insts

NOT_A_SOFTMAX = "the weights of the second matrix product are not a softmax over its keys"
_LOW = -1e30
_TINY = 2.0 ** -25  # half of what a float32 of 1 can tell


@dataclass(frozen=True)
class Softmax:
    """softmax(x) over the keys. `guarded`: weights that are NaN become 0. `hides`: the term of x that gives up rows.
    `sink`: a score whose exponential is one more term of the sum."""

    x: Inst
    guarded: bool = False
    hides: Inst | None = None
    sink: Inst | None = None


def softmax(weights: Inst, key: Var) -> Softmax:
    """What `weights` are at the loop `key`; `Decline` where they are no softmax."""
    reader = _Reader(key)
    found = reader.weights(weights)
    if not any(isinstance(inst, Fold) for inst in insts(weights)):
        raise Decline(NOT_A_SOFTMAX)
    if any(isinstance(inst, Fold) for inst in insts(found.x)):
        raise Decline("the scores are changed by a reduction before the softmax")
    if found.hides is not None and not is_term(found.hides, found.x):
        raise Decline("rows are given up by something other than a term of their scores")
    if reader.sink is None:
        return found
    if found.guarded or found.hides is not None:
        raise Decline("a sink beside the scores, and rows without a key that are treated apart")
    return replace(found, sink=reader.sink)


@dataclass(frozen=True)
class _Exponent:
    """y: the sum of `base` and `terms`, which are 0 or less. `known`: what `base` holds already, as further terms."""

    base: Inst
    terms: tuple[Inst, ...] = ()
    known: tuple[Inst, ...] = ()

    def softmax(self, empty: bool) -> Softmax:
        """`empty`: rows whose powers are all 0 have weights of 0."""
        terms = (*self.terms, *self.known) if empty else self.terms
        if not terms:
            if empty:
                raise Decline("rows whose weights add up to 0 are treated apart, and no mask tells which they are")
            return Softmax(self.base)
        if any(may_hide(inst) for inst in insts(self.base)):
            raise Decline("a mask after the softmax, of scores that finite numbers may hide before it: where both hide "
                          "all keys of a row, its weights are 0 by underflow")
        mask = terms[0]
        for term in terms[1:]:
            mask = added(mask, term)
        return Softmax(added(self.base, mask), hides=mask if empty else None)


class _Reader:
    def __init__(self, key: Var) -> None:
        self.key = key
        self.sink: Inst | None = None

    # -- weights that add up to 1 ---------------------------------------------------------------------------------
    def weights(self, weights: Inst) -> Softmax:
        weights = unrounded(weights)
        if operator(weights) == "Where":
            return self._guard(*weights.args)
        y, empty = self._normal(weights)
        return y.softmax(empty)

    def _normal(self, weights: Inst) -> tuple[_Exponent, bool]:
        """(y, whether weights of rows whose powers are all 0 are 0) of powers that are divided by their sum."""
        quotient = quotient_of(weights)
        if quotient is not None:
            powers = unrounded(quotient[0])
            empty = self._is_sum(quotient[1], powers)
            if empty is not None:
                return self.exponent(powers), empty
        if operator(weights) == "Exp":  # of a difference to the logarithm of the sum
            y = self._less_log_sum(weights.args[0])
            if y is not None:
                return y, False
        raise Decline(NOT_A_SOFTMAX)

    def _guard(self, condition: Inst, one: Inst, other: Inst) -> Softmax:
        """Rows without a key have weights of 0: where weights are NaN, or their sum is 0, or no key was left."""
        test = operator(condition)
        if test == "Not":
            return self._guard(condition.args[0], other, one)
        if test == "IsNaN" and condition.args[0] is other and is_number(one, 0):
            found = self.weights(other)
            return Softmax(found.x, True, found.hides)
        if test == "Equal" and is_number(one, 0):
            for peak, low in (condition.args, condition.args[::-1]):
                if isinstance(peak, Fold) and peak.kind in ("max", "peak") and is_number(low, LOWEST):
                    return Softmax(self.weights(other).x, hides=peak.operand)
        kept = where_positive(condition, one, other)
        if kept is not None and is_number(kept.otherwise, 0):
            quotient = quotient_of(unrounded(kept.chosen))
            if quotient is not None and self._is_sum(kept.value, unrounded(quotient[0])) is not None:
                y, _ = self._normal(unrounded(kept.chosen))
                # A sum of NaN is not above 0, but it is not equal to 0 either.
                return Softmax(y.softmax(False).x, True) if kept.strict else y.softmax(True)
        for weights, zero, when in ((one, other, True), (other, one, False)):
            if is_number(zero, 0) and self._hides_the_same(condition, weights, when):
                y, empty = self._normal(unrounded(weights))
                term = choose(condition, *((0.0, LOWEST) if when else (LOWEST, 0.0)))
                if not empty and not y.terms:
                    return Softmax(added(y.base, term), hides=term)
        raise Decline(NOT_A_SOFTMAX)

    def _hides_the_same(self, condition: Inst, weights: Inst, when: bool) -> bool:
        """Whether weights are 0 already unless `condition` is `when`: their scores are the lowest there.

        So only rows without a key change, and those whose other scores are as low.
        """
        base = self._normal(unrounded(weights))[0].base
        if operator(base) != "Where":
            return False
        test, one, other = base.args
        low = other if when else one
        return test is condition and isinstance(low, Literal) and low.value <= _LOW

    def _is_sum(self, total: Inst, powers: Inst) -> bool | None:
        """None if `total` is not the sum of `powers` over the keys; else whether something else stands for a sum of 0.

        A tiny number that is added to a sum that cannot be below 1 changes nothing.
        """
        total = unrounded(total)
        if operator(total) == "Where":
            kept = where_positive(*total.args)
            whole = None if kept is None or kept.value is not kept.chosen else self._is_sum(kept.value, powers)
            return None if whole is None else True
        if operator(total) == "Add" and has_peak(powers):
            for rest, tiny in (total.args, total.args[::-1]):
                if isinstance(tiny, Literal) and 0 <= tiny.value <= _TINY:
                    return self._is_sum(rest, powers)
        if isinstance(total, Fold) and total.kind == "sum" and unrounded(total.operand) is powers:
            if isinstance(total, Sunk):
                self.sink = self._beside(powers, unrounded(total.extra))
            return False
        if operator(total) == "Add":  # softmax with one more in the sum: a sink of score 0
            for rest, extra in (total.args, total.args[::-1]):
                if isinstance(rest, Fold) and not isinstance(rest, Sunk) and self._is_sum(rest, powers) is False:
                    try:
                        self.sink = self._beside(powers, unrounded(extra))
                    except Decline:
                        return None
                    return False
        return None

    def _beside(self, powers: Inst, extra: Inst) -> Inst:
        """The score of which `extra` is the power, as `powers` are those of the others: less the same."""
        if isinstance(extra, Literal) and extra.value > 0:
            extra = applied("Exp", "float32", Literal("float32", float(np.log(extra.value))))
        if operator(powers) == operator(extra) == "Exp":
            x, sink = unrounded(powers.args[0]), unrounded(extra.args[0])
            while operator(x) == "Sub" and self._is_same(x.args[1]):
                if operator(sink) == "Sub" and x.args[1] is sink.args[1]:
                    sink = unrounded(sink.args[0])
                elif operator(sink) == "Neg" and x.args[1] is sink.args[0] and has_least(sink.args[0]):
                    sink = Literal("float32", 0.0)
                else:
                    break
                x = unrounded(x.args[0])
            if x is unrounded(self._moving(powers.args[0])) \
                    and not any(isinstance(inst, (Fold, Score)) for inst in insts(sink)):
                return sink
        raise Decline("what is beside the scores in the softmax is not one score for each row")

    def _less_log_sum(self, value: Inst) -> _Exponent | None:
        """y where `value` is y - log(sum(exp(y))) but for what is the same along a row."""
        terms = terms_of(value)
        logs = [t for t, sign in terms if sign < 0 and operator(t) == "Log"]
        if len(logs) != 1:
            return None
        total = logs[0].args[0]
        if not isinstance(total, Fold) or total.kind != "sum" or operator(total.operand) != "Exp":
            return None
        inside = terms_of(total.operand.args[0])
        # log(sum(exp(y - c))) is less by c: what is left of the one must be left of the other.
        rest = [(id(t), sign) for t, sign in terms if t is not logs[0]]
        return self.exponent(total.operand) if sorted(rest) == sorted((id(t), sign) for t, sign in inside) else None

    # -- powers ---------------------------------------------------------------------------------------------------
    def exponent(self, powers: Inst) -> _Exponent:
        """y where `powers` are exp(y) times what is the same along a row."""
        powers = unrounded(powers)
        if operator(powers) == "Exp":
            return _Exponent(self._moving(powers.args[0]))
        if operator(powers) == "Where":
            condition, one, other = powers.args
            if not any(isinstance(inst, Fold) for inst in insts(condition)):
                if is_number(other, 0):
                    return self._chosen(condition, one, True)
                if is_number(one, 0):
                    return self._chosen(condition, other, False)
        quotient = quotient_of(powers)
        if quotient is not None and self._is_same(quotient[1]):
            return self.exponent(quotient[0])
        if operator(powers) == "Mul":
            for kept, factor in (powers.args, powers.args[::-1]):
                if not any(isinstance(inst, Fold) for inst in insts(factor)):
                    y = self.exponent(kept)
                    return replace(y, terms=(*y.terms, self._log(factor)))
        raise Decline(NOT_A_SOFTMAX)

    def _chosen(self, condition: Inst, powers: Inst, when: bool) -> _Exponent:
        """y of powers that are 0 unless `condition` is `when`.

        NaN of a hidden key is passed over with its power; where the powers were divided by their sum before, it is in
        all of them.
        """
        y = self.exponent(powers)
        term = choose(condition, *((0.0, LOWEST) if when else (LOWEST, 0.0)))
        if operator(unrounded(powers)) != "Exp":
            return replace(y, terms=(*y.terms, term))
        lowest = Literal("float32", LOWEST)
        base = applied("Where", "float32", condition, *((y.base, lowest) if when else (lowest, y.base)))
        return _Exponent(base, known=(term,))

    def _moving(self, value: Inst) -> Inst:
        """`value` without what is the same along a row."""
        while operator(unrounded(value)) == "Sub" and self._is_same(unrounded(value).args[1]):
            value = unrounded(value).args[0]
        return value

    def _is_same(self, value: Inst) -> bool:
        """Whether a value is the same for all keys, and made by a reduction (others may be positions or masks)."""
        folded = False
        stack = [value]
        while stack:
            inst = stack.pop()
            if isinstance(inst, Fold):
                folded = True
                continue
            if not isinstance(inst, (Apply, Literal)):
                index = inst.address if isinstance(inst, Load) else inst.index if isinstance(inst, Place) else None
                if index is None or self.key in index.vars():
                    return False
            stack.extend(inst.args)
        return folded

    def _log(self, factor: Inst) -> Inst:
        """log(factor), or `Decline` where the factor may be below 0."""
        if operator(factor) == "Cast" and factor.args[0].dtype == "bool":
            return choose(factor.args[0], 0.0, LOWEST)
        if operator(factor) == "Where" and all(isinstance(v, Literal) and v.value >= 0 for v in factor.args[1:]):
            with np.errstate(divide="ignore"):
                one, other = (float(np.log(np.float32(v.value))) for v in factor.args[1:] if isinstance(v, Literal))
            return choose(factor.args[0], one, other)
        if is_never_negative(factor):
            return applied("Log", "float32", factor)
        raise Decline("weights are multiplied by something that may be negative after the softmax")
