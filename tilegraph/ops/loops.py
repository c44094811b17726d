"""Loops and the addresses that walk them: mixed radix numbers, and which loops can be one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilegraph.ops.index import Ix, Var
from tilegraph.spec.dims import Dim


def digits(number: Ix, loops: Sequence[Var]) -> tuple[Var, ...] | None:
    """The loops of which `number` is the mixed radix number, outermost first, or None if it is none.

    Such a number runs over 0 .. product - 1, each once, as the loops run.
    """
    if number.const != 0 or any(not isinstance(a, Var) for a, _ in number.terms):
        return None
    left = dict(number.terms)
    found: list[Var] = []
    stride = Dim.of(1)
    while left:
        step = next((v for v in loops if left.get(v) == stride), None)
        if step is None:
            return None
        del left[step]
        found.insert(0, step)
        stride = stride * step.extent
    return tuple(found)


def covers(address: Ix, loops: Sequence[Var]) -> bool:
    """Whether `address` runs over 0 .. product - 1, each once, as all of `loops` run."""
    found = digits(address, loops)
    return found is not None and set(found) == set(loops)


def mergeable(loops: Sequence[Var], places: Collection[Ix], kept: Collection[Var] = ()) -> tuple[Var, Var] | None:
    """The innermost neighbours of `loops` that all of `places` walk as one; `kept` loops stay as they are."""
    fixed = set(kept).union(*(ix.hidden() for ix in places))
    for outer, inner in zip(reversed(loops[:-1]), reversed(loops[1:]), strict=True):
        if not {outer, inner} & fixed and all(ix.coef(outer) == ix.coef(inner) * inner.extent for ix in places):
            return outer, inner
    return None


def merge(outer: Var, inner: Var) -> tuple[Var, Mapping[Var, Ix]]:
    """The loop that takes the place of two `mergeable` ones, and what they become in every address."""
    one = Var(outer.name + inner.name, outer.extent * inner.extent)
    return one, {outer: Ix(), inner: Ix.of(one)}


def with_merged(loops: tuple[Var, ...], outer: Var, inner: Var, one: Var) -> tuple[Var, ...]:
    """`loops` with `one` in the place of `inner`, and without `outer`."""
    return tuple(one if v == inner else v for v in loops if v != outer)
