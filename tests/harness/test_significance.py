"""What may be called proven: bounds that chance seldom beats, on hosts that behave and on such as do not."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import significance
from harness.significance import (
    FAMILY_ERROR,
    SPREAD,
    dependence,
    in_both_orders,
    looks,
    lower_bound,
    student_quantile,
)


def smooth(rng, size, persistence, deviation):
    """Noise that lasts: each value keeps that share of the one before."""
    fresh = rng.normal(0, deviation * math.sqrt(1 - persistence**2), size)
    for index in range(1, size):
        fresh[index] += persistence * fresh[index - 1]
    return fresh


def noise(rng, kind, size):
    """Logarithms of the ratios of equals."""
    quiet = rng.normal(0, 0.08, size)
    if kind == "spikes":
        for side in (1, -1):
            quiet += side * (rng.random(size) < 0.1) * np.minimum(8, 0.3 * rng.pareto(1.2, size))
    if kind == "persistent":
        quiet += smooth(rng, size, 0.4, 0.08)
    if kind == "going first":
        quiet += 0.15 * np.tile([1, -1], size // 2 + 1)[:size] * np.repeat(rng.choice([1, -1], size // 2 + 1), 2)[:size]
    return quiet


@pytest.mark.parametrize("kind", ["quiet", "spikes", "persistent", "going first"])
def test_the_bound_of_one_workload_fails_in_less_than_one_case_of_a_hundred(kind):
    """At every look of a run; a run of equals may then be called faster by chance alone."""
    rng = np.random.default_rng(1)
    counts = looks(5, 160)
    failed = 0
    for _ in range(250):
        ratios = np.exp(noise(rng, kind, counts[-1]))
        failed += any(lower_bound(ratios[:count], 1, len(counts) + 1) > 1 for count in counts)
    assert failed <= 250 * FAMILY_ERROR + 3  # three more than expected: chance in 1 of 20 000 if each run fails in 1 %


def test_a_bound_is_not_so_low_that_it_is_useless():
    rng = np.random.default_rng(2)
    bounds = [lower_bound(np.exp(0.05 + noise(rng, "quiet", 600)), 20, 12) for _ in range(30)]
    assert sorted(bounds)[3] > 1.02


def test_a_spell_proves_nothing():
    """One side is slow for a third of the run, and then no more."""
    rng = np.random.default_rng(3)
    logs = rng.normal(0, 0.01, 90)
    logs[30:60] += 0.4
    assert lower_bound(np.exp(logs), 1, 1) < 1.01


def test_five_pairs_prove_a_factor_of_two_and_not_one_of_a_half_more():
    pairs = np.array([1.9, 2.0, 2.1, 2.2, 2.0])
    assert lower_bound(pairs, 20, 10) == pytest.approx(1.9 / SPREAD)
    assert lower_bound(pairs * 0.7, 20, 10) < 1
    assert lower_bound(pairs[:4], 20, 10) == 0
    assert lower_bound(np.array([1.6, 2.0, 3.0, 9.0, 2.0]), 20, 10) < 1, (
        "they differ among themselves by more than that"
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=60), st.floats(0.5, 2.0))
def test_the_bound_scales_with_the_ratios_and_is_no_more_than_the_largest(logs, factor):
    ratios = np.exp(logs)
    bound = lower_bound(ratios, 20, 10)
    assert 0 <= bound <= ratios.max()
    scaled = lower_bound(factor * ratios, 20, 10)
    assert scaled == pytest.approx(factor * bound, rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=2, max_size=25), st.data())
def test_the_average_of_a_rank_is_the_one_that_sorting_gives(samples, data):
    averages = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(samples, 2))
    rank = data.draw(st.integers(1, len(averages)))
    found = significance._average_of_rank(np.array(samples), rank)
    assert found == pytest.approx(averages[rank - 1], abs=2 * significance.PRECISION)


def test_rank_sums_are_counted_right():
    """Against all sign patterns of eight samples, and the published 5 % point of ten: 10 (one-sided)."""
    sums = [sum(rank for rank in range(1, 9) if pattern >> (rank - 1) & 1) for pattern in range(256)]
    expected = [sum(one <= total for one in sums) / 256 for total in range(37)]
    assert significance._rank_sums(8) == pytest.approx(expected)
    assert int(np.searchsorted(significance._rank_sums(10), 0.05, side="right")) - 1 == 10


@pytest.mark.parametrize("size", [significance.EXACT_RANKS, significance.EXACT_RANKS + 1, 200])
def test_the_normal_tail_is_no_bolder_than_the_counted_one(size):
    for deviates in (2.0, 3.0, 4.0):
        mean, deviation = size * (size + 1) / 4, math.sqrt(size * (size + 1) * (2 * size + 1) / 24)
        rank = significance._critical_rank(size, deviates)
        assert mean - (deviates + 0.15) * deviation - 1 <= rank <= mean - (deviates - 0.15) * deviation + 1


def test_dependence_is_seen():
    rng = np.random.default_rng(4)
    alone = np.median([dependence(rng.normal(0, 1, 300)) for _ in range(20)])
    lasting = np.median([dependence(smooth(rng, 300, 0.6, 1.0)) for _ in range(20)])
    assert 1.0 <= alone < 1.6 and 2.5 < lasting < 8
    assert dependence(np.zeros(30)) == dependence(np.ones(2)) == 1


@given(st.integers(1, 50), st.integers(1, 30_000))
def test_looks_are_few_and_end_with_the_last_pair(least, most):
    counts = looks(least, most)
    assert counts[-1] == most and counts[0] == min(least, most)
    assert all(later > earlier for earlier, later in itertools.pairwise(counts))
    assert len(counts) <= 40


def test_who_goes_first_cancels():
    rng = random.Random(0)
    ratios = [factor * 1.1 for _ in range(10) for factor in rng.sample([2.0, 0.5], 2)]
    assert in_both_orders(np.array(ratios)) == pytest.approx(np.full(10, 1.1))


@pytest.mark.parametrize(
    ("error", "freedom", "expected"),
    [(0.05, 1, 6.3138), (0.025, 4, 2.7764), (0.01, 7, 2.9980), (0.001, 10, 4.1437), (0.025, 1000, 1.9623)],
)
def test_students_quantiles_are_those_of_the_tables(error: float, freedom: int, expected: float) -> None:
    assert student_quantile(error, freedom) == pytest.approx(expected, rel=1e-3)
