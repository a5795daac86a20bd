"""Windows follow one another and are as long as the monotonic clock says, whatever the wall clock does."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gristmill.window_clock import TOLERANCE_NS, Span, WindowClock

S = 10**9
DAY_NS = 86_400 * S


class Clocks:
    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * S
        self.steady_ns = 5 * S
        self.clock = WindowClock(lambda: self.wall_ns, lambda: self.steady_ns)

    def after(self, seconds: int, jump_ns: int = 0) -> Span:
        self.wall_ns += seconds * S + jump_ns
        self.steady_ns += seconds * S
        return self.clock.next()


jumps = st.one_of(st.just(0), st.integers(-400 * DAY_NS, 400 * DAY_NS))


@given(st.lists(st.tuples(st.integers(1, 600), jumps), min_size=1, max_size=30))
def test_lengths_are_those_of_the_monotonic_clock(steps: list[tuple[int, int]]) -> None:
    clocks = Clocks()
    spans: list[tuple[int, Span]] = []
    for seconds, jump_ns in steps:
        spans.append((clocks.clock.stamps, clocks.after(seconds, jump_ns)))
        assert spans[-1][1].end_ns - spans[-1][1].start_ns == seconds * S
    for (stamps_then, earlier), (stamps, later) in itertools.pairwise(spans):
        assert stamps > stamps_then or later.start_ns == earlier.end_ns


def test_a_jump_that_lasts_is_believed_from_the_second_window_on() -> None:
    clocks = Clocks()
    for jump_ns in (DAY_NS, -3 * DAY_NS):
        first = clocks.after(10, jump_ns)
        second = clocks.after(10)
        third = clocks.after(10)
        assert first.clock_off_ns == second.clock_off_ns == jump_ns
        assert second.start_ns == first.end_ns
        assert (third.clock_off_ns, third.end_ns) == (0, clocks.wall_ns)
    assert clocks.clock.stamps == 3


def test_a_jump_that_is_taken_back_moves_nothing() -> None:
    clocks = Clocks()
    clocks.after(10, 400 * DAY_NS)
    span = clocks.after(10, -400 * DAY_NS)
    assert (span.clock_off_ns, span.end_ns) == (0, clocks.wall_ns)
    assert clocks.clock.stamps == 1


def test_a_clock_that_is_put_right_in_small_steps_is_left_alone() -> None:
    clocks = Clocks()
    spans = [clocks.after(10, jump_ns) for jump_ns in (S, -2 * S, S)]
    assert [span.clock_off_ns for span in spans] == [S, -S, 0]
    assert TOLERANCE_NS > 2 * S
    assert clocks.clock.stamps == 1


def test_no_window_is_empty() -> None:
    clocks = Clocks()
    spans = [clocks.after(0) for _ in range(3)]
    assert [span.end_ns - span.start_ns for span in spans] == [1, 1, 1]
