"""Tensor extents: integers, symbols, and polynomials of symbols.

A `Dim` is an immutable polynomial with integer coefficients over *atoms*. An atom is a symbol name or an
irreducible operation on other dims (floor division, remainder, minimum, maximum). Polynomials are kept in a
canonical form, so that structural equality is equality of values for every binding of the symbols.

Symbols stand for non-negative integers that are known when the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

from tilegraph.spec.dim_text import Tree, read

JsonExpr = Any  # int | str | [op, JsonExpr, ...]; see docs/manifest.md


@dataclass(frozen=True)
class Opaque:
    """An operation that is not a polynomial: `op` is one of "//", "%", "min", "max"."""

    op: str
    args: tuple[Dim, ...]

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({', '.join(map(str, self.args))})"
        left, right = self.args
        shown = f"({left})" if len(left.terms) > 1 else str(left)
        return f"({shown}{self.op}({right}))" if _compound(right) else f"({shown}{self.op}{right})"


Atom = str | Opaque
Monomial = tuple[Atom, ...]  # sorted, with repetition for powers; () is the constant term


def _order(atom: Atom) -> str:
    return str(atom)


class Dim:
    """A polynomial in canonical form. `terms` maps a monomial to its non-zero integer coefficient."""

    __slots__ = ("_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: Mapping[Monomial, int] | None = None) -> None:
        kept = {m: c for m, c in (terms or {}).items() if c}
        self.terms = tuple(sorted(kept.items(), key=lambda t: (len(t[0]), tuple(map(_order, t[0])))))
        self._hash = hash(self.terms)

    # -- construction -------------------------------------------------------------------------------------
    @staticmethod
    def of(value: DimLike) -> Dim:
        """An int, a Dim, or a string in the notation of `str(dim)` (also what onnx_ir writes for symbolic dims)."""
        if isinstance(value, Dim):
            return value
        if isinstance(value, int):
            return Dim({(): int(value)})
        return parse(value)

    @staticmethod
    def symbol(name: str) -> Dim:
        return Dim({(name,): 1})

    # -- queries ------------------------------------------------------------------------------------------
    @property
    def is_static(self) -> bool:
        return all(m == () for m, _ in self.terms)

    @property
    def value(self) -> int:
        """The integer; `ValueError` if symbolic."""
        if not self.is_static:
            raise ValueError(f"dim {self} is symbolic")
        return self.terms[0][1] if self.terms else 0

    def as_int(self) -> int | None:
        return self.value if self.is_static else None

    def atoms(self) -> Iterator[Atom]:
        """Symbols and operations, those inside of operations too; one may come twice."""
        for mono, _ in self.terms:
            for atom in mono:
                yield atom
                if isinstance(atom, Opaque):
                    for arg in atom.args:
                        yield from arg.atoms()

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(atom for atom in self.atoms() if isinstance(atom, str))

    @property
    def bare_symbol(self) -> str | None:
        """The name if this is one symbol and nothing else."""
        if len(self.terms) == 1:
            mono, coef = self.terms[0]
            if coef == 1 and len(mono) == 1 and isinstance(mono[0], str):
                return mono[0]
        return None

    @property
    def least(self) -> int | None:
        """A number that no binding of the symbols (from 0 on) goes below; None where none is known."""
        total = 0
        for mono, coef in self.terms:
            if not mono:
                total += coef
                continue
            lows = [0 if isinstance(atom, str) else _least(atom) for atom in mono]
            known = [low for low in lows if low is not None]
            if coef < 0 or len(known) < len(lows) or (len(known) > 1 and min(known) < 0):
                return None
            total += coef * math.prod(known)
        return total

    def evaluate(self, binding: Mapping[str, int]) -> int:
        """The value under `binding`; `KeyError` names a missing symbol."""
        total = 0
        for mono, coef in self.terms:
            product = coef
            for atom in mono:
                product *= binding[atom] if isinstance(atom, str) else _apply(atom, binding)
            total += product
        return total

    def substitute(self, binding: Mapping[str, DimLike] | Mapping[Atom, DimLike]) -> Dim:
        """With other dims in the place of symbols, or of whole atoms."""
        known: Mapping[Any, DimLike] = binding
        total = Dim.of(0)
        for mono, coef in self.terms:
            product = Dim.of(coef)
            for atom in mono:
                if atom in known:
                    product = product * Dim.of(known[atom])
                elif isinstance(atom, str):
                    product = product * Dim.symbol(atom)
                else:
                    product = product * _make(atom.op, [a.substitute(binding) for a in atom.args])
            total = total + product
        return total

    # -- arithmetic ---------------------------------------------------------------------------------------
    def __add__(self, other: DimLike) -> Dim:
        terms = dict(self.terms)
        for mono, coef in Dim.of(other).terms:
            terms[mono] = terms.get(mono, 0) + coef
        return Dim(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim({m: -c for m, c in self.terms})

    def __sub__(self, other: DimLike) -> Dim:
        return self + (-Dim.of(other))

    def __rsub__(self, other: DimLike) -> Dim:
        return Dim.of(other) - self

    def __mul__(self, other: DimLike) -> Dim:
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in Dim.of(other).terms:
                mono = tuple(sorted(m1 + m2, key=_order))
                terms[mono] = terms.get(mono, 0) + c1 * c2
        return Dim(terms)

    __rmul__ = __mul__

    def exact_div(self, other: DimLike) -> Dim | None:
        """`self / other` if it is a polynomial with integer coefficients, else None."""
        divisor = Dim.of(other)
        if len(divisor.terms) != 1:
            return self._long_div(divisor) if divisor.terms else None
        dmono, dcoef = divisor.terms[0]
        terms: dict[Monomial, int] = {}
        for mono, coef in self.terms:
            rest = list(mono)
            for atom in dmono:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if coef % dcoef:
                return None
            terms[tuple(rest)] = coef // dcoef
        return Dim(terms)

    def _long_div(self, divisor: Dim) -> Dim | None:
        """Leading term by leading term: degrees first, then the atoms in order, which products keep."""
        quotient, rest = Dim(), self
        lead = Dim(dict(divisor.terms[-1:]))
        while rest.terms:
            part = Dim(dict(rest.terms[-1:])).exact_div(lead)
            left = None if part is None else rest - part * divisor
            if part is None or left is None or left.terms[-1:] == rest.terms[-1:]:
                return None
            quotient, rest = quotient + part, left
        return quotient

    def __floordiv__(self, other: DimLike) -> Dim:
        return _make("//", [self, Dim.of(other)])

    def __mod__(self, other: DimLike) -> Dim:
        return _make("%", [self, Dim.of(other)])

    def ceildiv(self, other: DimLike) -> Dim:
        return (self + Dim.of(other) - 1) // other

    @staticmethod
    def min(*args: DimLike) -> Dim:
        return _make("min", [Dim.of(a) for a in args])

    @staticmethod
    def max(*args: DimLike) -> Dim:
        return _make("max", [Dim.of(a) for a in args])

    @staticmethod
    def product(dims: Iterable[DimLike]) -> Dim:
        return reduce(lambda a, b: a * b, (Dim.of(d) for d in dims), Dim.of(1))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.as_int() == other
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        for mono, coef in reversed(self.terms):
            body = "*".join(map(str, mono))
            text = str(abs(coef)) if not mono else body if abs(coef) == 1 else f"{abs(coef)}*{body}"
            parts.append(("-" if coef < 0 else "+" if parts else "") + text)
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Dim({self})"

    # -- the manifest's form ------------------------------------------------------------------------------
    def to_json(self) -> JsonExpr:
        """int | "symbol" | [op, arg, arg ...] with op in + * // % min max."""
        sums: list[JsonExpr] = []
        for mono, coef in self.terms:
            factors: list[JsonExpr] = [] if coef == 1 and mono else [coef]
            for atom in mono:
                factors.append(atom if isinstance(atom, str) else [atom.op, *(a.to_json() for a in atom.args)])
            sums.append(factors[0] if len(factors) == 1 else ["*", *factors])
        return 0 if not sums else sums[0] if len(sums) == 1 else ["+", *sums]

    @staticmethod
    def from_json(expr: JsonExpr) -> Dim:
        """The dim that `to_json` wrote. Raises ValueError and TypeError for what it does not write."""
        if isinstance(expr, int):
            return Dim.of(expr)
        if isinstance(expr, str):
            return Dim.symbol(expr)
        op, *args = expr
        if op not in ("+", "*", "//", "%", "min", "max"):
            raise ValueError(f"unknown operation {op!r}")
        dims = [Dim.from_json(a) for a in args]
        return reduce(lambda a, b: a + b, dims) if op == "+" else Dim.product(dims) if op == "*" else _make(op, dims)


