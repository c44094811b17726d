"""What is proved about extents, against evaluation over many bindings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegraph.rewrites.normalise.infer import arith
from tilegraph.spec.dims import Dim

S, P, N = (Dim.symbol(n) for n in ("s", "p", "n"))
VALUES = (0, 1, 2, 3, 7, 40)
BINDINGS = [dict(zip("spn", v, strict=True)) for v in itertools.product(VALUES, repeat=3)]

leaves = st.one_of(st.integers(-6, 6).map(Dim.of), st.sampled_from([S, P, N]))
dims = st.recursive(leaves, lambda inner: st.one_of(
    st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
    st.tuples(inner, inner).map(lambda t: t[0] - t[1]),
    st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
    st.tuples(inner, inner).map(lambda t: Dim.min(*t)),
    st.tuples(inner, inner).map(lambda t: Dim.max(*t)),
    st.tuples(inner, st.integers(1, 5)).map(lambda t: t[0] // t[1]),
    st.tuples(inner, st.integers(1, 5)).map(lambda t: t[0] % t[1]),
), max_leaves=5)


@given(dims)
def test_bounds_hold(d: Dim) -> None:
    low, high = arith.bounds(d)
    values = [d.evaluate(b) for b in BINDINGS]
    assert low is None or low <= min(values)
    assert high is None or high >= max(values)


@given(dims, dims)
def test_comparisons_hold(a: Dim, b: Dim) -> None:
    pairs = [(a.evaluate(x), b.evaluate(x)) for x in BINDINGS]
    if arith.at_most(a, b):
        assert all(x <= y for x, y in pairs)
    for proved, fact in ((arith.equal(a, b), "__eq__"), (arith.less(a, b), "__lt__")):
        if proved is not None:
            assert all(getattr(x, fact)(y) is proved for x, y in pairs)


@given(dims, dims, dims)
def test_smallest_and_largest_hold(a: Dim, b: Dim, c: Dim) -> None:
    low, high = arith.smallest(a, b, c), arith.largest(a, b, c)
    for x in BINDINGS:
        values = [d.evaluate(x) for d in (a, b, c)]
        assert low.evaluate(x) == min(values)
        assert high.evaluate(x) == max(values)


@given(dims, dims)
def test_integer_arithmetic_is_onnx_s(a: Dim, b: Dim) -> None:
    quotient, rest = arith.truncating_div(a, b), arith.remainder(a, b)
    for x in BINDINGS:
        left, right = a.evaluate(x), b.evaluate(x)
        if right == 0:
            continue
        if quotient is not None:
            assert quotient.evaluate(x) == int(np.trunc(left / right))
        if rest is not None:
            assert rest.evaluate(x) == left % right


@given(dims, dims)
def test_broadcast_holds_in_every_valid_run(a: Dim, b: Dim) -> None:
    result = arith.broadcast_dim(a, b)
    if result is None:
        return
    for x in BINDINGS:
        left, right = a.evaluate(x), b.evaluate(x)
        if left < 0 or right < 0 or (left != right and 1 not in (left, right)):
            continue  # not extents, or not valid
        assert result.evaluate(x) == (right if left == 1 else left)


def test_broadcast_of_what_is_unknown() -> None:
    one, four = Dim.of(1), Dim.of(4)
    cases = [((None, four), four), ((None, one), None), ((None, S), None), ((S, P), None), ((S, one), S), ((S, S), S),
             ((S, four), four), ((S, Dim.min(S, 512)), S), ((S, S // 2), None),
             ((one, (Dim.min(S, 1) + 1) // 2), (Dim.min(S, 1) + 1) // 2), ((None, None), None),
             ((Dim.of(3), four), None)]
    for (a, b), expected in cases:
        assert arith.broadcast_dim(a, b) == expected
        assert arith.broadcast_dim(b, a) == expected


@pytest.mark.parametrize(("rows", "columns", "one"), [
    (Dim.max(0, Dim.min(7 - P, 1)), Dim.min(7, P + 1), True),  # a row of a mask of 7 positions
    (Dim.min(7, P + 1) - Dim.min(7, P), Dim.min(7, P + 1), True),
    (Dim.max(0, Dim.min(6 - P, 1)), Dim.min(7, P + 1), False),  # none is left for p = 6
    (Dim.max(0, Dim.min(7 - P, 1)), Dim.min(1, P + 1), False),  # one column fits any p
    (Dim.max(0, Dim.min(7 - P, 1)), Dim.min(7, S), False),  # says nothing of p
])
def test_a_row_that_is_there_in_every_valid_run(rows: Dim, columns: Dim, one: bool) -> None:
    found = arith.broadcast((rows, columns), (Dim.of(1), P + 1))
    assert found is not None
    assert found[0] == (1 if one else rows)
    for x in BINDINGS:
        left, right = columns.evaluate(x), (P + 1).evaluate(x)
        if left == right or 1 in (left, right):
            assert found[0].evaluate(x) == rows.evaluate(x)


def test_broadcast_of_shapes() -> None:
    assert arith.broadcast((S, Dim.of(1), N), (P, N)) == (S, P, N)
    assert arith.broadcast((S,), (P,), (Dim.of(4),)) == (Dim.of(4),)
    assert arith.broadcast((S,), None) is None


ENDS = [Dim.of(v) for v in (0, 1, 5, -1, -3, 2**31 - 1, 2**63 - 1, -(2**63))] + [S, P, S + P, S - P, -S]


@pytest.mark.parametrize("dim", [Dim.of(0), Dim.of(5), N, S + P, S, N * 4, Dim.min(S, 3)],
                         ids=str)
@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slices_are_onnx_s(dim: Dim, step: int) -> None:
    known = 0
    for start, end in itertools.product(ENDS, ENDS):
        length = arith.slice_length(dim, start, end, step)
        if length is None:
            continue
        known += 1
        for x in BINDINGS:
            size = dim.evaluate(x)
            values = list(range(size))
            assert length.evaluate(x) == len(sliced(values, start.evaluate(x), end.evaluate(x), step)), (start, end, x)
    assert known > (30 if step > 0 else 0)


def test_the_last_of_a_table() -> None:
    """XLM takes the last n positions of a table that was cut to n rows before."""
    assert arith.slice_length(Dim.min(S, 512), -S, Dim.of(2**63 - 1), 1) == Dim.min(S, 512)
    assert arith.slice_length(Dim.min(S, 512), -P, Dim.of(2**63 - 1), 1) is None  # P may be 0, which is the front


def sliced(values: list[int], start: int, end: int, step: int) -> list[int]:
    """ONNX's rule, spelled out: negative counts from the end, then clamp to [0, n], or [-1, n-1] backwards."""
    n = len(values)
    start, end = (v + n if v < 0 else v for v in (start, end))
    if step > 0:
        start, end = min(max(start, 0), n), min(max(end, 0), n)
    else:
        start, end = min(max(start, 0), n - 1), min(max(end, -1), n - 1)
    return [values[i] for i in range(start, end, step)]
