"""Two-way labelling of least cost by a minimum cut.

Every item gets one of two labels. Costs are of two kinds: what an item costs under each label, and penalties
that are paid once if one item has a label and any of a set of others has the opposite one. Such costs are
submodular, so a minimum cut finds an assignment of least total cost, and not only a local one (Kolmogorov and Zabih,
"What energy functions can be minimized via graph cuts?", PAMI 2004; the auxiliary node that makes "any of" count once
is the construction of Kohli, Ladicky and Torr, "Robust higher order potentials", 2009).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from tilegraph.graph.eliminate import smallest_side

N = TypeVar("N", bound=Hashable)
_Edges = dict[tuple[Hashable, Hashable], int | None]


@dataclass(frozen=True)
class Penalty(Generic[N]):
    """`cost` is paid if `first` is chosen and any of `others` is not; with `reverse`, if `first` is not chosen and
    any of `others` is. An `others` of None stands for an item that is never chosen."""

    first: N | None
    others: Collection[N | None]
    cost: int
    reverse: bool = False


def least_cost(costs: Mapping[N, tuple[int | None, int | None]], penalties: Sequence[Penalty[N]]) -> set[N]:
    """The chosen items of an assignment of least cost; of several, the one that chooses fewest.

    `costs`: item -> (cost if chosen, cost if not), not negative; None is impossible. ValueError if an item
    is impossible either way, or if a cost is negative.
    """
    source, sink = ("source",), ("sink",)
    edges: _Edges = {}

    def at(item: N | None) -> Hashable:
        """The node of an item; items that can have one label only are the ends themselves."""
        if item is None or costs[item][0] is None:
            return sink
        return source if costs[item][1] is None else ("item", item)

    for item, (chosen, left) in costs.items():
        if chosen is None and left is None:
            raise ValueError(f"{item!r} can have neither label")
        _check(chosen, left)
        if chosen is not None and left is not None:
            _add(edges, at(item), sink, chosen)
            _add(edges, source, at(item), left)
    for number, penalty in enumerate(penalties):
        _check(penalty.cost)
        first, others = at(penalty.first), list(dict.fromkeys(map(at, penalty.others)))
        if not others or penalty.cost == 0:
            continue
        if len(others) == 1:
            _add(edges, first, others[0], penalty.cost, penalty.reverse)
            continue
        once = ("once", number)
        _add(edges, first, once, penalty.cost, penalty.reverse)
        for other in others:
            _add(edges, once, other, None, penalty.reverse)
    edges = {(a, b): c for (a, b), c in edges.items() if a != sink and b != source}  # never cut
    side = smallest_side(edges, source, sink)
    if side is None:
        side = by_flow(edges, source, sink)
    return {item for item in costs if at(item) in side}


def by_flow(edges: Mapping[tuple[N, N], int | None], source: N, sink: N) -> set[N]:
    """As `smallest_side`, by augmenting paths: for graphs of any width, in time that grows faster than they do."""
    flow = nx.DiGraph()
    flow.add_nodes_from((source, sink))
    for (a, b), capacity in edges.items():
        flow.add_edge(a, b, **({} if capacity is None else {"capacity": capacity}))  # none is infinite
    return _reached(boykov_kolmogorov(flow, source, sink), source)


def _check(*costs: int | None) -> None:
    for cost in costs:
        if cost is not None and cost < 0:
            raise ValueError(f"a cost of {cost} is negative")


def _add(edges: _Edges, a: Hashable, b: Hashable, capacity: int | None, reverse: bool = False) -> None:
    """An edge whose capacity adds to what is there; None is infinite."""
    if a == b or capacity == 0:
        return
    ends = (b, a) if reverse else (a, b)
    old = edges.get(ends, 0)
    edges[ends] = None if capacity is None or old is None else old + capacity


def _reached(residual: nx.DiGraph, source: N) -> set[N]:
    """What the source still reaches: the smallest source side of all minimum cuts."""
    found = {source}
    waiting = deque([source])
    while waiting:
        node = waiting.popleft()
        for other, edge in residual[node].items():
            if other not in found and edge["flow"] < edge["capacity"]:
                found.add(other)
                waiting.append(other)
    return found