DimLike = Dim | int | str
Shape = tuple[Dim, ...]


def _compound(dim: Dim) -> bool:
    """Whether this is a sum or a product, and not one number or atom."""
    return len(dim.terms) > 1 or any(mono and (coef != 1 or len(mono) > 1) for mono, coef in dim.terms)


def _apply(atom: Opaque, binding: Mapping[str, int]) -> int:
    values = [a.evaluate(binding) for a in atom.args]
    return {"//": lambda: values[0] // values[1], "%": lambda: values[0] % values[1],
            "min": lambda: min(values), "max": lambda: max(values)}[atom.op]()


def _least(atom: Opaque) -> int | None:
    lows = [a.least for a in atom.args]
    known = [low for low in lows if low is not None]
    if atom.op == "max":
        return max(known, default=None)
    if atom.op == "min":
        return min(known) if len(known) == len(lows) else None
    low, divisor = lows
    if divisor is None or divisor < 0:
        return None
    if atom.op == "%":
        return 0
    exact = atom.args[1].as_int()
    return None if low is None else low // exact if exact else 0 if low >= 0 else None


def _make(op: str, args: list[Dim]) -> Dim:
    if all(a.is_static for a in args) and not (op in ("//", "%") and args[1] == 0):
        return Dim.of(_apply(Opaque(op, tuple(args)), {}))
    if op in ("min", "max"):
        unique = sorted(set(args), key=str)
        return unique[0] if len(unique) == 1 else Dim({(Opaque(op, tuple(unique)),): 1})
    left, right = args
    exact = left.exact_div(right)
    if exact is not None:
        return exact if op == "//" else Dim.of(0)
    by = right.as_int()
    if op == "//" and by is not None and by > 0:
        # floor((by*a + b) / by) = a + floor(b / by), and floor(floor(a / b) / c) = floor(a / (b*c)). Negative terms
        # stay where they are:
        # ((h-1)//2)+1 is seen to be no less than 1.
        whole = Dim({m: c // by for m, c in left.terms if c >= by and (c % by == 0 or m == ())})
        if whole.terms:
            return whole + _make(op, [left - whole * by, right])
        inner = left.terms[0][0][0] if len(left.terms) == 1 and len(left.terms[0][0]) == 1 else None
        if isinstance(inner, Opaque) and inner.op == op and left.terms[0][1] == 1 and (inner.args[1].as_int() or 0) > 0:
            return _make(op, [inner.args[0], inner.args[1] * by])
    return Dim({(Opaque(op, (left, right)),): 1})


@lru_cache(maxsize=1 << 14)  # shapes say the same few texts again and again
def parse(text: str) -> Dim:
    """Reads an expression (see `dim_text.read`); what is none, or no whole number, is one symbol of that name."""
    if text.isidentifier():
        return Dim.symbol(text)
    tree = read(text)
    try:
        return Dim.symbol(text) if tree is None else _whole(tree)
    except ValueError:
        return Dim.symbol(text)


def _whole(tree: Tree) -> Dim:
    numerator, denominator = _ratio(tree)
    exact = numerator.exact_div(denominator)
    if exact is None:
        raise ValueError(f"{numerator} / {denominator} is no whole number")
    return exact


def _ratio(tree: Tree) -> tuple[Dim, Dim]:
    """Numerator and denominator of what `dim_text.read` gave; ValueError for what is no quotient of dims."""
    if isinstance(tree, int):
        return Dim({(): int(tree)}), _ONE
    if isinstance(tree, str):
        return Dim.symbol(tree), _ONE
    op, first, *rest = tree
    if op in ("min", "max"):
        return _make(op, [_whole(operand) for operand in (first, *rest)]), _ONE
    if op == "**":
        if not isinstance(rest[0], int) or rest[0] > _MAX_POWER:
            raise ValueError(f"{rest[0]} is no power of an extent")
        rest, op = [first] * rest[0], "*"
        first = 1
    a, b = _ratio(first)
    if op in ("floor", "ceiling"):
        return a // b if op == "floor" else a.ceildiv(b) if (b.least or 0) > 0 else -(-a // b), _ONE
    for operand in rest:
        c, d = _ratio(operand)
        if op in ("+", "-"):
            both = math.lcm(b.value, d.value) if b.is_static and d.is_static else None
            x, y = (d, b) if both is None else (Dim.of(both // b.value), Dim.of(both // d.value))
            a, b = a * x + (c if op == "+" else -c) * y, b * x
        elif op == "*":
            a, b = a * c, b * d
        elif op == "/" and c != 0:
            a, b = a * d, b * c
        elif op == "//":
            a, b = (a * d) // (b * c), _ONE
        elif op == "%" and b == d == 1:
            a = a % c
        else:
            raise ValueError(f"{op} of {a} and {c}")
    return a, b


_ONE = Dim({(): 1})
_MAX_POWER = 16  # of a symbol; more is no extent
