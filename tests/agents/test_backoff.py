"""The one schedule, over any failures; and that retries, fallbacks and outages each keep to theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.backoff import LONGEST_ASKED_S, Backoff, asked_s
from agents.errors import ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.models.fallback import COOLDOWN
from agents.models.retry import PAUSES
from agents.outage import Patience

DOWN = ModelUnavailableError("503")
BACKOFFS = st.builds(
    lambda first_s, factor, drawn: Backoff(first_s, first_s * factor, drawn),
    st.floats(1e-3, 100),
    st.floats(1, 1000),
    st.floats(0, 1),
)
DRAWS = st.floats(0, 1)
FAILURES = st.integers(1, 100_000)
ERRORS = st.one_of(
    st.just(DOWN),
    st.just(RequestRefusedError("no")),
    st.one_of(st.none(), st.floats(0, 1e12)).map(lambda seconds: RateLimitedError("slower", seconds)),
)


@given(BACKOFFS, FAILURES, DRAWS)
def test_a_pause_is_a_drawn_part_of_a_time_that_doubles_up_to_the_longest(
    backoff: Backoff, failures: int, draw: float
) -> None:
    whole_s = backoff.first_s * 2 ** (failures - 1) if failures < 64 else backoff.longest_s
    whole_s = min(whole_s, backoff.longest_s)
    pause_s = backoff.pause_s(failures, DOWN, draw)
    assert whole_s * (1 - backoff.drawn) <= pause_s * (1 + 1e-9) and pause_s <= whole_s
    assert backoff.pause_s(failures, DOWN, 1.0) == whole_s


@given(BACKOFFS, FAILURES, FAILURES, ERRORS, DRAWS)
def test_more_failures_never_make_a_pause_shorter(
    backoff: Backoff, one: int, other: int, error: ModelError, draw: float
) -> None:
    fewer, more = sorted((one, other))
    assert backoff.pause_s(fewer, error, draw) <= backoff.pause_s(more, error, draw)


@given(BACKOFFS, FAILURES, ERRORS, DRAWS)
def test_a_provider_gets_what_it_asked_for_within_the_longest(
    backoff: Backoff, failures: int, error: ModelError, draw: float
) -> None:
    own_s = backoff.pause_s(failures, DOWN, draw)
    assert backoff.pause_s(failures, error, draw) == min(max(own_s, asked_s(error)), backoff.longest_s)
    assert 0 <= asked_s(error) <= LONGEST_ASKED_S


@pytest.mark.parametrize("backoff", [PAUSES, COOLDOWN, Patience().pauses], ids=["retry", "fallback", "outage"])
def test_what_a_provider_may_ask_for_at_most_fits_every_schedule(backoff: Backoff) -> None:
    assert backoff.pause_s(1, RateLimitedError("slower", 1e9), 0.0) == LONGEST_ASKED_S
