"""Arena offsets: buffers that are never alive together may share memory.

Finding the smallest arena is NP-hard (dynamic storage allocation: Garey and Johnson, problem SR2). Several greedy
plans are made and the best is kept, and stops at the lower bound, the most bytes that are alive at one step:

- buffers by falling size, then by falling size times lifetime, then by start, each into the lowest place (static
  sizes: the tightest gap) between those placed that it meets. Source of the greedy plans: Y. Pisarchyk and J. Lee,
  "Efficient Memory Management for Deep Neural Net Inference", MLSys 2020 workshop, "greedy by size for offset
  calculation" and "greedy by breadth";
- where at most two buffers are alive at a time, one grows from the bottom and the next from the top: always optimal.

Symbolic sizes go the same way with proofs (`compare`) instead of comparisons; a buffer that no proof puts into a gap
goes above all that it meets. Which of two plans is the smaller one is then asked for a few typical bindings, so a
plan is always valid and only its quality rests on them. Where the order of many sizes cannot be proven, buffers share
slots instead (`slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tilegraph.memory.buffers import ArenaPlan, Buffer, check
from tilegraph.memory.compare import Comparer
from tilegraph.memory.slots import plan_slots
from tilegraph.memory.static import place as place_static
from tilegraph.memory.symbolic import place as place_symbolic
from tilegraph.spec.artifact import ARENA_ALIGNMENT
from tilegraph.spec.dims import Dim

_TYPICAL = 128
_SMALL, _LARGE = 1, 512
_UNORDERED = 4  # neighbours in the order of sizes without a proof; above this offsets would be maxima of maxima
_MANY = 600  # buffers; above this one greedy plan is made and not three


def plan(buffers: Sequence[Buffer], alignment: int = ARENA_ALIGNMENT) -> ArenaPlan:
    """Offsets for `buffers`, such that two that are alive at one step do not overlap, for every binding.

    The total is never above the sum of all sizes (each rounded up to `alignment`) and never below the most bytes
    that are alive at one step. The same buffers give the same plan. Raises `InternalError` for impossible buffers.
    """
    check(buffers, alignment)
    compare = Comparer(alignment)
    sizes = {b.name: compare.align(b.bytes) for b in buffers}
    if all(s.is_static for s in sizes.values()):
        return _plan_static(buffers, {n: s.value for n, s in sizes.items()})
    return _plan_symbolic(buffers, sizes, compare)


def peak(buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> int:
    """The most bytes that are alive at one step: no plan can be smaller."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.first] = changes.get(buffer.first, 0) + sizes[buffer.name]
        changes[buffer.last + 1] = changes.get(buffer.last + 1, 0) - sizes[buffer.name]
    now = most = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


def _plan_static(buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> ArenaPlan:
    least = peak(buffers, sizes)
    best: dict[str, int] | None = None
    best_total = 0
    for order in _orders(buffers, lambda b: sizes[b.name]):
        offsets = place_static(order, sizes)
        total = max((offsets[n] + s for n, s in sizes.items() if s), default=0)
        if best is None or total < best_total:
            best, best_total = offsets, total
        if best_total == least:
            break
    if best_total > least:
        ends = _two_ends([b for b in buffers if sizes[b.name]])
        if ends is not None:
            best = {b.name: 0 for b in buffers} | {n: least - sizes[n] if top else 0 for n, top in ends.items()}
            best_total = least
    return ArenaPlan({b.name: Dim.of((best or {})[b.name]) for b in buffers}, Dim.of(best_total))


def _plan_symbolic(buffers: Sequence[Buffer], sizes: Mapping[str, Dim], compare: Comparer) -> ArenaPlan:
    bindings = _bindings(sorted(set().union(*(s.symbols for s in sizes.values()))))
    evaluated = {n: [max(0, s.evaluate(b)) for b in bindings] for n, s in sizes.items()}
    falling = sorted(buffers, key=lambda b: (-sum(evaluated[b.name]), b.first))
    ends = _two_ends([b for b in buffers if sizes[b.name] != 0])
    if ends is None and _unordered([sizes[b.name] for b in falling], compare) > _UNORDERED:
        return plan_slots(falling, sizes, compare)
    least = [peak(buffers, {n: e[i] for n, e in evaluated.items()}) for i in range(len(bindings))]

    def cost(total: Dim) -> float:
        return sum(total.evaluate(b) / max(least[i], 1) for i, b in enumerate(bindings))

    optimal = None if ends is None else _largest_pair(buffers, sizes, compare)
    plans: list[ArenaPlan] = []
    for order in _orders(buffers, lambda b: sum(evaluated[b.name])):
        offsets = place_symbolic(order, sizes, compare, bindings)
        found = ArenaPlan({b.name: offsets[b.name] for b in buffers},
                          compare.largest(offsets[n] + s for n, s in sizes.items()))
        if optimal is not None and compare.at_most(found.total, optimal):
            return found  # as good, with simpler expressions
        plans.append(found)
        if optimal is None and [found.total.evaluate(b) for b in bindings] == least:
            return found
    if ends is not None and optimal is not None:
        return ArenaPlan({b.name: optimal - sizes[b.name] if ends.get(b.name) else Dim.of(0) for b in buffers}, optimal)
    return min(plans, key=lambda p: cost(p.total))  # the first of equals


def _unordered(falling: Sequence[Dim], compare: Comparer) -> int:
    """How many sizes are not provably at most as large as the different one before them."""
    distinct = list(dict.fromkeys(falling))
    return sum(not compare.at_most(after, before) for before, after in pairwise(distinct))


def _orders(buffers: Sequence[Buffer], size: Callable[[Buffer], int]) -> list[list[Buffer]]:
    """Orders to place the buffers in; equal ones stay as they came."""
    by_size = sorted(buffers, key=lambda b: (-size(b), b.first))
    if len(buffers) > _MANY:
        return [by_size]
    by_area = sorted(buffers, key=lambda b: (-size(b) * (b.last - b.first + 1), b.first))
    by_start = sorted(buffers, key=lambda b: (b.first, -size(b)))
    return [by_size, by_area, by_start]


def _two_ends(buffers: Sequence[Buffer]) -> dict[str, bool] | None:
    """Whether each buffer lies at the top end, if never more than two are alive at a time; else None."""
    top: dict[str, bool] = {}
    alive: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (b.first, b.last)):
        alive = [b for b in alive if b.last >= buffer.first]
        if len(alive) > 1:
            return None
        top[buffer.name] = bool(alive) and not top[alive[0].name]
        alive.append(buffer)
    return top


def _largest_pair(buffers: Sequence[Buffer], sizes: Mapping[str, Dim], compare: Comparer) -> Dim:
    """The most bytes alive at one step, where that is one buffer or two."""
    sums = [sizes[b.name] for b in buffers]
    ordered = sorted(buffers, key=lambda b: b.first)
    for index, buffer in enumerate(ordered):
        for other in ordered[index + 1:]:
            if other.first > buffer.last:
                break
            sums.append(sizes[buffer.name] + sizes[other.name])
    return compare.largest(sums)


def _bindings(symbols: Sequence[str]) -> list[dict[str, int]]:
    """Typical values: all equal, and each half of the symbols large while the other is small."""
    return [dict.fromkeys(symbols, _TYPICAL),
            {s: _LARGE if i % 2 else _SMALL for i, s in enumerate(symbols)},
            {s: _SMALL if i % 2 else _LARGE for i, s in enumerate(symbols)}]
