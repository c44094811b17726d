"""Index expressions: how a value inside a kernel is addressed by the kernel's loop variables.

An `Ix` is an affine form `const + sum(coef * atom)` whose atoms are loop variables, or floor divisions and remainders
that did not simplify. Coefficients are `Dim`s, so row strides of tensors with symbolic extents stay affine. Divisions
simplify by the usual argument for mixed radix numbers: terms that the divisor divides move out, and a rest that is
provably below the divisor vanishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilegraph.spec.dims import Dim, DimLike


@dataclass(frozen=True)
class Var:
    """A loop variable in [0, extent)."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Quotient:
    """floor(of / by) that did not simplify."""

    of: Ix
    by: Dim


@dataclass(frozen=True)
class Remainder:
    """of mod by that did not simplify."""

    of: Ix
    by: Dim


@dataclass(frozen=True)
class Dynamic:
    """A value that the kernel computes, an integer in [0, extent); `vars` are the loops that it changes with."""

    name: str
    value: Any  # the `ops.space.Inst`; equal only to itself
    extent: Dim
    vars: frozenset[Var]


Atom = Var | Quotient | Remainder | Dynamic


class SplitNeeded(Exception):
    """A division would be affine if `var` were two loops, the inner one of extent `inner`."""

    def __init__(self, var: Var, inner: Dim) -> None:
        super().__init__(f"split {var.name} by {inner}")
        self.var = var
        self.inner = inner


