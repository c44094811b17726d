"""Index expressions against integer arithmetic over all values of their loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegraph.ops.index import (
    Ix,
    Quotient,
    Remainder,
    SplitNeeded,
    Var,
    evaluate,
    flat_address,
    may_be_zero,
    reshape_indices,
)
from tilegraph.spec.dims import Dim, Shape

BINDINGS = ({"N": 1, "M": 3}, {"N": 2, "M": 1}, {"N": 3, "M": 2}, {"N": 5, "M": 4})


def points(variables: list[Var], dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every combination of loop values."""
    ranges = [range(v.extent.evaluate(dims)) for v in variables]
    for values in itertools.product(*ranges):
        yield {v.name: k for v, k in zip(variables, values, strict=True)}


def value(ix: Ix, at: Mapping[str, int], dims: Mapping[str, int]) -> int:
    return evaluate(ix, lambda v: at[v.name], dims)


def safe_divisors(ix: Ix, at: Mapping[str, int], dims: Mapping[str, int]) -> bool:
    """Kernels divide towards zero, so what is left under a division must not be negative."""
    for atom, _ in ix.terms:
        if isinstance(atom, (Quotient, Remainder)) and not (
                value(atom.of, at, dims) >= 0 and safe_divisors(atom.of, at, dims)):
            return False
    return True


def split(ix: Ix, variables: list[Var], needed: SplitNeeded) -> tuple[Ix, list[Var]]:
    """`ix` with one loop as two, as the planner does it."""
    outer_extent = needed.var.extent.exact_div(needed.inner)
    assert outer_extent is not None
    outer, inner = Var(needed.var.name + "o", outer_extent), Var(needed.var.name + "i", needed.inner)
    at = variables.index(needed.var)
    whole = Ix.of(outer) * needed.inner + Ix.of(inner)
    return ix.replace({needed.var: whole}), [*variables[:at], outer, inner, *variables[at + 1:]]


def affine(draw: Callable[..., Any], symbolic: bool) -> tuple[Ix, list[Var]]:
    """A row-major address of two or three loops, possibly shifted or with steps."""
    choices = [Dim.of(k) for k in (1, 2, 3, 4, 6, 8)] + ([Dim.symbol("N"), Dim.symbol("M") * 2] if symbolic else [])
    extents = [draw(st.sampled_from(choices)) for _ in range(draw(st.integers(1, 3)))]
    variables = [Var(f"i{k}", e) for k, e in enumerate(extents)]
    ix = flat_address([Ix.of(v) for v in variables], extents)
    if draw(st.integers(0, 3)) == 0:  # backwards over the first axis, from its last element
        last = extents[0] - 1
        ix = flat_address([Ix(None, last) - Ix.of(variables[0]), *map(Ix.of, variables[1:])], extents)
    return ix * draw(st.sampled_from((1, 1, 1, 2, 3))) + draw(st.sampled_from((0, 0, 0, 1, 5))), variables


@settings(max_examples=300, deadline=None)
@given(st.data(), st.booleans())
def test_division_and_remainder_are_those_of_integers(data: st.DataObject, symbolic: bool) -> None:
    ix, variables = affine(data.draw, symbolic)
    n = Dim.symbol("N")
    divisors = [Dim.of(k) for k in (1, 2, 3, 4, 5, 8, 12)] + ([n, n * 2] if symbolic else [])
    by = data.draw(st.sampled_from(divisors))
    for _ in range(8):
        try:
            quotient, remainder = ix.floordiv(by), ix.mod(by)
            break
        except SplitNeeded as needed:
            ix, variables = split(ix, variables, needed)
    else:
        raise AssertionError("no end of splits")
    for dims in BINDINGS if symbolic else BINDINGS[:1]:
        d = by.evaluate(dims)
        for at in points(variables, dims):
            whole = value(ix, at, dims)
            assert value(quotient, at, dims) == whole // d
            assert value(remainder, at, dims) == whole % d
            assert safe_divisors(quotient, at, dims)
            assert safe_divisors(remainder, at, dims)


def test_a_split_makes_the_division_affine() -> None:
    i = Var("i", Dim.of(12))
    with pytest.raises(SplitNeeded) as needed:
        Ix.of(i).floordiv(4)
    assert (needed.value.var, needed.value.inner) == (i, Dim.of(4))
    ix, (outer, inner) = split(Ix.of(i), [i], needed.value)
    assert ix.floordiv(4) == Ix.of(outer)
    assert ix.mod(4) == Ix.of(inner)


def test_a_division_that_no_split_helps_stays() -> None:
    i = Var("i", Dim.of(7))
    quotient = Ix.of(i).floordiv(4)
    assert [type(a) for a, _ in quotient.terms] == [Quotient]
    assert quotient.hidden() == {i}
    assert Ix.of(i).mod(4).hidden() == {i}


def test_a_reversed_loop_is_divided_as_it_runs() -> None:
    """5 - i for i in [0, 6) over 3: the remainder must not be taken of a negative number."""
    i = Var("i", Dim.of(6))
    ix, variables = Ix(None, 5) - Ix.of(i), [i]
    for _ in range(3):
        try:
            quotient = ix.floordiv(3)
            break
        except SplitNeeded as needed:
            ix, variables = split(ix, variables, needed)
    assert [value(quotient, at, {}) for at in points(variables, {})] == [1, 1, 1, 0, 0, 0]
    assert all(safe_divisors(quotient, at, {}) for at in points(variables, {}))


