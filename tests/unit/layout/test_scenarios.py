"""Which assignment is taken for sizes that only the run knows."""

from __future__ import annotations

from typing import Any

from tests.unit.conv.test_units import W
from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView
from tilegraph.passes import PassContext
from tilegraph.rewrites.conv import find_units
from tilegraph.rewrites.fusion.base import opsets_of
from tilegraph.rewrites.layout.assign import Assignment, Choice
from tilegraph.rewrites.layout.plan import choose
from tilegraph.rewrites.layout.problem import Problem, pose, scenarios, work_of
from tilegraph.rewrites.normalise import NORMALISE


def problem(**costs: tuple[float, float]) -> Any:
    """Nodes by name with (µs blocked, µs plain), and no values between them."""
    return Problem({n: Choice(*c) for n, c in costs.items()}, [], {})  # type: ignore[misc]


def names(found: Assignment[Any]) -> list[str]:
    return sorted(found.blocked)


def test_the_least_worst_ratio_over_the_scenarios_wins() -> None:
    small = problem(a=(1.0, 3.0), b=(2.0, 1.0))
    large = problem(a=(10.0, 11.0), b=(10.0, 20.0))
    # {a}: best for small; 1.5 times the best for large. {a, b}: 1.5 times and best: the first of equals.
    taken, found = choose([small, large])
    assert taken is small
    assert names(found) == ["a"]
    large = problem(a=(10.0, 11.0), b=(10.0, 40.0))
    taken, found = choose([small, large])
    assert taken is large
    assert names(found) == ["a", "b"]


def test_a_gain_for_one_size_must_outweigh_a_loss_for_another() -> None:
    _, found = choose([problem(a=(1.0, 1.1)), problem(a=(1.1, 1.1))])
    assert names(found) == ["a"]
    _, found = choose([problem(a=(1.0, 1.1)), problem(a=(1.1, 1.0))])
    assert not found.blocked


def test_batches_and_other_extents_are_told_apart() -> None:
    def read(shape: str) -> tuple[Any, Any]:
        graph = model(f"(float[{shape}] x) => (float[p,16,q,r] y) {{ {W} y = Conv<strides = [2, 2]>(x, w) }}")
        for step in NORMALISE:
            step.run(graph, PassContext())
        view = GraphView(graph.graph)
        return find_units(view, opsets_of(graph), 16)[0], view

    units, view = read("n,16,h,33")
    known = scenarios(units)
    assert [dict(k) for k in known] == [{"h": h, "n": n} for n in (1, 8) for h in (64, 512)]
    assert [work_of(units[0], k).results for k in known] == [31 * 16, 255 * 16, 8 * 31 * 16, 8 * 255 * 16]
    costs = [pose(units, view, 16, known=k).choices[units[0]].plain_us or 0 for k in known]
    assert costs[0] < costs[1] < costs[3]
    assert costs[0] < costs[2] < costs[3]
    assert scenarios(read("1,16,9,9")[0]) == [()]
