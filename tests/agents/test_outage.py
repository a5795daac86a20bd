"""Pauses double, differ from agent to agent, and end after minutes; a refusal ends them at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import ModelUnavailableError, RequestRefusedError
from agents.outage import Outage, Patience, after_failure, farewell, lasting, pause_s

DOWN = ModelUnavailableError("503")
PATIENCE = Patience()


def test_agents_that_failed_together_come_back_one_by_one() -> None:
    pauses = [pause_s(Outage(0.0, 4), DOWN, PATIENCE, 0.0, draw / 10) for draw in range(11)]
    assert pauses == pytest.approx([4.0 + 0.4 * draw for draw in range(11)])


def test_at_the_longest_pause_too() -> None:
    pauses = {pause_s(Outage(0.0, 100), DOWN, PATIENCE, 0.0, draw / 10) for draw in range(11)}
    assert len(pauses) == 11 and max(pauses) == PATIENCE.pauses.longest_s


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 1)), min_size=80))
def test_an_agent_leaves_once_an_outage_has_lasted_and_never_before(calls: list[tuple[float, float]]) -> None:
    now_s, outage = 1000.0, None
    for duration_s, draw in calls:
        now_s += duration_s
        outage = after_failure(outage, now_s)
        pause = pause_s(outage, DOWN, PATIENCE, now_s, draw)
        assert (pause is None) == (now_s - outage.began_s >= PATIENCE.outage_s)
        if pause is None:
            return
        now_s += pause
    pytest.fail("80 pauses are longer than the patience")


def test_an_outage_counts_from_its_first_failure() -> None:
    first = after_failure(None, 5.0)
    second = after_failure(first, 9.0)
    assert (first, second) == (Outage(5.0, 1), Outage(5.0, 2))
    assert second.lasted_s(12.0) == 7.0


def test_a_refusal_is_final_and_told_as_it_is() -> None:
    refused = RequestRefusedError("wrong key")
    assert pause_s(Outage(0.0), refused, PATIENCE, 0.0, 0.5) is None
    assert farewell(Outage(0.0), refused, 0.0) == "wrong key"


def test_who_leaves_says_how_long_it_waited_and_for_what() -> None:
    assert farewell(Outage(10.0, 14), DOWN, 640.0) == "no answer for 10 min, 14 calls in a row; the last: 503"
    assert [lasting(seconds) for seconds in (0.4, 119.0, 120.0, 3600.0)] == ["0 s", "119 s", "2 min", "60 min"]