class Ix:
    """An immutable index expression."""

    __slots__ = ("_hash", "const", "dynamic", "terms")

    terms: tuple[tuple[Atom, Dim], ...]
    const: Dim
    dynamic: tuple[Dynamic, ...]  # those anywhere inside

    def __init__(self, terms: Mapping[Atom, Dim] | None = None, const: DimLike = 0) -> None:
        kept = [(a, c) for a, c in (terms or {}).items() if c.terms]
        self.terms = tuple(sorted(kept, key=lambda t: _key(t[0])))
        self.const = Dim.of(const)
        self._hash = hash((self.terms, self.const))
        inside: dict[Dynamic, None] = {}
        for atom, _ in self.terms:
            if isinstance(atom, Dynamic):
                inside[atom] = None
            elif not isinstance(atom, Var):
                inside.update(dict.fromkeys(atom.of.dynamic))
        self.dynamic = tuple(inside)

    @staticmethod
    def of(value: Ix | Var | DimLike) -> Ix:
        if isinstance(value, Ix):
            return value
        if isinstance(value, Var):
            return Ix({value: Dim.of(1)})
        return Ix(None, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ix) and self.terms == other.terms and self.const == other.const

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [f"{c}*{_name(a)}" if c != 1 else _name(a) for a, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    # -- queries ------------------------------------------------------------------------------------------
    def coef(self, var: Var) -> Dim:
        """The coefficient of `var` (0 if absent); occurrences inside quotients do not count, see `hidden`."""
        for atom, coef in self.terms:
            if atom == var:
                return coef
        return Dim.of(0)

    def hidden(self) -> set[Var]:
        """Variables that occur inside quotients and remainders, or that computed values change with."""
        found: set[Var] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Dynamic):
                found |= atom.vars
            elif not isinstance(atom, Var):
                found |= atom.of.vars()
        return found

    def vars(self) -> set[Var]:
        return {a for a, _ in self.terms if isinstance(a, Var)} | self.hidden()

    def single(self) -> tuple[Var, Dim] | None:
        """(var, offset) if this is `var + offset`."""
        if len(self.terms) == 1:
            atom, coef = self.terms[0]
            if isinstance(atom, Var) and coef == 1:
                return atom, self.const
        return None

    # -- arithmetic ---------------------------------------------------------------------------------------
    def __add__(self, other: Ix | DimLike) -> Ix:
        right = Ix.of(other)
        terms = dict(self.terms)
        for atom, coef in right.terms:
            terms[atom] = terms[atom] + coef if atom in terms else coef
        return Ix(terms, self.const + right.const)

    def __mul__(self, factor: DimLike) -> Ix:
        f = Dim.of(factor)
        return Ix({a: c * f for a, c in self.terms}, self.const * f)

    def __sub__(self, other: Ix | DimLike) -> Ix:
        return self + Ix.of(other) * -1

    def bounds(self) -> tuple[Dim, Dim] | None:
        """The least and the greatest value, if the terms tell (where a loop is empty there is no value)."""
        low = high = self.const
        for atom, coef in self.terms:
            extent = _extent(atom)
            if extent is None:
                return None
            if _nonneg(coef):
                high = high + coef * (extent - 1)
            elif _nonneg(-coef):
                low = low + coef * (extent - 1)
            else:
                return None
        return low, high

    def below(self, bound: Dim) -> bool:
        """True if 0 <= self < bound for certain."""
        found = self.bounds()
        return found is not None and _nonneg(found[0]) and _nonneg(bound - found[1] - 1)

    def floordiv(self, by: DimLike) -> Ix:
        """Raises SplitNeeded where splitting a loop makes it affine."""
        quotient, rest, d = self._divide(Dim.of(by))
        if rest.below(d):
            return quotient
        return quotient + Ix({Quotient(rest, d): Dim.of(1)})

    def mod(self, by: DimLike) -> Ix:
        _, rest, d = self._divide(Dim.of(by))
        return rest if rest.below(d) else Ix({Remainder(rest, d): Dim.of(1)})

    def _divide(self, d: Dim) -> tuple[Ix, Ix, Dim]:
        whole: dict[Atom, Dim] = {}
        rest: dict[Atom, Dim] = {}
        for atom, coef in self.terms:
            exact = coef.exact_div(d)
            if exact is not None:
                whole[atom] = exact
            else:
                rest[atom] = coef
        static, by = self.const.as_int(), d.as_int()
        if static is not None and by:
            q, r = divmod(static, by)
            quotient, remainder = Ix(whole, q), Ix(rest, r)
        else:
            exact = self.const.exact_div(d)
            if exact is not None:
                quotient, remainder = Ix(whole, exact), Ix(rest)
            else:
                quotient, remainder = Ix(whole), Ix(rest, self.const)
        if not remainder.below(d):
            for atom, coef in remainder.terms:
                inner = d.exact_div(coef if _nonneg(coef) else -coef)
                if isinstance(atom, Var) and inner is not None and inner != 1:
                    outer = atom.extent.exact_div(inner)
                    if outer is not None and outer != 1:
                        raise SplitNeeded(atom, inner)
        # Kernels divide towards zero: what a division is left with must not be negative (loops that run backwards).
        found = remainder.bounds()
        low = None if found is None else found[0].as_int()
        if low is not None and low < 0 and by:
            steps = -(low // by)
            quotient, remainder = quotient - steps, remainder + steps * by
        elif found is not None and not _nonneg(found[0]):
            quotient, remainder = Ix(), self
        return quotient, remainder, d

    def replace(self, mapping: Mapping[Var, Ix], computed: Mapping[int, Any] | None = None) -> Ix:
        """Substitutes variables, re-simplifying quotients and remainders.

        `computed`: what becomes of the values of `Dynamic`s, by identity; needed where there are any.
        """
        total = Ix(None, self.const)
        for atom, coef in self.terms:
            if isinstance(atom, Var):
                part = mapping.get(atom)
                part = Ix({atom: Dim.of(1)}) if part is None else part
            elif isinstance(atom, Quotient):
                part = atom.of.replace(mapping, computed).floordiv(atom.by)
            elif isinstance(atom, Remainder):
                part = atom.of.replace(mapping, computed).mod(atom.by)
            else:
                assert computed is not None
                moved = frozenset(w for v in atom.vars for w in (mapping[v].vars() if v in mapping else (v,)))
                part = Ix({Dynamic(atom.name, computed[id(atom.value)], atom.extent, moved): Dim.of(1)})
            total = total + part * coef
        return total


def flat_address(indices: Iterable[Ix], shape: Iterable[Dim]) -> Ix:
    """The row-major element offset of `indices` in a tensor of `shape`."""
    total = Ix()
    stride = Dim.of(1)
    for index, extent in reversed(list(zip(indices, shape, strict=True))):
        total = total + index * stride
        stride = stride * extent
    return total


def reshape_indices(indices: tuple[Ix, ...], shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> tuple[Ix, ...]:
    """Where element `indices` of a tensor of `shape` lies in its row-major reshape `source`.

    Dims are matched in groups of equal product, so that only what really changed is divided. Raises SplitNeeded.
    """
    result: list[Ix] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        left = [i] if i < len(shape) else []
        right = [j] if j < len(source) else []
        i += len(left)
        j += len(right)
        a = Dim.product(shape[k] for k in left)
        b = Dim.product(source[k] for k in right)
        while a != b and (i < len(shape) or j < len(source)):
            if j >= len(source) or (i < len(shape) and not _divides_more(a, b)):
                a = a * shape[i]
                left.append(i)
                i += 1
            else:
                b = b * source[j]
                right.append(j)
                j += 1
        if len(left) == 1 and len(right) == 1:
            result.append(indices[left[0]])
            continue
        linear = flat_address([indices[k] for k in left], [shape[k] for k in left])
        stride = Dim.of(1)
        group: list[Ix] = []
        for pos, k in enumerate(reversed(right)):
            part = linear.floordiv(stride) if stride != 1 else linear
            group.append(part if pos == len(right) - 1 else part.mod(source[k]))
            stride = stride * source[k]
        result.extend(reversed(group))
    return tuple(result)


def _divides_more(a: Dim, b: Dim) -> bool:
    """Whether the source side should grow next: its product b is a proper part of a, or a cannot tell."""
    x, y = a.as_int(), b.as_int()
    if x is not None and y is not None:
        return y < x
    return a.exact_div(b) is not None


def evaluate(ix: Ix, env: Callable[[Var], int], dims: Mapping[str, int]) -> int:
    """The integer value, for tests and for tables."""
    total = ix.const.evaluate(dims)
    for atom, coef in ix.terms:
        if isinstance(atom, Var):
            value = env(atom)
        elif isinstance(atom, Quotient):
            value = evaluate(atom.of, env, dims) // atom.by.evaluate(dims)
        elif isinstance(atom, Dynamic):
            raise TypeError(f"{atom.name} is only known to the kernel")
        else:
            value = evaluate(atom.of, env, dims) % atom.by.evaluate(dims)
        total = total + value * coef.evaluate(dims)
    return total


def _extent(atom: Atom) -> Dim | None:
    if isinstance(atom, (Var, Dynamic)):
        return atom.extent
    return atom.by if isinstance(atom, Remainder) else None


def may_be_zero(dim: Dim) -> bool:
    """Whether a run may have the extent `dim` as 0, as far as its terms tell."""
    least = dim.least
    return least is None or least < 1


def _nonneg(dim: Dim) -> bool:
    return all(c >= 0 for _, c in dim.terms)


def _name(atom: Atom) -> str:
    if isinstance(atom, (Var, Dynamic)):
        return atom.name
    return f"({atom.of!r} {'//' if isinstance(atom, Quotient) else '%'} {atom.by})"


def _key(atom: Atom) -> tuple[int, str]:
    return (0, atom.name) if isinstance(atom, Var) else (1, _name(atom))
