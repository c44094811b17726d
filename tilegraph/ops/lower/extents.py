"""Extents in terms of those that a kernel can read off its inputs.

An input's dim such as `((h-16)//8)+1`, where no input has the extent h, counts as one symbol of that name. What it is
made of follows from it: `(h-16)//8` is the symbol less 1, so that `32*((h-16)//8)+32` is 32 times the symbol, and where
batch*seq is one, 2*batch*seq is twice that. A symbol
of which an input has a multiple (4*batch, the windows of each image) keeps its name: whoever calls the kernel divides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from tilegraph.spec.dims import Atom, Dim, Monomial, Opaque


class Renames(dict[Dim, Dim]):
    """`of(dim)`: the dim in terms of the symbols. As a mapping: the dims that were renamed, and what became of them;
    whoever computes an extent from renamed ones may add it."""

    def __init__(self, dims: Iterable[Dim] = (), unbound: Set[str] = frozenset()) -> None:
        """`dims`: of inputs. `unbound`: symbols that are no dim of an input by themselves."""
        super().__init__()
        self.atoms: dict[Atom, Dim] = {}
        self.products: dict[Monomial, Dim] = {}
        unknown = [d for d in set(dims) if d.symbols & unbound and d.bare_symbol is None]
        for dim in sorted(unknown, key=lambda d: (_solved(d, unbound) is None, len(str(d)), str(d))):
            known = self.of(dim)
            if known.symbols & unbound:
                known = Dim.symbol(str(dim))
                atom = _solved(dim, unbound)
                if atom is not None:
                    self.atoms[atom] = known - (dim - Dim({(atom,): 1}))
                elif len(dim.terms) == 1 and dim.terms[0][1] == 1:
                    self.products[dim.terms[0][0]] = known
            self[dim] = known

    def of(self, dim: Dim) -> Dim:
        found = self.get(dim)
        if found is not None or dim.is_static:
            return dim if found is None else found
        known = {atom: became for atom in dim.atoms() if (became := self._atom(atom)) is not None} if self.atoms else {}
        dim = dim.substitute(known) if known else dim
        return self._multiplied(dim) if self.products else dim

    def learn(self, dim: Dim, known: Dim) -> None:
        """`dim` is `known` from now on, wherever it stands as one symbol."""
        self.setdefault(dim, known)
        if dim.bare_symbol is not None:
            self.atoms.setdefault(dim.bare_symbol, known)

    def _atom(self, atom: Atom) -> Dim | None:
        """What became of it. A quotient by 8 follows from that of the same dim by 4."""
        if atom in self.atoms or isinstance(atom, str) or atom.op != "//":
            return self.atoms.get(atom)
        by = atom.args[1].as_int() or 0
        for other, became in self.atoms.items():
            if isinstance(other, Opaque) and other.op == "//" and other.args[0] == atom.args[0]:
                step = other.args[1].as_int() or 0
                if step > 0 and by and by % step == 0:
                    return became // (by // step)
        return None

    def _multiplied(self, dim: Dim) -> Dim:
        """`dim` with what became of a product in its place."""
        total = Dim.of(0)
        for mono, count in dim.terms:
            rest, factor = list(mono), Dim.of(count)
            for product, known in self.products.items():
                while not Counter(product) - Counter(rest):
                    for atom in product:
                        rest.remove(atom)
                    factor = factor * known
            total = total + factor * Dim({tuple(rest): 1})
        return total


def _solved(dim: Dim, unbound: Set[str]) -> Atom | None:
    """The atom of the only term of `dim` that is not constant, if it stands there once and by itself, and a kernel does
    not know it."""
    terms = [(mono, count) for mono, count in dim.terms if mono]
    if len(terms) != 1 or len(terms[0][0]) != 1 or terms[0][1] != 1:
        return None
    (atom,) = terms[0][0]
    return atom if Dim({(atom,): 1}).symbols & unbound else None


def divided(dims: Iterable[Dim], unknown: Set[str]) -> dict[str, tuple[Dim, Dim]]:
    """For each symbol of `unknown` of which one of `dims` is a multiple, plus a constant: that dim, and what the symbol
    is where the dim is named by its text."""
    found: dict[str, tuple[Dim, Dim]] = {}
    for dim in sorted(set(dims), key=lambda d: (len(str(d)), str(d))):
        terms = [(mono, count) for mono, count in dim.terms if mono]
        if len(terms) == 1 and len(terms[0][0]) == 1 and terms[0][1] > 1:
            (symbol,), by = terms[0]
            if isinstance(symbol, str) and symbol in unknown and symbol not in found:
                found[symbol] = dim, (Dim.symbol(str(dim)) - (dim - Dim.symbol(symbol) * by)) // by
    return found
