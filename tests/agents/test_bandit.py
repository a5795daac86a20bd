"""The bandit finds the better pattern, forgets what is old, starves nobody, and is the same for the same seed."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.bandit import (
    EVERY,
    FADE,
    HALF_LIFE_MS,
    PatternBandit,
    Prior,
    evidence_of,
    expected_improvement,
    faded,
    nearness,
    priors,
)
from agents.memory import GAIN_EDGES, Evidence, PatternRecord

HERE, ELSEWHERE = "x86_64-AuthenticAMD-25-17-avx512_bf16", "aarch64-0x41-8-0xd0c-asimd"
NOW_MS = 1_800_000_000_000


def play(
    bandit: PatternBandit, means: Mapping[str, float], rounds: int, seed: int, works: Mapping[str, float] | None = None
) -> list[str]:
    """Pulls arms whose log-ratios are normal; the best so far rises as it does in a search."""
    chance, best, chosen = random.Random(seed), 1.0, []
    for _ in range(rounds):
        arm = bandit.choose(list(means), best)
        right = chance.random() < (works or {}).get(arm, 1.0)
        ratio = math.exp(chance.gauss(means[arm], 0.1)) if right else None
        bandit.learn(arm, ratio)
        best = max(best, ratio or 1.0)
        chosen.append(arm)
    return chosen


def record(pattern: str, ratio: float, count: int, operator: str = "rms_norm", hardware: str = HERE) -> PatternRecord:
    evidence = evidence_of(ratio).scaled(count)
    bars = (0,) * (len(GAIN_EDGES) + 1)
    return PatternRecord(operator, hardware, pattern, count, count, count, count, bars, ratio, evidence, NOW_MS)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(-0.5, 1.0), st.floats(0.4, 1.0), st.integers(2, 6))
def test_it_converges_to_the_better_arm(seed: int, worse: float, by: float, arms: int) -> None:
    means = {f"p{place}": worse for place in range(arms)} | {"good": worse + by}
    late = play(PatternBandit({}, seed), means, 120, seed)[60:]
    assert Counter(late)["good"] > 0.75 * len(late)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_an_arm_that_hardly_ever_works_loses_to_one_that_always_does(seed: int) -> None:
    late = play(PatternBandit({}, seed), {"breaks": 0.5, "works": 0.5}, 120, seed, works={"breaks": 0.1})[60:]
    assert Counter(late)["works"] > Counter(late)["breaks"]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.lists(st.one_of(st.none(), st.floats(0.01, 100)), min_size=36, max_size=36),
    st.floats(1, 30),
)
def test_no_arm_that_was_never_tried_is_starved(
    seed: int, arms: int, ratios: list[float | None], remembered: float
) -> None:
    """Whatever memory praises and whatever the verdicts are."""
    names = [f"p{place}" for place in range(arms)]
    bandit = PatternBandit(priors([record("p0", remembered, 500)], "rms_norm", HERE, NOW_MS), seed)
    chosen = set()
    for ratio in ratios[: EVERY * arms]:
        arm = bandit.choose(names, max((r for r in ratios if r), default=1.0))
        chosen.add(arm)
        bandit.learn(arm, ratio)
    assert chosen | {"p0"} == set(names)


def test_what_was_good_and_is_no_more_is_left() -> None:
    bandit = PatternBandit({}, 3)
    play(bandit, {"first": 0.8, "second": 0.2}, 80, 1)
    late = play(bandit, {"first": -0.8, "second": 0.2}, 160, 2)[80:]
    assert Counter(late)["second"] > 0.75 * len(late)


@given(st.integers(0, 10_000))
def test_the_same_seed_chooses_the_same(seed: int) -> None:
    means = {"a": 0.1, "b": 0.2, "c": 0.0}
    known = priors([record("b", 1.4, 9), record("c", 2.0, 3, "softmax")], "rms_norm", HERE, NOW_MS)
    assert play(PatternBandit(known, seed), means, 15, 1) == play(PatternBandit(known, seed), means, 15, 1)


def test_memory_decides_the_first_choice() -> None:
    known = priors([record("good", 3.0, 20), record("bad", 0.8, 20)], "rms_norm", HERE, NOW_MS)
    first = Counter(PatternBandit(known, seed).choose(["bad", "good"], 1.0) for seed in range(100))
    assert first["good"] > 95


def test_neighbours_help_a_new_operator_but_less_than_its_own_outcomes() -> None:
    far = [record("good", 3.0, 20, "softmax"), record("bad", 0.6, 20, "softmax")]
    first = Counter(
        PatternBandit(priors(far, "rms_norm", HERE, NOW_MS), s).choose(["bad", "good"], 1.0) for s in range(100)
    )
    assert first["good"] > 80
    contradicted = [*far, record("good", 0.6, 20), record("bad", 3.0, 20)]
    first = Counter(
        PatternBandit(priors(contradicted, "rms_norm", HERE, NOW_MS), s).choose(["bad", "good"], 1.0)
        for s in range(100)
    )
    assert first["bad"] > 90


def test_nearness_falls_with_operator_and_hardware() -> None:
    same_features = "x86_64-GenuineIntel-6-143-avx512_bf16"
    other_features = "x86_64-GenuineIntel-6-85-avx512vl"
    near = [nearness("rms_norm", key, "rms_norm", HERE) for key in (HERE, same_features, other_features, ELSEWHERE)]
    assert near[0] == 1 and near == sorted(set(near), reverse=True)
    kin = [nearness(name, HERE, "rms_norm", HERE) for name in ("rms_norm", "softmax", "skinny_linear")]
    assert kin[0] == 1 and kin == sorted(set(kin), reverse=True)


def test_outcomes_fade_with_time() -> None:
    evidence = evidence_of(2.0)
    assert faded(evidence, NOW_MS, NOW_MS + int(HALF_LIFE_MS)).tried == pytest.approx(0.5)
    assert faded(evidence, NOW_MS + 5, NOW_MS) == evidence


@given(st.floats(-5, 5), st.floats(0.01, 5), st.floats(-5, 5))
def test_expected_improvement_is_what_draws_give_on_average(mean: float, deviation: float, best: float) -> None:
    """Against the integral by the midpoint rule."""
    steps = 2000
    width = 16 * deviation / steps
    points = [mean - 8 * deviation + width * (place + 0.5) for place in range(steps)]
    total = sum(
        max(0.0, x - best) * math.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
        for x in points
    )
    assert expected_improvement(mean, deviation, best) == pytest.approx(total * width, abs=1e-4)


def test_each_verdict_takes_weight_from_those_before_it() -> None:
    bandit = PatternBandit({}, 0)
    bandit.learn("a", 2.0)
    bandit.learn("b", 2.0)
    assert bandit.evidence("a") == evidence_of(2.0).scaled(FADE) and bandit.evidence("b") == evidence_of(2.0)


def test_of_two_that_are_as_fast_the_one_that_works_more_often_is_taken() -> None:
    three_right = evidence_of(2.0).scaled(3)
    known = {"often": Prior(own=three_right), "seldom": Prior(own=replace(three_right, tried=30.0))}
    chosen = Counter(PatternBandit(known, seed).choose(["seldom", "often"], 2.0) for seed in range(200))
    assert chosen["often"] > 170


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(ValueError):
        PatternBandit({}, 0).choose([], 1.0)


def test_a_prior_without_trials_leaves_an_arm_untried() -> None:
    bandit = PatternBandit({"a": Prior(), "b": Prior(own=evidence_of(5.0).scaled(20))}, 0)
    assert "a" in {bandit.choose(["a", "b"], 1.0) for _ in range(EVERY)}
    assert bandit.evidence("a") == Evidence()
