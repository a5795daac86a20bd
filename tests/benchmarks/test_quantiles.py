"""The interval of a percentile holds it as often as it says."""

from __future__ import annotations

import random

from benchmarks.quantiles import quantile_interval


def test_the_interval_holds_the_percentile_in_19_of_20_cases() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(200):
        low, high = quantile_interval([chance.random() for _ in range(100)], 0.95)
        held += low <= 0.95 <= high
    assert 185 <= held < 200


def test_with_few_samples_the_longest_is_the_upper_end() -> None:
    assert quantile_interval([9.0, 1.0, 2.0], 0.95) == (2.0, 9.0)


def test_of_a_median() -> None:
    assert quantile_interval(range(1, 21), 0.5) == (6, 15)
