"""Statistics of paired timing: intervals, stopping, batches, and runs that say nothing."""

from __future__ import annotations

import itertools
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import policy
from harness.timing import Interval, Pair, PairedTiming, StopRule, VoidRunError, batch_size, bootstrap, collect

RULE = StopRule(min_pairs=5, max_pairs=40, budget_s=1e9, tolerance=0.02, margin=0.05)
POSITIVE = st.floats(1e-3, 1e9)


@settings(max_examples=60, deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=40))
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples):
    interval = bootstrap(samples)
    assert interval.median == pytest.approx(statistics.median(samples))
    assert min(samples) <= interval.low <= interval.median <= interval.high <= max(samples)


@settings(max_examples=30, deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=20), st.floats(0.01, 100.0))
def test_the_interval_scales_with_its_samples(samples, factor):
    plain, scaled = bootstrap(samples), bootstrap([factor * sample for sample in samples])
    assert scaled.median == pytest.approx(factor * plain.median)
    assert scaled.low == pytest.approx(factor * plain.low)
    assert scaled.high == pytest.approx(factor * plain.high)


@pytest.mark.parametrize("size", [7, 12, 25, 60])
def test_the_interval_is_what_resampling_gives(size):
    """A drawn bootstrap of many resamples ends within one sample of the exact one, which never is the narrower."""
    rng = np.random.default_rng(size)
    samples = np.sort(rng.lognormal(0, 0.2, size))
    drawn = np.median(rng.choice(samples, (20_000, size)), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    exact = bootstrap(samples)
    places = np.searchsorted(samples, [exact.low, exact.high])
    assert exact.low <= low + 1e-9 <= samples[places[0] + 1] + 2e-9
    assert samples[places[1] - 1] - 2e-9 <= high - 1e-9 <= exact.high


@pytest.mark.parametrize("size", [6, 9, 25, 80])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(size):
    rng = random.Random(5)
    covered = 0
    for _ in range(400):
        interval = bootstrap([rng.lognormvariate(0.0, 0.1) for _ in range(size)])
        covered += interval.low <= 1.0 <= interval.high
    assert 0.92 <= covered / 400 <= 0.999


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_samples_void_the_run(bad):
    with pytest.raises(VoidRunError):
        bootstrap([1.0, bad])
    with pytest.raises(VoidRunError, match="ns a call"):
        collect(lambda first: Pair(bad, 1.0), RULE, random.Random(0), lambda: 0.0)
    with pytest.raises(VoidRunError, match="ns a call"):
        collect(lambda first: Pair(1.0, bad), RULE, random.Random(0), lambda: 0.0)


def test_no_samples_are_no_interval():
    with pytest.raises(VoidRunError):
        bootstrap([])


def run(rule, ratio, noise, seed=0, pair_s=0.005):
    """A run on a host whose pairs vary by that much, with a clock that moves with them."""
    rng, now = random.Random(seed), itertools.count(step=pair_s)
    return collect(lambda first: Pair(1.0, ratio * rng.lognormvariate(0, noise)), rule, rng, lambda: next(now))


def test_a_clear_case_stops_early_and_a_close_one_does_not():
    clear = collect(lambda first: Pair(1.0, 2.0), RULE, random.Random(0), lambda: 0.0)
    assert len(clear.pairs) == RULE.min_pairs
    assert (clear.ratio.median, clear.candidate_ns, clear.baseline_ns) == (2.0, 1.0, 2.0)
    assert 1.0 < clear.floor <= clear.ratio.low
    assert len(run(RULE, 1.03, 0.1).pairs) == RULE.max_pairs


@pytest.mark.parametrize("ratio", [0.3, 0.7, 2.0, 5.0])
def test_a_search_spends_five_pairs_on_what_is_obvious(ratio):
    counts = [len(run(policy.search().stop, ratio, 0.05, seed).pairs) for seed in range(20)]
    assert statistics.median(counts) == 5 and max(counts) <= 10


def test_a_gain_that_is_seen_is_pursued_until_it_is_proven():
    """A narrow interval alone does not end a run: it would leave a gain of a quarter unproven."""
    rule = policy.search().stop
    timed = [run(rule, 1.25, 0.04, seed) for seed in range(20)]
    assert sum(one.floor > 1 + rule.gain for one in timed) >= 19
    assert statistics.median(len(one.pairs) for one in timed) < rule.max_pairs


def test_one_run_of_a_proof_gives_up_no_gain_of_five_per_cent_and_makes_none():
    """What it is worth is decided by several: `replication`."""
    chosen, pair_s = policy.proof(), 0.005
    gains, equals = ([run(chosen.stop, ratio, 0.08, seed, pair_s) for seed in range(25)] for ratio in (1.05, 1.0))
    assert sum(len(one.pairs) >= 0.9 * chosen.stop.budget_s / pair_s for one in gains) >= 24
    assert statistics.fmean(one.ratio.median for one in gains) == pytest.approx(1.05, abs=0.005)
    assert not any(one.floor > 1 + chosen.min_gain for one in equals)


def test_the_budget_ends_it():
    clock = itertools.count(step=0.4)
    noise = random.Random(1)
    rule = StopRule(min_pairs=2, max_pairs=1000, budget_s=2.0, tolerance=1e-9, margin=10.0, gain=-0.9)
    timed = collect(lambda first: Pair(noise.uniform(0.5, 1.5), 1.0), rule, random.Random(0), lambda: next(clock))
    assert 2 <= len(timed.pairs) <= 6


def test_of_two_pairs_in_a_row_each_side_goes_first_in_one():
    orders = []
    rule = StopRule(min_pairs=40, max_pairs=40, budget_s=1e9, tolerance=0.0, margin=1.0)
    collect(lambda first: orders.append(first) or Pair(1.0, 1.0), rule, random.Random(2), lambda: 0.0)
    twos = set(zip(orders[::2], orders[1::2], strict=True))
    assert twos == {(True, False), (False, True)}


def test_going_first_may_cost_anything():
    """Whoever goes first takes twice as long: the ratio is still that of equals, and nothing is proven."""
    noise = random.Random(3)

    def measure(first):
        sides = [noise.lognormvariate(0, 0.02) * (2 if ours is first else 1) for ours in (True, False)]
        return Pair(*sides)

    rule = StopRule(min_pairs=60, max_pairs=60, budget_s=1e9, tolerance=0.0, margin=1.0)
    timed = collect(measure, rule, random.Random(2), lambda: 0.0)
    assert timed.ratio.low < 1 < timed.ratio.high and timed.ratio.half_width < 0.02
    assert timed.floor < 1


@pytest.mark.parametrize("chosen", [policy.screening(), policy.search(), policy.promotion(0.5), policy.proof(2.0)])
def test_identical_sides_are_not_called_different(chosen):
    """Many looks, in each policy: chance must not look like a gain."""
    called = sum(run(chosen.stop, 1.0, 0.1, trial).floor > 1 + chosen.min_gain for trial in range(150))
    assert called == 0


def test_drift_is_reported_and_cancels_in_the_ratio():
    slow = [1.0 + 0.01 * step for step in range(60)]
    pairs = tuple(Pair(100 * factor, 150 * factor) for factor in slow)
    timed = PairedTiming(pairs, bootstrap([pair.ratio for pair in pairs]))
    assert timed.noise.drift == pytest.approx(0.365, abs=0.01)
    assert timed.ratio.low == pytest.approx(1.5) == timed.ratio.high
    assert PairedTiming(pairs[:1], Interval(1.0, 1.0, 1.0)).noise.drift == 0


def test_noise_is_told_as_it_was_made():
    timed = run(StopRule(400, 400, 1e9, 0.0, 1.0), 1.0, 0.1)
    noise = timed.noise
    assert noise.variation == pytest.approx(0.1, rel=0.25) and noise.spikes < 0.01
    assert 1 <= noise.dependence < 1.8
    assert noise.pair_s == pytest.approx(0.005, rel=0.02)
    spiked = tuple(
        Pair(pair.candidate_ns * (3 if index % 10 == 0 else 1), pair.baseline_ns)
        for index, pair in enumerate(timed.pairs)
    )
    assert PairedTiming(spiked, timed.ratio).noise.spikes == pytest.approx(0.1, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 1e9), st.integers(1, 512), st.integers(0, 99))
def test_batches_fit_the_sets(per_call_ns, sets, seed):
    assert 1 <= batch_size(per_call_ns, 2e6, sets, random.Random(seed)) <= sets


def test_batches_are_unpredictable():
    rng = random.Random(0)
    assert len({batch_size(20_000.0, 2e6, 512, rng) for _ in range(20)}) > 5


def test_half_width_is_relative():
    assert Interval(2.0, 1.9, 2.1).half_width == pytest.approx(0.05)


def test_a_candidate_that_slows_down_whoever_comes_next_gains_nothing() -> None:
    noise, rule = random.Random(3), StopRule(60, 60, 1e9, 0.0, 1.0)

    def measure(first: bool, slowed: float) -> Pair:
        return Pair(1.0, (slowed if first else 1.0) * noise.lognormvariate(0, 0.03), first)

    fair = collect(lambda first: measure(first, 1.1), rule, random.Random(0), lambda: 0.0)
    foul = collect(lambda first: measure(first, 3.0), rule, random.Random(0), lambda: 0.0)
    assert fair.ratio.median == pytest.approx(1.1**0.5, rel=0.02), "an effect of the order is taken out of the mean"
    assert foul.ratio.median == pytest.approx(1.0, rel=0.02) and foul.floor < 1.02
