"""The smallest source side of a minimum cut by eliminating one node after the other.

A cut is a minimum over two labels for each node. Minimising over one node leaves a table over its neighbours, so on
graphs that are narrow (chains, residual blocks, branches that join again) the work grows with the number of nodes,
where augmenting paths grow with its square. The order is that of least degree; tables of more than `_WIDTH` nodes are
refused (Bertele and Brioschi, "Nonserial dynamic programming", 1972).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from operator import lt
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)

_WIDTH = 8  # nodes of a table, 2**8 entries; image networks need 1 to 5


@dataclass(frozen=True)
class _Table(Generic[N]):
    """Costs by the labels of `scope`: bit k of the index is 1 if scope[k] is on the source's side."""

    scope: tuple[N, ...]
    costs: list[int]


def smallest_side(edges: Mapping[tuple[N, N], int | None], source: N, sink: N) -> set[N] | None:
    """The nodes on the source's side of the minimum cut that has fewest of them, `source` included; None if the graph
    is too wide for tables.

    `edges`: (from, to) -> capacity, not negative; None is infinite. No path of infinite edges leads from source to
    sink. Exact: costs are integers, and the count of nodes is their last digit.
    """
    free = {end: None for edge in edges for end in edge if end not in (source, sink)}
    digit = len(free) + 1
    infinite = (sum(c for c in edges.values() if c is not None) + 1) * digit
    alone = {node: [0, 1] for node in free}  # cost on the sink's side, and on the source's
    pairs: dict[tuple[N, N], list[int]] = {}
    for (a, b), capacity in edges.items():
        cost = infinite if capacity is None else capacity * digit
        if a in alone and b in alone:
            if (b, a) in pairs:
                pairs[b, a][2] += cost
            else:
                pairs.setdefault((a, b), [0, 0, 0, 0])[1] += cost
        elif a in alone and b == sink:
            alone[a][1] += cost
        elif a == source and b in alone:
            alone[b][0] += cost
    decided = _eliminate(alone, [_Table(scope, costs) for scope, costs in pairs.items()])
    if decided is None:
        return None
    side = {source}
    for node, scope, chosen in reversed(decided):
        if chosen[sum(1 << k for k, other in enumerate(scope) if other in side)]:
            side.add(node)
    return side


def _eliminate(alone: Mapping[N, list[int]],
               tables: Collection[_Table[N]]) -> list[tuple[N, tuple[N, ...], list[bool]]] | None:
    """(node, neighbours, whether it is on the source's side by their labels) in the order of elimination."""
    having: dict[N, dict[int, _Table[N]]] = {node: {} for node in alone}
    near: dict[N, set[N]] = {node: set() for node in alone}
    for table in tables:
        for node in table.scope:
            having[node][id(table)] = table
            near[node].update(table.scope)
            near[node].discard(node)
    number = {node: k for k, node in enumerate(alone)}
    waiting = [(len(near[node]), k, node) for node, k in number.items()]
    heapq.heapify(waiting)
    decided: list[tuple[N, tuple[N, ...], list[bool]]] = []
    while waiting:
        degree, _, node = heapq.heappop(waiting)
        if node not in near or degree != len(near[node]):
            continue  # gone, or waits with another degree, too
        if degree > _WIDTH:
            return None
        scope = tuple(near.pop(node))
        left, chosen = ([cost] * (1 << degree) for cost in alone[node])
        for table in having.pop(node).values():
            own, places = _places(table, node, scope)
            costs = table.costs
            left = [c + costs[i] for c, i in zip(left, places, strict=True)]
            chosen = [c + costs[i + own] for c, i in zip(chosen, places, strict=True)]
            for other in table.scope:
                if other != node:
                    del having[other][id(table)]
        decided.append((node, scope, list(map(lt, chosen, left))))
        made = _Table(scope, list(map(min, left, chosen)))
        for other in scope:
            having[other][id(made)] = made
            old = len(near[other])
            near[other].update(scope)
            near[other] -= {node, other}
            if len(near[other]) != old:
                heapq.heappush(waiting, (len(near[other]), number[other], other))
    return decided


def _places(table: _Table[N], node: N, scope: tuple[N, ...]) -> tuple[int, list[int]]:
    """What `node` on the source's side adds to an index of `table`, and the index for each of the labels of `scope`."""
    bits = {other: 1 << k for k, other in enumerate(table.scope)}
    places = [0]
    for other in scope:
        bit = bits.get(other, 0)
        places += [i + bit for i in places] if bit else places
    return bits[node], places
