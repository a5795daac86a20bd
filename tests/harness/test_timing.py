"""Statistics of paired timing: intervals, stopping, batches, and runs that say nothing."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.timing import Interval, Pair, StopRule, VoidRunError, batch_size, bootstrap, collect

RULE = StopRule(min_pairs=5, max_pairs=40, budget_s=1e9, tolerance=0.02, margin=0.05)
POSITIVE = st.floats(1e-3, 1e9)


@settings(max_examples=60, deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=40), st.integers(0, 9))
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples, seed):
    interval = bootstrap(samples, seed)
    assert min(samples) <= interval.low <= interval.median <= interval.high <= max(samples)


@settings(max_examples=30, deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=20), st.floats(0.01, 100.0))
def test_the_interval_scales_with_its_samples(samples, factor):
    plain, scaled = bootstrap(samples, 3), bootstrap([factor * sample for sample in samples], 3)
    assert scaled.median == pytest.approx(factor * plain.median)
    assert scaled.low == pytest.approx(factor * plain.low)
    assert scaled.high == pytest.approx(factor * plain.high)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = random.Random(5)
    covered = 0
    for trial in range(300):
        interval = bootstrap([rng.lognormvariate(0.0, 0.1) for _ in range(25)], trial)
        covered += interval.low <= 1.0 <= interval.high
    assert 0.88 <= covered / 300 <= 1.0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_samples_void_the_run(bad):
    with pytest.raises(VoidRunError):
        bootstrap([1.0, bad], 0)
    with pytest.raises(VoidRunError, match="ns a call"):
        collect(lambda first: Pair(bad, 1.0), RULE, random.Random(0), lambda: 0.0)
    with pytest.raises(VoidRunError, match="ns a call"):
        collect(lambda first: Pair(1.0, bad), RULE, random.Random(0), lambda: 0.0)


def test_no_samples_are_no_interval():
    with pytest.raises(VoidRunError):
        bootstrap([], 0)


def test_a_clear_case_stops_early_and_a_close_one_does_not():
    clear = collect(lambda first: Pair(1.0, 2.0), RULE, random.Random(0), lambda: 0.0)
    assert len(clear.pairs) == RULE.min_pairs
    assert (clear.ratio.median, clear.candidate_ns, clear.baseline_ns) == (2.0, 1.0, 2.0)
    noise = random.Random(1)
    close = collect(lambda first: Pair(noise.uniform(0.5, 1.5), 1.0), RULE, random.Random(0), lambda: 0.0)
    assert len(close.pairs) > RULE.min_pairs


def test_the_budget_ends_it():
    clock = itertools.count(step=0.4)
    noise = random.Random(1)
    rule = StopRule(min_pairs=2, max_pairs=1000, budget_s=2.0, tolerance=1e-9, margin=10.0)
    timed = collect(lambda first: Pair(noise.uniform(0.5, 1.5), 1.0), rule, random.Random(0), lambda: next(clock))
    assert 2 <= len(timed.pairs) <= 6


def test_both_orders_occur():
    orders = []
    rule = StopRule(min_pairs=30, max_pairs=30, budget_s=1e9, tolerance=0.0, margin=1.0)
    collect(lambda first: orders.append(first) or Pair(1.0, 1.0), rule, random.Random(2), lambda: 0.0)
    assert {True, False} == set(orders)


def test_identical_sides_are_seldom_called_different():
    """The stop rule looks at the interval after every pair: that must not make chance look like a gain."""
    called = 0
    for trial in range(100):
        noise = random.Random(trial)
        measure = lambda first: Pair(noise.lognormvariate(0, 0.05), noise.lognormvariate(0, 0.05))  # noqa: B023, E731
        rule = StopRule(min_pairs=7, max_pairs=25, budget_s=1e9, tolerance=0.03, margin=0.10)
        called += collect(measure, rule, random.Random(trial), lambda: 0.0).ratio.low > 1.02
    assert called <= 4


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 1e9), st.integers(1, 512), st.integers(0, 99))
def test_batches_fit_the_sets(per_call_ns, sets, seed):
    assert 1 <= batch_size(per_call_ns, 2e6, sets, random.Random(seed)) <= sets


def test_batches_are_unpredictable():
    rng = random.Random(0)
    assert len({batch_size(20_000.0, 2e6, 512, rng) for _ in range(20)}) > 5


def test_half_width_is_relative():
    assert Interval(2.0, 1.9, 2.1).half_width == pytest.approx(0.05)
