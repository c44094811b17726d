"""Which of two sizes is the larger one, for every binding of the symbols: proved or not known.

Symbols are integers of at least 0 (see `tilegraph.spec.dims`). A proof brings the difference into a sum of terms
that cannot be negative. What it uses:

- a monomial of non-negative atoms is non-negative, and x*y <= x*x*y: the same atoms, more often;
- floor division and remainder of non-negative numbers are non-negative;
- a size rounded up to the alignment lies between the size and the size with each coefficient rounded up;
- max is at least each of its arguments and equal to one of them; min the same the other way round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tilegraph.spec.dims import Atom, Dim, Monomial, Opaque

_DEPTH = 6  # nested case distinctions; beyond it "not known"


class Comparer:
    """Rounds sizes to one alignment and compares sums of them. Keeps what it found out."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self._rounded: dict[Atom, Dim] = {}  # the atom ceil(size / alignment) -> size
        self._known: dict[tuple[Dim, Dim], bool] = {}

    def align(self, size: Dim) -> Dim:
        """The least multiple of the alignment that is not below `size`."""
        exact = Dim({m: c for m, c in size.terms if c % self.alignment == 0})
        rest = size - exact
        if rest.is_static:
            return exact + -(-rest.value // self.alignment) * self.alignment
        units = rest.ceildiv(self.alignment)
        for monomial, coefficient in units.terms:
            if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Opaque):
                self._rounded[monomial[0]] = rest
        return exact + units * self.alignment

    def at_most(self, left: Dim, right: Dim) -> bool:
        """True only if `left` <= `right` for every binding."""
        key = (left, right)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._non_negative(right - left, _DEPTH)
        return found

    def largest(self, sizes: Iterable[Dim]) -> Dim:
        """The maximum, without the arguments that others are never below; 0 of none."""
        kept: list[Dim] = []
        for size in dict.fromkeys(sizes):
            if not any(self.at_most(size, k) for k in kept):
                kept = [k for k in kept if not self.at_most(k, size)] + [size]
        return Dim.max(*kept) if kept else Dim.of(0)

    def _non_negative(self, dim: Dim, depth: int) -> bool:
        if _covered(dim) or _covered(self._bounded(dim)):
            return True
        if depth == 0:
            return False
        for monomial, coefficient in dim.terms:
            if len(monomial) != 1 or not isinstance(monomial[0], Opaque) or monomial[0].op not in ("min", "max"):
                continue
            atom = monomial[0]
            rest = dim - Dim({monomial: coefficient})
            cases = (self._non_negative(rest + argument * coefficient, depth - 1) for argument in atom.args)
            # A positive max is at least every argument: one proof is enough. A negative one may be any of them.
            return any(cases) if (atom.op == "max") == (coefficient > 0) else all(cases)
        return False

    def _bounded(self, dim: Dim) -> Dim:
        """Something that `dim` is never below, without rounded sizes."""
        for monomial, coefficient in dim.terms:
            if len(monomial) == 1 and isinstance(monomial[0], Opaque):
                bound = self._bound(monomial[0], coefficient)
                if bound is not None:
                    dim = dim - Dim({monomial: coefficient}) + bound
        return dim

    def _bound(self, atom: Opaque, coefficient: int) -> Dim | None:
        """Something that `coefficient` * `atom` is never below, without the atom."""
        size = self._rounded.get(atom)
        if size is None or coefficient % self.alignment:
            return None
        if not all(c > 0 and _atoms_non_negative(m) for m, c in size.terms):
            return None
        times = coefficient // self.alignment
        if times > 0:
            return size * times
        return Dim({m: -(-c // self.alignment) * self.alignment for m, c in size.terms}) * times


def _covered(dim: Dim) -> bool:
    """Each negative term is outweighed by positive ones of the same atoms with at least the same powers."""
    if not all(_atoms_non_negative(m) for m, _ in dim.terms):
        return False
    left = {m: c for m, c in dim.terms if c > 0}
    for monomial, coefficient in dim.terms:
        needed = max(0, -coefficient)
        for other in left if needed else ():
            if _same_atoms_more_often(monomial, other):
                used = min(left[other], needed)
                left[other] -= used
                needed -= used
        if needed:
            return False
    return True


def _same_atoms_more_often(less: Monomial, more: Monomial) -> bool:
    one, other = Counter(less), Counter(more)
    return one.keys() == other.keys() and all(other[a] >= n for a, n in one.items())


def _atoms_non_negative(monomial: Monomial) -> bool:
    return all(isinstance(a, str) or _opaque_non_negative(a) for a in monomial)


def _opaque_non_negative(atom: Opaque) -> bool:
    if atom.op == "%":  # the sign of a remainder is the divisor's
        return _covered(atom.args[1])
    if atom.op == "max":
        return any(map(_covered, atom.args))
    return all(map(_covered, atom.args))
