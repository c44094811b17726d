"""What an entry of the pointwise operator table is, and the dtype rules that entries share.

dtypes here are computing dtypes, by numpy name: float16 and bfloat16 operands arrive widened as "float32".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilegraph.ops.math import Math, V

FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMERIC = FLOATS + INTEGERS
BOOL = ("bool",)
EVERY = NUMERIC + BOOL

VARIADIC = 2**31 - 1

CONSTANTS = "operand_constants"
"""Key in `attrs` under which the caller may say which operands are scalars known at compile time, as a mapping
from operand index to Python number. Pow (cheap exponents) and integer Div and Mod (divisors that need no check)
use it; the operand is passed all the same."""


class PointFn(Protocol):
    def __call__(self, m: Math[V], args: list[Any], attrs: Mapping[str, Any], out_dtype: str) -> V: ...


DtypeRule = Callable[[Sequence[str | None]], str | None]
Check = Callable[[Sequence[str | None], Mapping[str, Any], int], str | None]


@dataclass(frozen=True)
class PointOp:
    """One pointwise operator.

    name: op_type; domain: "" for ai.onnx. arity: fewest and most operands (VARIADIC: no limit).
    fn(m, args, attrs, out_dtype): the value; args in computing dtypes, already broadcast by the caller, None for an
    absent optional operand; attrs as Python values; out_dtype the computing dtype of the result.
    cost: rough number of vector instructions per vector of results, a libm call counted as LIBM.
    since: which opsets define it and what changed.
    dtypes, check: used by `accepts`; the first line of check's docstring says in docs/operators.md what it declines.
    """

    name: str
    domain: str
    arity: tuple[int, int]
    fn: PointFn
    cost: int
    since: str
    dtypes: DtypeRule
    check: Check | None = None

    def accepts(self, in_dtypes: Sequence[str | None], attrs: Mapping[str, Any], opset: int) -> str | None:
        """Why this use of the operator has no kernel, or None if it has one. None in `in_dtypes`: absent operand."""
        low, high = self.arity
        if not low <= len(in_dtypes) <= high:
            wanted = f"{low}" if low == high else f"at least {low}" if high == VARIADIC else f"{low} to {high}"
            return f"{self.name} has {len(in_dtypes)} inputs, expected {wanted}"
        for i in range(low):
            if in_dtypes[i] is None:
                return f"{self.name} lacks its required input {i}"
        reason = self.dtypes(in_dtypes)
        if reason is None and self.check is not None:
            reason = self.check(in_dtypes, attrs, opset)
        return None if reason is None else f"{self.name}: {reason}"


LIBM = 200  # a libm call for each lane of a vector


def alike(allowed: Sequence[str]) -> DtypeRule:
    """All present operands have one dtype, which is in `allowed`."""

    def rule(dtypes: Sequence[str | None]) -> str | None:
        present = [d for d in dtypes if d is not None]
        for d in present:
            if d not in allowed:
                return f"no kernel for {d} (only {', '.join(allowed)})"
        if len(set(present)) > 1:
            return f"operands of different dtypes {', '.join(present)}"
        return None

    return rule


def each(*allowed: Sequence[str]) -> DtypeRule:
    """Operand i has a dtype in allowed[i]."""

    def rule(dtypes: Sequence[str | None]) -> str | None:
        for i, (d, choice) in enumerate(zip(dtypes, allowed, strict=False)):
            if d is not None and d not in choice:
                return f"no kernel for {d} as input {i} (only {', '.join(choice)})"
        return None

    return rule


def constant_operand(attrs: Mapping[str, Any], index: int) -> float | int | None:
    """The scalar that operand `index` is known to be, or None."""
    known: Mapping[int, float | int] = attrs.get(CONSTANTS) or {}
    return known.get(index)


def unary(
    name: str,
    compute: Callable[[Any, Any], Any],
    cost: int,
    allowed: Sequence[str] = FLOATS,
    since: str = "1",
    domain: str = "",
) -> PointOp:
    """An operator y = compute(m, x) without attributes."""

    def fn(m: Math[Any], args: list[Any], attrs: Mapping[str, Any], out_dtype: str) -> Any:
        return compute(m, args[0])

    return PointOp(name, domain, (1, 1), fn, cost, since, alike(allowed))


def binary(
    name: str,
    compute: Callable[[Any, Any, Any], Any],
    cost: int,
    allowed: Sequence[str],
    since: str = "7",
    domain: str = "",
) -> PointOp:
    """An operator y = compute(m, a, b) without attributes."""

    def fn(m: Math[Any], args: list[Any], attrs: Mapping[str, Any], out_dtype: str) -> Any:
        return compute(m, args[0], args[1])

    return PointOp(name, domain, (2, 2), fn, cost, since, alike(allowed))
