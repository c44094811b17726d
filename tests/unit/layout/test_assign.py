"""The assignment is one of least cost: against all assignments of small graphs, and on graphs whose answer is known."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegraph.rewrites.layout.assign import Assignment, Choice, Moved, assign, conversions, price

_US = st.integers(0, 40).map(lambda v: v / 4)


@st.composite
def _problems(draw: st.DrawFn) -> tuple[dict[int, Choice], list[Moved[int]]]:
    """A random acyclic graph of up to 8 nodes that have a choice; nodes 100 and up have none."""
    count = draw(st.integers(1, 8))
    choices = {}
    for node in range(count):
        blocked = draw(st.none() | _US)
        choices[node] = Choice(blocked, draw(_US if blocked is None else st.none() | _US))
    values = []
    for k in range(draw(st.integers(0, 10))):
        producer = draw(st.none() | st.integers(0, count - 1) | st.just(100))
        first = 0 if producer is None or producer >= 100 else producer + 1
        pool = [*range(first, count), 101]
        readers = tuple(draw(st.lists(st.sampled_from(pool), max_size=3)))
        values.append(Moved(f"v{k}", producer, readers, draw(st.booleans()), draw(_US), draw(_US)))
    return choices, values


@settings(max_examples=300, deadline=None)
@given(_problems())
def test_no_assignment_of_a_small_graph_costs_less(problem: tuple[dict[int, Choice], list[Moved[int]]]) -> None:
    choices, values = problem
    every = [frozenset(s) for n in range(len(choices) + 1) for s in itertools.combinations(choices, n)]
    least = min(price(choices, values, blocked) for blocked in every)
    found = assign(choices, values)
    assert found.us == pytest.approx(price(choices, values, found.blocked))
    assert math.isfinite(found.us)
    assert found.us == pytest.approx(least)
    # Of those that cost the same it takes one with the fewest blocked nodes.
    fewest = min(len(b) for b in every if price(choices, values, b) == pytest.approx(least))
    assert len(found.blocked) == fewest
    assert found.us == pytest.approx(sum(c.us for c in found.conversions) + sum(
        (c.blocked_us if n in found.blocked else c.plain_us) or 0.0 for n, c in choices.items()))


def _chain(costs: Sequence[tuple[float | None, float | None]], convert: float) -> Assignment[int]:
    choices = {k: Choice(*c) for k, c in enumerate(costs)}
    values: list[Moved[int]] = [Moved("x", None, (0,), False, convert, convert)]
    values += [Moved(f"v{k}", k, (k + 1,) if k + 1 < len(costs) else (), k + 1 == len(costs), convert, convert)
               for k in range(len(costs))]
    return assign(choices, values)


def test_a_trunk_pays_for_its_two_conversions_only_when_it_is_long_enough() -> None:
    assert _chain([(9.0, 10.0)] * 5, 3.0).blocked == frozenset()  # gains 5, conversions cost 6
    taken = _chain([(9.0, 10.0)] * 7, 3.0)
    assert taken.blocked == frozenset(range(7))
    assert [(c.value, c.blocks) for c in taken.conversions] == [("x", True), ("v6", False)]
    assert taken.us == pytest.approx(7 * 9 + 6)
    assert taken.plain_us == pytest.approx(70)


def test_a_node_that_loses_is_carried_where_cutting_it_out_costs_more() -> None:
    middle = [(5.0, 10.0)] * 3 + [(12.0, 10.0)] + [(5.0, 10.0)] * 3
    assert 3 in _chain(middle, 3.0).blocked  # loses 2, two conversions cost 6
    assert _chain(middle, 0.5).blocked == frozenset({0, 1, 2, 4, 5, 6})
    impossible = [(5.0, 10.0)] * 3 + [(None, 10.0)] + [(5.0, 10.0)] * 3
    assert _chain(impossible, 3.0).blocked == frozenset({0, 1, 2, 4, 5, 6})


def test_a_value_is_converted_once_for_all_of_its_readers() -> None:
    choices = {0: Choice(None, 1.0), **{k: Choice(1.0, 3.0) for k in (1, 2, 3)}}
    value = Moved("v", 0, (1, 2, 3), False, 5.0, 5.0)
    found = assign(choices, [value])
    assert found.blocked == frozenset({1, 2, 3})  # gains 6 for one conversion of 5; each alone gains 2
    assert len(found.conversions) == 1


def test_equal_costs_leave_everything_as_it_is() -> None:
    assert _chain([(10.0, 10.0)] * 4, 0.0).blocked == frozenset()


def test_readers_without_a_choice_are_plain() -> None:
    found = assign({0: Choice(1.0, 4.0)}, [Moved("v", 0, (99,), False, 0.0, 2.0)])
    assert found.blocked == {0}
    assert conversions([Moved("v", 0, (99,), False, 0.0, 2.0)], found.blocked)[0].us == 2.0
    assert assign({0: Choice(1.0, 4.0)}, [Moved("v", 0, (99,), False, 0.0, 3.5)]).blocked == frozenset()


def test_bad_costs_are_named() -> None:
    with pytest.raises(ValueError, match="neither label"):
        assign({0: Choice(None, None)}, [])
    with pytest.raises(ValueError, match="negative"):
        assign({0: Choice(-1.0, 1.0)}, [])


def test_thousands_of_nodes_take_seconds_at_most() -> None:
    start = time.process_time()
    found = _chain([(9.0, 10.0) if k % 50 else (None, 1.0) for k in range(3000)], 3.0)
    assert len(found.blocked) == 60 * 49
    assert time.process_time() - start < 5
