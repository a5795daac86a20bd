"""A session without a verdict says in one line what stopped it."""

from __future__ import annotations

import pytest

from tasks.agent_thread import Departure
from tasks.course import Course

FULL = Departure("llm:0", "build cache: No space left on device; free space or choose another")


@pytest.mark.parametrize(
    ("course", "said"),
    [
        (Course(), "its 6 s were over before an agent had proposed a candidate"),
        (Course(unjudged=3), "its 6 s were over before the first of 3 proposals had a verdict"),
        (Course(waiting=2), "2 agents were waiting for their provider"),
        (Course(ended="no agent has anything left to propose"), "no agent has anything left to propose"),
        (Course(ended="no agent has anything left to propose", departures=[FULL]), "No space left on device"),
    ],
)
def test_what_stopped_a_session_that_judged_nothing(course: Course, said: str) -> None:
    why = course.why_nothing(6.0)
    assert said in why and "\n" not in why
