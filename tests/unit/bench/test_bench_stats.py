"""The interval of the median: exact against the binomial, and right as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilegraph.bench.stats import median_interval, paired_ratios, quantile


def test_thirty_rounds_use_the_tenth_and_twenty_first_value() -> None:
    interval = median_interval([float(v) for v in range(1, 31)])
    assert (interval.low, interval.high, interval.median) == (10.0, 21.0, 15.5)
    tail = sum(math.comb(30, k) for k in range(10)) / 2**30
    assert interval.coverage == pytest.approx(1 - 2 * tail)


@pytest.mark.parametrize("n", range(6, 60))
def test_the_attained_coverage_is_at_least_95_and_one_step_less_is_not(n: int) -> None:
    interval = median_interval([float(v) for v in range(n)])
    rank = int(interval.low)  # values below `low`
    assert interval.high == n - 1 - rank
    tail = sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    assert interval.coverage == pytest.approx(1 - 2 * tail)
    assert interval.coverage >= 0.95
    tighter = tail + math.comb(n, rank + 1) / 2**n
    assert 1 - 2 * tighter < 0.95


@pytest.mark.parametrize("n", range(1, 6))
def test_few_rounds_give_the_range_and_an_honest_coverage(n: int) -> None:
    interval = median_interval([float(v) for v in range(n)])
    assert (interval.low, interval.high) == (0.0, n - 1.0)
    assert interval.coverage == pytest.approx(1 - 2 * 0.5**n)
    assert interval.coverage < 0.95


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "two_modes"])
def test_the_interval_holds_the_truth_as_often_as_it_says(distribution: str) -> None:
    rng = np.random.default_rng(7)
    truth, misses, trials = 1.0, 0, 2000
    for _ in range(trials):
        noise = rng.standard_normal(25)
        if distribution == "normal":
            values = truth + 0.1 * noise
        elif distribution == "lognormal":
            values = truth * np.exp(0.5 * noise)  # skewed; its median is still the truth
        else:
            values = truth + np.where(rng.random(25) < 0.5, 1, -1) * np.abs(noise)
        interval = median_interval(list(values))
        misses += not interval.low <= truth <= interval.high
    # 25 values attain 95.7%: 86 misses expected, deviation 9.
    assert 50 <= misses <= 125


def test_pairing_removes_drift_that_hits_both() -> None:
    rng = np.random.default_rng(3)
    drift = np.exp(np.cumsum(rng.standard_normal(30) * 0.2))  # the machine slows and speeds up by large factors
    first = 2.0 * drift * (1 + 0.01 * rng.standard_normal(30))
    other = 1.0 * drift * (1 + 0.01 * rng.standard_normal(30))
    paired = median_interval(paired_ratios(list(first), list(other)))
    assert paired.low <= 2.0 <= paired.high
    assert paired.high - paired.low < 0.05
    shuffled = median_interval(paired_ratios(list(first), list(rng.permutation(other))))
    assert shuffled.high - shuffled.low > 5 * (paired.high - paired.low)


def test_ratios_need_the_same_rounds() -> None:
    with pytest.raises(ValueError, match="2 and 3 rounds"):
        paired_ratios([1.0, 1.0], [1.0, 1.0, 1.0])


def test_no_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="no median"):
        median_interval([])


def test_quantiles_interpolate() -> None:
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
