"""Reachability between nodes, kept up to date while sets of nodes are contracted.

Ancestors and descendants are bit sets (Python integers), so testing convexity of a set is a few operations on
integers. A set S is convex if no path leaves S and comes back; contracting convex sets one after another keeps the
quotient graph acyclic, because each set is tested against the graph in which the earlier ones are single nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)


class Reach(Generic[N]):
    """`nodes` in topological order with `edges` between them."""

    def __init__(self, nodes: Iterable[N], edges: Iterable[tuple[N, N]]) -> None:
        self.nodes = list(nodes)
        self.number = {node: k for k, node in enumerate(self.nodes)}
        count = len(self.nodes)
        self._above = [1 << k for k in range(count)]  # ancestors, itself included
        self._below = [1 << k for k in range(count)]  # descendants, itself included
        successors: list[list[int]] = [[] for _ in range(count)]
        for a, b in edges:
            successors[self.number[a]].append(self.number[b])
        for upper in range(count):
            for lower in successors[upper]:
                self._above[lower] |= self._above[upper]
        for upper in range(count - 1, -1, -1):
            for lower in successors[upper]:
                self._below[upper] |= self._below[lower]

    def bits(self, members: Iterable[N]) -> int:
        found = 0
        for node in members:
            found |= 1 << self.number[node]
        return found

    def is_convex(self, members: Collection[N]) -> bool:
        """Whether no path leaves `members` and returns, contracted sets counting as one node."""
        above = below = 0
        for node in members:
            k = self.number[node]
            above |= self._above[k]
            below |= self._below[k]
        return above & below & ~self.bits(members) == 0

    def grow(self, members: Collection[N]) -> Growing[N]:
        """The set `members`, to be asked about more nodes; contracting anything makes it stale."""
        return Growing(self, members)

    def reaches(self, a: N, b: N) -> bool:
        return bool(self._below[self.number[a]] >> self.number[b] & 1)

    def contract(self, members: Collection[N]) -> None:
        """Makes the convex set `members` one node of the quotient graph: each member reaches all that one reaches.

        Nodes that are connected to every member know everything already; in a deep model that is nearly all of them.
        """
        above = below = 0
        above_all = below_all = -1
        for node in members:
            k = self.number[node]
            above |= self._above[k]
            below |= self._below[k]
            above_all &= self._above[k]
            below_all &= self._below[k]
        for k in _set_bits(above & ~above_all):
            self._below[k] |= below
        for k in _set_bits(below & ~below_all):
            self._above[k] |= above


class Growing(Generic[N]):
    """A set of nodes that stays convex as it grows, one question a candidate, however many members there are."""

    def __init__(self, reach: Reach[N], members: Collection[N]) -> None:
        self._reach = reach
        self._above = self._below = self._inside = 0
        for node in members:
            self._take(node)

    def take(self, node: N) -> bool:
        """Adds `node` if the set is convex with it; whether it did."""
        before = self._above, self._below, self._inside
        self._take(node)
        if self._above & self._below & ~self._inside == 0:
            return True
        self._above, self._below, self._inside = before
        return False

    def _take(self, node: N) -> None:
        k = self._reach.number[node]
        self._above |= self._reach._above[k]
        self._below |= self._reach._below[k]
        self._inside |= 1 << k


def _set_bits(bits: int) -> Iterable[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
