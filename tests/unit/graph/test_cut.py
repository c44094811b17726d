"""Both ways to the smallest source side of a minimum cut, against all sides of small graphs and against each other."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegraph.graph import eliminate
from tilegraph.graph.cut import by_flow
from tilegraph.graph.eliminate import _places, smallest_side

_Edges = dict[tuple[str, str], int | None]


@st.composite
def _graphs(draw: st.DrawFn, count: int = 6) -> _Edges:
    """Up to `count` nodes between s and t; infinite edges only between nodes, in one direction of their order, and none
    from s, so that no path of them leads from s to t."""
    names = [f"n{k}" for k in range(draw(st.integers(1, count)))]
    found: _Edges = {}
    for _ in range(draw(st.integers(0, 4 * count))):
        a, b = draw(st.sampled_from(["s", *names])), draw(st.sampled_from([*names, "t"]))
        if a != b:
            found[a, b] = draw(st.integers(0, 6) | (st.just(None) if a != "s" else st.nothing()))
    return found


def _price(edges: _Edges, side: set[str]) -> float:
    return sum(float("inf") if c is None else c for (a, b), c in edges.items() if a in side and b not in side)


@settings(max_examples=200, deadline=None)
@given(_graphs())
def test_no_side_of_a_small_graph_costs_less_or_is_smaller(edges: _Edges) -> None:
    names = sorted({end for edge in edges for end in edge} - {"s", "t"})
    every = [{"s", *some} for n in range(len(names) + 1) for some in itertools.combinations(names, n)]
    best = min(every, key=lambda side: (_price(edges, side), len(side)))
    assert smallest_side(edges, "s", "t") == best
    assert by_flow(edges, "s", "t") == best


def _random(seed: int, size: int, reach: int) -> _Edges:
    """A graph whose edges span at most `reach` nodes, some of them infinite."""
    rng = random.Random(seed)
    found: _Edges = {}
    for k in range(size):
        found["s", f"n{k}"], found[f"n{k}", "t"] = rng.randint(0, 30), rng.randint(0, 30)
        for _ in range(3):
            a, b = f"n{k}", f"n{min(size - 1, k + rng.randint(1, reach))}"
            if a != b:
                a, b = (a, b) if rng.random() < 0.5 else (b, a)
                found[a, b] = None if rng.random() < 0.05 else rng.randint(0, 20)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_both_ways_find_one_side(seed: int) -> None:
    edges = _random(seed, 150, 2 + seed % 3)
    found = smallest_side(edges, "s", "t")
    assert found is not None, "a band of five nodes is narrow"
    assert 1 < len(found) < 151
    assert found == by_flow(edges, "s", "t")


def test_graphs_that_are_too_wide_are_refused() -> None:
    edges: _Edges = {(f"n{a}", f"n{b}"): 1 for a in range(12) for b in range(12) if a != b}
    edges |= {("s", "n0"): 50, ("n11", "t"): 30}
    assert smallest_side(edges, "s", "t") is None
    assert by_flow(edges, "s", "t") == {"s", "n0"}  # eleven edges; as many lead to n11, but that side is larger


def test_work_grows_with_the_graph_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = 0

    def counted(*given: Any) -> tuple[int, list[int]]:
        nonlocal entries
        own, places = _places(*given)
        entries += len(places)
        return own, places

    def work(size: int) -> int:
        nonlocal entries
        entries = 0
        assert smallest_side(_random(1, size, 3), "s", "t") is not None
        return entries

    monkeypatch.setattr(eliminate, "_places", counted)
    assert 500 < work(500) < work(5000) < 12 * work(500)  # ten times the nodes
