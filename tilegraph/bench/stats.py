"""Statistics of paired timings: quantiles, and an interval for the median that assumes no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """The median and its interval; `coverage` is what the interval really attains (1 - the two tails)."""

    median: float
    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], coverage: float = 0.95) -> Interval:
    """Order statistics that hold the true median with probability ≥ `coverage` (the inverted sign test).

    With fewer than 6 values no interval reaches 95%: the whole range is given, with the coverage that it has.
    `ValueError` for no values.
    """
    if not values:
        raise ValueError("no values, so no median")
    ordered = sorted(values)
    n = len(ordered)
    # P(fewer than k of n values lie below the true median) is a binomial tail with p = 1/2.
    tail, k = 0.5 ** n, 0
    while k + 1 <= (n - 1) // 2:
        next_tail = tail + math.comb(n, k + 1) * 0.5 ** n
        if 2 * next_tail > 1 - coverage:
            break
        tail, k = next_tail, k + 1
    return Interval(float(np.median(ordered)), ordered[k], ordered[n - 1 - k], 1 - 2 * tail)


def paired_ratios(first: Sequence[float], other: Sequence[float]) -> list[float]:
    """`first / other` round by round: above 1, the other is faster. Rounds are paired because noise that lasts longer
    than one round then hits both."""
    if len(first) != len(other):
        raise ValueError(f"{len(first)} and {len(other)} rounds cannot be paired")
    return [a / b for a, b in zip(first, other, strict=True)]


def quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(np.asarray(values, np.float64), q))
