"""Which nodes compute on blocked values: an assignment of least estimated time over the whole graph.

Pure: costs in, assignment out. A node is "blocked" (our kernels, channels in blocks) or "plain" (whatever runs it
today). A value has the layout of the node that makes it; where readers want the other one, it is converted once for
all of them. A minimum cut finds the least total, conversions included; greedy growth from convolutions does not,
because leaving one node out can cost two conversions, and taking one in can be worth it only together with what
follows.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilegraph.graph.cut import Penalty, least_cost

N = TypeVar("N", bound=Hashable)

_UNITS_PER_US = 10_000  # costs are rounded to 0.1 ns: cuts want integers


@dataclass(frozen=True)
class Choice:
    """Estimated µs of one node under each layout; None where it is impossible."""

    blocked_us: float | None
    plain_us: float | None


@dataclass(frozen=True)
class Moved(Generic[N]):
    """A value: who makes it (None: plain, as a graph input), who reads it in the layout it computes in, whether anybody
    reads it plain whatever the assignment (a graph output), and the µs of each conversion."""

    name: str
    producer: N | None
    readers: tuple[N, ...]
    plain_reader: bool
    block_us: float
    unblock_us: float


@dataclass(frozen=True)
class Conversion:
    """One that the assignment leaves: `blocks` says whether it is plain to blocked."""

    value: str
    blocks: bool
    us: float


@dataclass(frozen=True)
class Assignment(Generic[N]):
    """`blocked` nodes, total µs, and the µs of all nodes plain for comparison (None if some cannot be)."""

    blocked: frozenset[N]
    us: float
    plain_us: float | None
    conversions: tuple[Conversion, ...]


def assign(choices: Mapping[N, Choice], values: Sequence[Moved[N]]) -> Assignment[N]:
    """The assignment of least total; of several, one with the fewest blocked nodes. Nodes that `values` name and
    `choices` do not are plain. ValueError for negative costs and nodes that can be neither."""
    costs = {node: (_units(c.blocked_us), _units(c.plain_us)) for node, c in choices.items()}
    penalties: list[Penalty[N]] = []
    for value in values:
        producer = value.producer if value.producer in choices else None
        readers: list[N | None] = [r for r in dict.fromkeys(value.readers) if r in choices]
        plain = readers + ([None] if value.plain_reader or len(readers) < len(set(value.readers)) else [])
        unblock, block = _units(value.unblock_us), _units(value.block_us)
        assert unblock is not None
        assert block is not None
        if producer is not None:
            penalties.append(Penalty(producer, plain, unblock))
        penalties.append(Penalty(producer, readers, block, reverse=True))
    blocked = frozenset(least_cost(costs, penalties))
    fixed = any(c.plain_us is None for c in choices.values())
    return Assignment(blocked, price(choices, values, blocked), None if fixed else price(choices, values, frozenset()),
                      tuple(conversions(values, blocked)))


def conversions(values: Sequence[Moved[N]], blocked: Collection[N]) -> list[Conversion]:
    """The conversions that an assignment needs, in the order of `values`."""
    found = []
    for value in values:
        if value.producer is not None and value.producer in blocked:
            if value.plain_reader or any(r not in blocked for r in value.readers):
                found.append(Conversion(value.name, False, value.unblock_us))
        elif any(r in blocked for r in value.readers):
            found.append(Conversion(value.name, True, value.block_us))
    return found


def price(choices: Mapping[N, Choice], values: Sequence[Moved[N]], blocked: Collection[N]) -> float:
    """Total µs of an assignment; infinite if it gives a node a layout that it cannot have."""
    total = sum(c.us for c in conversions(values, blocked))
    for node, choice in choices.items():
        us = choice.blocked_us if node in blocked else choice.plain_us
        total += float("inf") if us is None else us
    return total


def _units(us: float | None) -> int | None:
    return None if us is None else round(us * _UNITS_PER_US)
