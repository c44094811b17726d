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
        self.atoms = _Atoms()
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
        dim = dim.substitute(self.atoms) if self.atoms else dim
        return self._multiplied(dim) if self.products else dim

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


class _Atoms(dict[Atom, Dim]):
    """What became of atoms. A quotient by 8 follows from that of the same dim by 4."""

    def __contains__(self, atom: object) -> bool:
        return super().__contains__(atom) or (isinstance(atom, Opaque) and self._coarser(atom) is not None)

    def __missing__(self, atom: Atom) -> Dim:
        found = self._coarser(atom) if isinstance(atom, Opaque) else None
        if found is None:
            raise KeyError(atom)
        return found

    def _coarser(self, atom: Opaque) -> Dim | None:
        by = atom.args[1].as_int() if atom.op == "//" else None
        for known, dim in self.items() if by else ():
            if isinstance(known, Opaque) and known.op == "//" and known.args[0] == atom.args[0]:
                step = known.args[1].as_int()
                if by and step and step > 0 and by % step == 0:
                    return dim // (by // step)
        return None


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
