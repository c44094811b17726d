"""What a caller says about symbolic dims: sizes (`batch=1`), and how one follows from others (`total=past+seq`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilegraph.errors import UsageError
from tilegraph.spec.dim_text import read
from tilegraph.spec.dims import Dim

GivenDims = Mapping[str, int | str]


def resolve(given: GivenDims, known: Iterable[str]) -> dict[str, Dim]:
    """An integer, or a sum of products of other symbols, for each name of `given`.

    `known`: the model's symbols. A symbol that the model does not have may stand alone in its expression: `height=32*h`
    says that the height is a multiple of 32. Integers are put into expressions that mention their names. Raises
    UsageError for what is negative, for expressions that are none or could be negative, for other unknown symbols and
    for names that follow from each other.
    """
    symbols = set(known)
    sizes = {name: _size(name, value) for name, value in given.items() if not isinstance(value, str)}
    found = dict(sizes)
    for name, text in given.items():
        if isinstance(text, str):
            found[name] = _expression(name, text, symbols, given).substitute(dict(sizes))
    return found


def _size(name: str, value: object) -> Dim:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"dim '{name}' must be an integer or an expression of other dims, not {value!r}")
    if value < 0:
        raise UsageError(f"dim '{name}' must not be negative, got {value}")
    return Dim.of(value)


def _expression(name: str, text: str, known: set[str], given: GivenDims) -> Dim:
    try:
        dim = Dim.of(text) if read(text) is not None or text.isidentifier() else None
    except ValueError:
        dim = None
    if dim is None or any(not s.isidentifier() for s in dim.symbols):
        raise UsageError(f"dim '{name}' cannot be '{text}'; write a size, or a sum of other dims "
                         "such as past+seq or 32*h")
    if any(coef < 0 or not all(isinstance(atom, str) for atom in mono) for mono, coef in dim.terms):
        raise UsageError(f"dim '{name}' cannot be '{text}': only sums and products of dims and of positive integers "
                         "are never negative, such as past+seq or 32*h")
    if not dim.symbols:
        return dim
    new = sorted(dim.symbols - known)
    if new and len(dim.symbols) > 1:
        raise UsageError(f"dim '{name}' cannot be '{text}': the model has no dim '{new[0]}' (it has "
                         f"{', '.join(sorted(known)) or 'none'}); a new name may only stand alone, as in 32*h")
    again = sorted(s for s in dim.symbols if s == name or isinstance(given.get(s), str))
    if again:
        raise UsageError(f"dim '{name}' cannot be '{text}': '{again[0]}' is what an expression says itself; write it "
                         "in dims that stay")
    return dim
