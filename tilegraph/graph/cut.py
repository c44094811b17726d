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

N = TypeVar("N", bound=Hashable)


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

    `costs`: item -> (cost if chosen, cost if not), not negative; None is impossible. Items are given to networkx as
    they are. ValueError if an item is impossible either way, or if a cost is negative.
    """
    flow = nx.DiGraph()
    source, sink = ("source",), ("sink",)
    flow.add_nodes_from((source, sink))

    def at(item: N | None) -> Hashable:
        return sink if item is None else ("item", item)

    for item, (chosen, left) in costs.items():
        if chosen is None and left is None:
            raise ValueError(f"{item!r} can have neither label")
        _check(chosen, left)
        _add(flow, at(item), sink, chosen)
        _add(flow, source, at(item), left)
    for number, penalty in enumerate(penalties):
        _check(penalty.cost)
        others = [at(v) for v in penalty.others]
        if not others or penalty.cost == 0 or (penalty.first is None and not penalty.reverse):
            continue
        if len(others) == 1:
            ends = (others[0], at(penalty.first)) if penalty.reverse else (at(penalty.first), others[0])
            _add(flow, *ends, penalty.cost)
            continue
        once = ("once", number)
        if penalty.reverse:
            _add(flow, once, at(penalty.first), penalty.cost)
            for other in others:
                _add(flow, other, once, None)
        else:
            _add(flow, at(penalty.first), once, penalty.cost)
            for other in others:
                _add(flow, once, other, None)
    residual = boykov_kolmogorov(flow, source, sink)
    reached = _reached(residual, source)
    return {item for item in costs if at(item) in reached}


def _check(*costs: int | None) -> None:
    for cost in costs:
        if cost is not None and cost < 0:
            raise ValueError(f"a cost of {cost} is negative")


def _add(flow: nx.DiGraph, a: Hashable, b: Hashable, capacity: int | None) -> None:
    """An edge whose capacity adds to what is there; None is infinite, which networkx writes as no capacity."""
    if a == b or capacity == 0:
        return
    old = flow.get_edge_data(a, b)
    if capacity is None or (old is not None and "capacity" not in old):
        flow.add_edge(a, b)
        flow[a][b].pop("capacity", None)
    else:
        flow.add_edge(a, b, capacity=capacity + (0 if old is None else old["capacity"]))


def _reached(residual: nx.DiGraph, source: Hashable) -> set[Hashable]:
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
