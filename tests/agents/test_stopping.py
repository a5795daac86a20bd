"""A search ends at the roofline, or when another candidate costs more than it brings, and not before."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.standing import Standing
from agents.stopping import LEAST_GAIN, ROOFLINE, Stakes, Stopping, expected_gain
from tests.agents.search_world import DECODE, PREFILL, brief, candidate, failure, verdict

SCALE = 0.05
log_gains = st.lists(st.just(0.0) | st.floats(1e-12, 1.0), max_size=60)
"""None so small that a part of it is nothing: gains are quotients of times."""


@given(log_gains)
def test_something_is_always_expected_and_never_more_than_was_seen(gains: list[float]) -> None:
    expected = expected_gain(gains)
    assert 0 < expected <= max([LEAST_GAIN, *gains])


@given(log_gains)
def test_candidates_that_improve_nothing_lower_what_is_expected_without_end(gains: list[float]) -> None:
    now = expected_gain(gains)
    barren = [*gains, *[0.0] * (len(gains) + 1)]
    assert expected_gain(barren) < now
    assert expected_gain([*barren, *[0.0] * 10 * len(barren)]) < now / 5


@given(log_gains)
def test_only_how_many_records_come_late_counts_and_how_large_they_are(gains: list[float]) -> None:
    half = len(gains) // 2
    early, later = gains[:half], gains[half:]
    moved = [0.0] * later.count(0.0) + [gain for gain in later if gain > 0]
    assert expected_gain([*early, *moved]) == pytest.approx(expected_gain(gains))
    assert expected_gain([gain * 2 for gain in gains]) == pytest.approx(expected_gain(gains) * (2 if any(gains) else 1))


def test_records_that_still_come_raise_it() -> None:
    """The same gains, made early or late."""
    gains = [0.1, 0.1, 0.1]
    assert expected_gain([*gains, *[0.0] * 17]) < expected_gain([*[0.0] * 17, *gains])


def course(stakes: Stakes, gains: list[float], cost_s: float) -> int:
    """Candidates until it is enough; `gains` as factors, the last one forever."""
    stopping, ratio = Stopping(brief(), stakes), 1.0
    for number in range(3000):
        if stopping.enough():
            return number
        ratio *= gains[number] if number < len(gains) else 1.0
        one = candidate(number)
        stopping.learn(verdict(one, decode=ratio, prefill=ratio, roofline=0.01, duration_s=cost_s))
    return 3000


@pytest.mark.parametrize("cost_s", [0.5, 2.0, 8.0])
def test_the_more_it_is_worth_and_the_less_it_costs_the_longer_it_goes_on(cost_s: float) -> None:
    gains = [1.5, 1.2, 1.0, 1.1]
    ends = [course(Stakes(worth_s), gains, cost_s) for worth_s in (100.0, 400.0, 1600.0, 6400.0)]
    assert ends == sorted(ends) and len(set(ends)) == 4
    assert ends[1] == pytest.approx(course(Stakes(800.0), gains, 2 * cost_s), abs=1), "only their ratio counts"


def test_it_goes_on_while_gains_keep_coming() -> None:
    assert course(Stakes(1000.0), [1.05] * 40, 1.0) > 40


def test_failures_cost_as_well() -> None:
    stopping = Stopping(brief(), Stakes(100.0))
    for number in range(2000):
        if stopping.enough():
            break
        stopping.learn(failure(candidate(number)))
    assert number < 100 and "another candidate costs 0.5 s" in stopping.enough()


def test_an_hour_of_a_second_each_is_not_cut_short_by_the_default() -> None:
    assert course(Stakes(), [1.5], 1.0) > 1500


def test_before_the_first_candidate_nothing_is_enough() -> None:
    assert Stopping(brief(), Stakes(0.0)).enough() == ""


TAILS: dict[str, Callable[[random.Random], float]] = {
    "exponential": lambda chance: chance.expovariate(1 / SCALE),
    "bounded": lambda chance: 2 * SCALE * chance.random(),
    "half-normal": lambda chance: abs(chance.gauss(0, SCALE)),
}


@pytest.mark.parametrize("tail", TAILS)
def test_the_net_gain_is_near_that_of_a_searcher_who_knows_the_distribution(tail: str) -> None:
    """Independent draws. Who knows the distribution stops at the first value whose expected excess is worth less than a
    draw costs (Weitzman 1979). The rule, which does not, may lose a tenth or so.
    """
    worth_s, cost_s, most = 20_000.0, 1.0, 1500
    sample = [TAILS[tail](random.Random(number)) for number in range(2000)]
    low, high = 0.0, max(sample)
    for _ in range(30):
        middle = (low + high) / 2
        excess = statistics.fmean(max(0.0, value - middle) for value in sample)
        low, high = (middle, high) if excess * worth_s > cost_s else (low, middle)
    ours, best = [], []
    for seed in range(30):
        chance = random.Random(seed)
        draws = [TAILS[tail](chance) for _ in range(most)]
        known = next((number for number, draw in enumerate(draws, 1) if draw >= low), most)
        best.append(worth_s * max(draws[:known]) - cost_s * known)
        ours.append(_net(draws, worth_s, cost_s))
    assert statistics.fmean(ours) > 0.85 * statistics.fmean(best)


def _net(draws: list[float], worth_s: float, cost_s: float) -> float:
    gains: list[float] = []
    top = 0.0
    for draw in draws:
        gains.append(max(0.0, draw - top))
        top = max(top, draw)
        if expected_gain(gains) * worth_s < cost_s:
            break
    return worth_s * top - cost_s * len(gains)


def test_the_roofline_is_weighted_by_time() -> None:
    stopping = Stopping(brief())
    one = candidate(1)
    stopping.learn(verdict(one, decode=2.0, roofline=1.0))
    assert stopping.standing.roofline_fraction == pytest.approx(0.25 / 0.75)
    assert stopping.enough() == ""
    stopping.learn(verdict(candidate(2), prefill=2.0, roofline=ROOFLINE - 0.1))
    assert stopping.enough() == ""
    stopping.learn(verdict(candidate(3), prefill=2.0 * 1.08, roofline=1.0))
    assert stopping.enough().startswith("the traffic runs at")


ratio = st.floats(0.3, 6.0)


@given(st.lists(st.tuples(ratio, ratio, st.floats(0.01, 1.3)), max_size=8))
def test_what_is_needed_never_passes_what_is_left(found: list[tuple[float, float, float]]) -> None:
    standing, before = Standing(brief()), 1.0
    assert (standing.time(), standing.needed(), standing.roofline_fraction) == (1.0, 0.0, 0.0)
    for number, (decode, prefill, roofline) in enumerate(found):
        standing.learn(verdict(candidate(number), decode=decode, prefill=prefill, roofline=roofline))
        assert 0 <= standing.needed() <= standing.time() <= before + 1e-12
        assert standing.headroom() == pytest.approx(standing.headroom([DECODE]) + standing.headroom([PREFILL]))
        before = standing.time()
