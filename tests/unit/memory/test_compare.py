"""Proofs about sizes: everything claimed holds for every binding tried, and what is expected is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegraph.memory.compare import Comparer
from tilegraph.spec.dims import Dim

N, S, H = Dim.of("N"), Dim.of("S"), Dim.of("H")
ROW = Comparer(64).align(4 * N * S)


@pytest.mark.parametrize(("left", "right"), [
    (Dim.of(3), Dim.of(3)), (N, N), (N, 2 * N), (N, N + S), (Dim.of(0), N * S), (N * S, N * S * S),
    (6 * N, 5 * N + N * N),
    (N, Dim.max(N, S)), (Dim.min(N, S), S), (Dim.max(N, S), N + S), (Dim.max(N, S), Dim.max(N, S) + H),
    (N % 7, N % 7 + 1), (N // 4, N // 4 + N % 4), (Dim.max(N, S, H), Dim.max(N, S, H)),
])
def test_what_must_be_proved(left: Dim, right: Dim) -> None:
    assert Comparer(64).at_most(left, right)


@pytest.mark.parametrize(("left", "right"), [
    (Dim.of(4), Dim.of(3)), (N, S), (N, N * S), (N * N, 5 * N), (N + 1, 2 * N), (Dim.max(N, S), N), (N, Dim.min(N, S)),
    (Dim.of(1), N), (2 * N, N), (N - S, N - H), (Dim.of(0), N - 1), (Dim.of(0), (N - 3) // 2), (N + S, Dim.max(N, S)),
])
def test_what_is_not_so(left: Dim, right: Dim) -> None:
    assert not Comparer(64).at_most(left, right)


def test_rounded_sizes() -> None:
    compare = Comparer(64)
    row, two = compare.align(4 * N * S), compare.align(8 * N * S)
    wide = compare.align(3072 * N * S)
    assert wide == 3072 * N * S  # nothing to round
    assert compare.at_most(row, wide)
    assert compare.at_most(row + row, wide)
    assert compare.at_most(row + two, 128 * N * S)
    assert compare.at_most(4 * N * S, row)
    assert not compare.at_most(row, 63 * N * S)
    assert not compare.at_most(row, compare.align(4 * N * H))
    assert compare.at_most(Dim.max(row, two), 64 * N * S)


@pytest.mark.parametrize(("size", "rounded"), [
    (Dim.of(0), "0"), (Dim.of(1), "64"), (Dim.of(64), "64"), (128 * N, "128*N"), (128 * N + 1, "128*N+64"),
    (N, "64*((N+63)//64)"), (192 * N + 4 * S, None)])
def test_rounding(size: Dim, rounded: str | None) -> None:
    found = Comparer(64).align(size)
    assert rounded is None or str(found) == rounded
    for n in (0, 1, 15, 16, 17, 64, 1000):
        for s in (0, 1, 16, 31):
            exact = size.evaluate({"N": n, "S": s})
            assert found.evaluate({"N": n, "S": s}) == -(-exact // 64) * 64


def test_the_largest() -> None:
    compare = Comparer(64)
    assert compare.largest([]) == 0
    assert compare.largest([N, 3 * N, 2 * N]) == 3 * N
    assert compare.largest([N, S, N + S, H]) == Dim.max(N + S, H)


atoms = st.sampled_from([N, S, H, N * S, N // 3, S % 5, Dim.max(N, S), Dim.min(S, H), Dim.of(1), (N * S + 7) // 8])
sums = st.lists(st.tuples(atoms, st.integers(-3, 4)), min_size=1, max_size=4).map(
    lambda terms: sum((a * c for a, c in terms), Dim.of(0)))
bindings = st.fixed_dictionaries({name: st.integers(0, 40) for name in "NSH"})


@given(sums, sums, st.lists(bindings, min_size=1, max_size=12))
def test_proofs_are_true(left: Dim, right: Dim, tries: list[dict[str, int]]) -> None:
    compare = Comparer(16)
    for a, b in ((left, right), (compare.align(left), right), (left, compare.align(right)),
                 (compare.align(left), compare.align(right)), (compare.align(left) + right, compare.align(right))):
        if compare.at_most(a, b):
            assert all(a.evaluate(t) <= b.evaluate(t) for t in tries)
