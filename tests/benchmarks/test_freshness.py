"""The interval of a percentile, and that one late or wrong kernel is not averaged away."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks import freshness
from benchmarks.figures import Outcome
from benchmarks.freshness import Passage, quantile_interval

QUICK = [Passage(0.2, 1.0 + number / 1000, right=True) for number in range(120)]


def test_the_interval_holds_the_percentile_in_19_of_20_cases() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(1000):
        low, high = quantile_interval(sorted(chance.random() for _ in range(100)))
        held += low <= 0.95 <= high
    assert 940 <= held <= 990


def test_with_few_samples_the_longest_is_the_upper_end() -> None:
    assert quantile_interval([1.0, 2.0, 9.0]) == (2.0, 9.0)


def test_slow_or_wrong_ones_miss() -> None:
    good = freshness.figure(QUICK)
    assert good.verdict is Outcome.MET
    assert good.measured == 1.114
    assert good.interval == (QUICK[108].served_s, QUICK[118].served_s)
    assert freshness.figure([replace(QUICK[0], right=False), *QUICK[1:]]).verdict is Outcome.MISSED
    late = [replace(one, served_s=4.0) for one in QUICK[:2]]
    assert freshness.figure([*late, *QUICK[2:]]).verdict is Outcome.MISSED
