from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.backoff import LONGEST_ASKED_S
from agents.chat import Usage
from agents.errors import ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.models.retry import ATTEMPTS, RetryingModel
from agents.models.scripted import Line, ScriptedModel
from tests.agents.models.model_contract import REQUEST, MakeModel, ModelContract

COST = Usage(10, 20, 0.5)


class Time:
    """A clock that only moves while somebody sleeps, and notes for how long."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def clock_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


def retrying(lines: list[Line], time: Time, draw: float = 0.5) -> RetryingModel:
    return RetryingModel(ScriptedModel(lines, usage=COST), ATTEMPTS, time.clock_s, time.sleep, lambda: draw)


class TestRetryingModel(ModelContract):
    @pytest.fixture
    def make(self) -> MakeModel:
        def make(lines):
            kept = [[line] * (1 if isinstance(line, str | RequestRefusedError) else ATTEMPTS) for line in lines]
            return RetryingModel(ScriptedModel(itertools.chain(*kept), usage=COST), sleep=lambda seconds: None)

        return make


@pytest.mark.parametrize("error", [ModelUnavailableError("gone", COST), RateLimitedError("slower", usage=COST)])
def test_what_failed_attempts_cost_is_in_the_answer(error: ModelError) -> None:
    model = retrying([error, error, "answer"], Time())
    answer = model.complete(REQUEST)
    assert (answer.text, answer.usage) == ("answer", COST + COST + COST)
    assert model.most(REQUEST) == COST, "each call is paid for by itself"


def test_the_last_error_tells_what_all_attempts_cost_and_is_not_itself_changed() -> None:
    error = ModelUnavailableError("gone", COST)
    model = retrying([error] * 6, Time())
    for _ in range(2):
        with pytest.raises(ModelUnavailableError) as caught:
            model.complete(REQUEST)
        assert caught.value.usage == COST + COST + COST
    assert error.usage == COST


def test_a_refusal_is_final() -> None:
    time = Time()
    with pytest.raises(RequestRefusedError):
        retrying([RequestRefusedError("no key"), "answer"], time).complete(REQUEST)
    assert not time.pauses_s


def test_a_provider_gets_the_pause_that_it_asked_for() -> None:
    time = Time()
    retrying([RateLimitedError("slower", 12.5), "answer"], time).complete(REQUEST)
    assert time.pauses_s == [12.5]


def test_an_absurd_wish_gets_a_minute() -> None:
    time, request = Time(), replace(REQUEST, timeout_s=600.0)
    retrying([RateLimitedError("slower", 1e9), "answer"], time).complete(request)
    assert time.pauses_s == [LONGEST_ASKED_S]


def test_no_pause_leads_past_the_requests_time() -> None:
    time = Time()
    with pytest.raises(RateLimitedError):
        retrying([RateLimitedError("slower", 60.0), "answer"], time).complete(REQUEST)
    assert not time.pauses_s


@given(st.floats(0, 1))
def test_pauses_are_random_and_grow(draw: float) -> None:
    time = Time()
    retrying([ModelUnavailableError("a"), ModelUnavailableError("b"), "answer"], time, draw).complete(REQUEST)
    assert time.pauses_s == pytest.approx([1.0 * draw, 2.0 * draw])
