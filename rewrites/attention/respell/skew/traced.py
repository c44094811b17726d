"""Which element of which value each element of a tensor is, for whole chains of moves at once.

A tensor made from one value by Reshape, Transpose, Pad, Slice, Gather, ScatterND and the like is written as an array of
element numbers of that value, with a constant where none is: the moves are done on the numbers. So whatever way an
exporter chose to skew, cut and put together, what remains is a table.

Axes along which everything repeats (batch and heads) are lanes: of them one entry is kept, and how the number grows
from one to the next. Tables are then as large as one head is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable, varies

Array = np.ndarray[Any, Any]
MOST = 1 << 25  # elements of a table


@dataclass(frozen=True)
class Traced:
    """A tensor of `shape`: element p is element `ids[p] + sum_k steps[k] * p[k]` of one value, k over its lanes, or the
    number `numbers[p]` where `ids[p]` is negative.

    shape: extents, lanes included. ids, numbers: int64 and float64 arrays of that rank in which lanes, and any axis
    along which nothing changes, have extent 1. steps: for each lane, how the element number grows along it.
    """

    shape: tuple[int, ...]
    ids: Array
    numbers: Array
    steps: Mapping[int, int]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def plain(self) -> tuple[int, ...]:
        """The shape with lanes of 1."""
        return tuple(1 if k in self.steps else d for k, d in enumerate(self.shape))

    @property
    def is_constant(self) -> bool:
        return bool((self.ids < 0).all())

    def full_ids(self) -> Array:
        return np.broadcast_to(self.ids, self.plain)

    def full_numbers(self) -> Array:
        return np.broadcast_to(self.numbers, self.plain)


def leaf(shape: Sequence[int], lanes: Sequence[int] | None = None) -> Traced:
    """A value itself. `lanes`: axes; None: the leading one, if there are others. Elements are numbered lanes first."""
    extents = tuple(shape)
    if lanes is None:
        lanes = [0] if len(extents) > 1 and extents[0] > 1 else []
    plain = tuple(1 if k in lanes else d for k, d in enumerate(extents))
    _bounded(plain)
    steps: dict[int, int] = {}
    inner = prod(plain)
    for axis in sorted(lanes, reverse=True):
        steps[axis] = inner
        inner *= extents[axis]
    return Traced(extents, np.arange(prod(plain), dtype=np.int64).reshape(plain), _flat(0.0, len(extents)), steps)


def constant(array: Array) -> Traced:
    _bounded(array.shape)
    numbers = np.asarray(array, np.float64)
    return Traced(numbers.shape, _flat(-1, numbers.ndim), numbers, {})


def filled(shape: Sequence[int], number: float) -> Traced:
    return Traced(tuple(shape), _flat(-1, len(shape)), _flat(number, len(shape)), {})


def transposed(x: Traced, perm: Sequence[int]) -> Traced:
    return Traced(tuple(x.shape[k] for k in perm), x.ids.transpose(perm), x.numbers.transpose(perm),
                  {perm.index(k): step for k, step in x.steps.items()})


def reshaped(x: Traced, shape: Sequence[int]) -> Traced:
    """Lanes are split and joined among themselves only."""
    if prod(shape) != prod(x.shape) or not prod(shape):
        raise Untraceable(f"a Reshape of {list(x.shape)} to {list(shape)}")
    steps: dict[int, int] = {}
    for before, after in groups(x.shape, shape):
        lanes = [k for k in before if k in x.steps]
        if not lanes:
            continue
        if any(k not in x.steps and x.shape[k] != 1 for k in before):
            raise Untraceable("a Reshape joins batch or heads with what each head has for itself")
        step = x.steps[lanes[-1]]
        inner = 1
        for k in reversed(lanes):
            if x.steps[k] != step * inner:
                raise Untraceable("a Reshape joins batch and heads in another order than they lie in")
            inner *= x.shape[k]
        inner = 1
        for k in reversed(after):
            if shape[k] != 1:
                steps[k] = step * inner
                inner *= shape[k]
    plain = tuple(1 if k in steps else d for k, d in enumerate(shape))

    def move(table: Array) -> Array:
        ones = (1,) * len(plain)
        return table.reshape(ones) if table.size == 1 else np.broadcast_to(table, x.plain).reshape(plain)

    return Traced(tuple(shape), move(x.ids), move(x.numbers), steps)


def taken(x: Traced, axis: int, places: Array) -> Traced:
    """`places` (1-D) along an axis that is no lane."""
    if axis in x.steps or varies(x.shape[axis]):
        raise Untraceable("batch or heads are cut")
    shape = (*x.shape[:axis], len(places), *x.shape[axis + 1:])

    def move(table: Array) -> Array:
        return table if table.shape[axis] == 1 and x.shape[axis] != 1 else table.take(places, axis)

    _bounded(tuple(1 if k in x.steps else d for k, d in enumerate(shape)))
    return Traced(shape, move(x.ids), move(x.numbers), x.steps)


def padded(x: Traced, before: Sequence[int], after: Sequence[int], number: float) -> Traced:
    if any(before[k] or after[k] for k, d in enumerate(x.shape) if k in x.steps or varies(d)):
        raise Untraceable("batch or heads are padded")
    if min(*before, *after) < 0:
        raise Untraceable("a Pad cuts")
    shape = tuple(d + a + b for d, a, b in zip(x.shape, before, after, strict=True))
    _bounded(tuple(1 if k in x.steps else d for k, d in enumerate(shape)))
    width = list(zip(before, after, strict=True))
    ids = np.pad(x.full_ids(), width, constant_values=-1)
    return Traced(shape, ids, np.pad(x.full_numbers(), width, constant_values=number), x.steps)


def widened(x: Traced, shape: Sequence[int]) -> Traced:
    """Broadcast to `shape`, which has as many dims or more."""
    more = len(shape) - x.rank
    out = tuple(shape)
    for have, want in zip(x.shape, out[more:], strict=True):
        if have not in (1, want):
            raise Untraceable(f"{list(x.shape)} is not broadcast to {list(shape)}")
    return Traced(out, x.ids.reshape((1,) * more + x.ids.shape), x.numbers.reshape((1,) * more + x.numbers.shape),
                  {k + more: step for k, step in x.steps.items()})


def with_lanes(x: Traced, lanes: Mapping[int, int]) -> Traced:
    """`x` with lanes where it has plain axes; `lanes` gives the steps of what it is put together with."""
    for axis, step in lanes.items():
        if axis in x.steps:
            if x.steps[axis] != step and not x.is_constant:
                raise Untraceable("two pieces run through batch or heads at different steps")
            x = replace(x, steps={**x.steps, axis: step})
        elif x.shape[axis] != 1:
            first = np.zeros(1, np.int64)
            same = x.numbers.shape[axis] == 1 or bool((x.numbers == x.numbers.take(first, axis)).all())
            if not x.is_constant or not same:
                raise Untraceable("what is put together differs among batch or heads")
            x = replace(x, numbers=x.numbers.take(first, axis), ids=x.ids.take(first, axis),
                        steps={**x.steps, axis: step})
    return x


def together(pieces: Sequence[Traced]) -> list[Traced]:
    """Pieces of the same rank with the same lanes."""
    lanes: dict[int, int] = {}
    for one in sorted(pieces, key=lambda p: p.is_constant):
        for axis, step in one.steps.items():
            lanes.setdefault(axis, step)
    return [with_lanes(one, lanes) for one in pieces]


def joined(pieces: Sequence[Traced], axis: int) -> Traced:
    """Concatenated."""
    same = together(pieces)
    if axis in same[0].steps or (len(same) > 1 and any(varies(p.shape[axis]) for p in same)):
        raise Untraceable("batch or heads are put together")
    shape = (*same[0].shape[:axis], sum(p.shape[axis] for p in same), *same[0].shape[axis + 1:])
    return Traced(shape, np.concatenate([p.full_ids() for p in same], axis),
                  np.concatenate([p.full_numbers() for p in same], axis), same[0].steps)


def chosen(condition: Traced, one: Traced, other: Traced) -> Traced:
    """Where of a constant condition."""
    shape = np.broadcast_shapes(condition.shape, one.shape, other.shape)
    test, a, b = together([widened(p, shape) for p in (condition, one, other)])
    if not test.is_constant:
        raise Untraceable("only a run knows what a Where chooses")
    which = test.numbers != 0
    plain = tuple(1 if k in a.steps else d for k, d in enumerate(shape))
    _bounded(plain)
    return Traced(shape, np.where(which, a.ids, b.ids), np.where(which, a.numbers, b.numbers), a.steps)


def _flat(number: float, rank: int) -> Array:
    return np.full((1,) * rank, number, np.int64 if isinstance(number, int) else np.float64)


def _bounded(plain: Sequence[int]) -> None:
    if prod(plain) > MOST:
        raise Untraceable(f"one head has {prod(plain)} elements on the way, more than {MOST} that are followed")


def groups(source: Sequence[int], shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of dims of equal product, the shortest ones; the products of all must be equal and not 0."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(shape):
        left, right = [i], [j]
        a, b = source[i], shape[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= source[i]
                left.append(i)
                i += 1
            else:
                b *= shape[j]
                right.append(j)
                j += 1
        found.append((left, right))
    if found:
        found[-1][0].extend(range(i, len(source)))
        found[-1][1].extend(range(j, len(shape)))
    return found