def test_an_index_that_becomes_negative_is_divided_as_integers_are() -> None:
    """6 - i for i in [0, 9): a part of a concatenation is addressed relative to its start, on both sides of it."""
    i = Var("i", Dim.of(9))
    ix = Ix(None, 6) - Ix.of(i)
    quotient, remainder = ix.floordiv(4), ix.mod(4)
    for at in points([i], {}):
        assert value(quotient, at, {}) == (6 - at["i"]) // 4
        assert value(remainder, at, {}) == (6 - at["i"]) % 4
        assert safe_divisors(quotient, at, {})
        assert safe_divisors(remainder, at, {})


def shapes_of(draw: Callable[..., Any], symbolic: bool) -> tuple[Shape, Shape]:
    """Two shapes of the same number of elements."""
    factors = [Dim.of(draw(st.sampled_from((1, 2, 2, 3, 4)))) for _ in range(draw(st.integers(1, 4)))]
    if symbolic:
        factors.insert(draw(st.integers(0, len(factors))), Dim.symbol("N"))

    def grouped() -> Shape:
        dims: list[Dim] = []
        for f in factors:
            if dims and draw(st.booleans()):
                dims[-1] = dims[-1] * f
            else:
                dims.append(f)
        return tuple(dims)

    return grouped(), grouped()


@settings(max_examples=300, deadline=None)
@given(st.data(), st.booleans())
def test_reshape_finds_the_same_element(data: st.DataObject, symbolic: bool) -> None:
    shape, source = shapes_of(data.draw, symbolic)
    variables = [Var(f"i{k}", d) for k, d in enumerate(shape)]
    indices = [Ix.of(v) for v in variables]
    for _ in range(12):
        try:
            found = reshape_indices(tuple(indices), shape, source)
            break
        except SplitNeeded as needed:
            before = list(variables)
            for k, ix in enumerate(indices):
                indices[k], variables = split(ix, before, needed)
    else:
        raise AssertionError("no end of splits")
    for dims in BINDINGS if symbolic else BINDINGS[:1]:
        sizes = [d.evaluate(dims) for d in shape]
        array = np.arange(int(np.prod(sizes))).reshape([d.evaluate(dims) for d in source])
        expected = array.reshape(sizes)
        for at in points(variables, dims):
            here = tuple(value(ix, at, dims) for ix in indices)
            there = tuple(value(ix, at, dims) for ix in found)
            assert array[there] == expected[here]


def test_reshape_divides_only_what_changed() -> None:
    a, b = Var("a", Dim.symbol("N")), Var("b", Dim.of(6))
    shape = (Dim.symbol("N"), Dim.of(2), Dim.of(3))
    source = (Dim.symbol("N"), Dim.of(6))
    i, j = Var("i", Dim.of(2)), Var("j", Dim.of(3))
    assert reshape_indices((Ix.of(a), Ix.of(i), Ix.of(j)), shape, source) == (Ix.of(a), Ix.of(i) * 3 + Ix.of(j))
    assert reshape_indices((Ix.of(a), Ix.of(b)), source, source) == (Ix.of(a), Ix.of(b))


@pytest.mark.parametrize(("ix", "bound", "expected"), [
    (Ix.of(Var("i", Dim.of(4))), Dim.of(4), True),
    (Ix.of(Var("i", Dim.of(4))), Dim.of(3), False),
    (Ix.of(Var("i", Dim.of(4))) + 1, Dim.of(4), False),
    (Ix.of(Var("i", Dim.of(4))) - 1, Dim.of(4), False),
    (Ix.of(Var("i", Dim.symbol("N"))), Dim.symbol("N"), True),
    (Ix.of(Var("i", Dim.symbol("N"))), Dim.symbol("M"), False),
    (Ix.of(Var("i", Dim.symbol("N"))) * 2 + Ix.of(Var("j", Dim.of(2))), Dim.symbol("N") * 2, True),
    (Ix.of(Var("i", Dim.symbol("N"))) * 2 + Ix.of(Var("j", Dim.of(3))), Dim.symbol("N") * 2, False),
])
def test_below_is_only_true_for_certain(ix: Ix, bound: Dim, expected: bool) -> None:
    assert ix.below(bound) is expected


@pytest.mark.parametrize(("extent", "empty"), [
    ("n", True), ("n+1", False), ("((n-1)//2)+1", True), ("(n//2)+1", False), ("2*n-1", True), ("8", False)])
def test_extents_that_a_run_may_have_as_0(extent: str, empty: bool) -> None:
    assert may_be_zero(Dim.of(extent)) is empty


def test_expressions_are_canonical() -> None:
    i, j = Var("i", Dim.of(4)), Var("j", Dim.of(5))
    assert Ix.of(i) + Ix.of(j) == Ix.of(j) + Ix.of(i)
    assert Ix.of(i) - Ix.of(i) == Ix()
    assert hash(Ix.of(i) * 2) == hash(Ix.of(i) + Ix.of(i))
    assert (Ix.of(i) + 3).single() == (i, Dim.of(3))
    assert (Ix.of(i) * 2).single() is None
    assert (Ix.of(i) * 2 + Ix.of(j)).coef(i) == 2
    assert (Ix.of(i).mod(3) + Ix.of(j)).vars() == {i, j}
