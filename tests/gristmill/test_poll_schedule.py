"""When hosts poll, by a clock of the test's own: no herd at the start, less of them at a store that fails."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from gristmill.poll_schedule import JITTER, LONGEST_INTERVALS, PollSchedule

DRAWS = st.floats(0, 1, exclude_max=True)
SLACK = 1e-9


@given(st.floats(1e-3, 1e4), st.lists(st.tuples(st.booleans(), DRAWS), max_size=200))
def test_every_pause_is_within_its_bounds(interval_s: float, outcomes: list[tuple[bool, float]]) -> None:
    draws = iter([draw for _, draw in outcomes])
    schedule = PollSchedule(interval_s, lambda: next(draws))
    failures = 0
    for failed, _ in outcomes:
        failures = failures + 1 if failed else 0
        intervals = schedule.next_s(failed) / interval_s
        longest = min(2.0**failures, LONGEST_INTERVALS) if failed else 1 + JITTER
        assert 1 - JITTER - SLACK <= intervals <= longest + SLACK


@given(st.floats(1e-3, 1e4), DRAWS)
def test_the_first_poll_is_anywhere_in_an_interval(interval_s: float, draw: float) -> None:
    assert PollSchedule(interval_s, lambda: draw).first_s() == interval_s * draw


def polls(hosts: int, interval_s: float, until_s: float, works: Callable[[float], bool]) -> Iterator[float]:
    """When a fleet that was started at 0 polls a store that works at these times."""
    draw = random.Random(5).random
    schedules = [PollSchedule(interval_s, draw) for _ in range(hosts)]
    due = [(schedule.first_s(), host) for host, schedule in enumerate(schedules)]
    heapq.heapify(due)
    while due[0][0] < until_s:
        now_s, host = heapq.heappop(due)
        yield now_s
        heapq.heappush(due, (now_s + schedules[host].next_s(not works(now_s)), host))


def test_a_fleet_that_starts_at_once_spreads_its_polls() -> None:
    times = list(polls(hosts=1000, interval_s=15, until_s=150, works=lambda now_s: True))
    per_s = [sum(int(one) == second for one in times) for second in range(150)]
    mean = sum(per_s) / len(per_s)
    assert 60 < mean < 70
    assert max(per_s) < 1.7 * mean


def test_a_store_that_fails_is_spared_and_found_again() -> None:
    back_s = 400.0
    times = list(polls(hosts=200, interval_s=1, until_s=500, works=lambda now_s: not 100 <= now_s < back_s))
    before, during, after = (
        sum(start <= one < start + 50 for one in times) / 50 for start in (40, 300, back_s + LONGEST_INTERVALS + 2)
    )
    assert during < before / 3
    assert 0.9 * before < after < 1.1 * before
