from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.backoff import LONGEST_ASKED_S
from agents.chat import ChatRequest, Usage
from agents.errors import BudgetSpentError, RateLimitedError
from agents.models.rate_limit import WINDOW_S, Limits, RateLimitedModel, Window
from agents.models.scripted import Line, ScriptedModel
from tests.agents.models.model_contract import REQUEST, MakeModel, ModelContract, Wallet

COST = Usage(10, 20, 0.5)
CALLS = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 400), st.integers(0, 400)), min_size=1, max_size=40)
"""Seconds since the last call came, tokens reserved, tokens used."""


class TestRateLimitedModel(ModelContract):
    @pytest.fixture
    def make(self) -> MakeModel:
        return lambda lines: RateLimitedModel(ScriptedModel(lines, usage=COST), Limits(10_000, 10_000_000, 8))


@given(CALLS, st.integers(1, 10), st.integers(100, 1000))
def test_no_minute_holds_more_than_the_limits(
    calls: list[tuple[float, int, int]], requests_per_min: int, tokens_per_min: int
) -> None:
    """A call that is larger than the limit by itself may pass alone."""
    window = Window(Limits(requests_per_min, tokens_per_min))
    now_s = 0.0
    passed: list[tuple[float, int]] = []
    for gap_s, reserved, used in calls:
        now_s += gap_s
        wait_s = window.wait_s(reserved, now_s)
        assert wait_s is not None and 0 <= wait_s <= WINDOW_S + 1e-6
        now_s += wait_s
        window.leave(window.enter(reserved, now_s), min(used, reserved))
        recent = [tokens for at_s, tokens in passed if at_s > now_s - WINDOW_S + 1e-6]
        assert len(recent) < requests_per_min
        assert sum(recent) + min(reserved, tokens_per_min) <= tokens_per_min
        passed.append((now_s, min(used, reserved)))


def test_a_full_minute_opens_when_its_first_call_leaves_it() -> None:
    window = Window(Limits(requests_per_min=2))
    for at_s in (0.0, 10.0):
        assert window.wait_s(1, at_s) == 0
        window.leave(window.enter(1, at_s), 1)
    assert window.wait_s(1, 15.0) == 45.0
    assert window.wait_s(1, 60.0) == 0


def test_what_an_answer_did_not_use_is_free_again() -> None:
    window = Window(Limits(tokens_per_min=100))
    running = window.enter(90, 0.0)
    assert window.wait_s(50, 1.0) == 59.0
    window.leave(running, 20)
    assert window.wait_s(50, 1.0) == 0


def test_threads_pass_in_the_order_in_which_they_came() -> None:
    gate, order = threading.Event(), []

    def say(request: ChatRequest) -> Line:
        gate.wait(20)
        order.append(request.max_output_tokens)
        return ""

    model = RateLimitedModel(ScriptedModel(say), Limits(concurrency=1))
    with ThreadPoolExecutor(12) as pool:
        waiting = []
        for number in range(12):
            waiting.append(pool.submit(model.complete, replace(REQUEST, max_output_tokens=number)))
            while len(model._line) + 1 <= number or not model._window._running:
                threading.Event().wait(0.001)
        gate.set()
        for one in waiting:
            one.result()
    assert order == list(range(12))


def test_never_more_at_once_than_allowed() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def say(request: ChatRequest) -> Line:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1
        return ""

    model = RateLimitedModel(ScriptedModel(say), Limits(concurrency=3))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(model.complete, [REQUEST] * 48))
    assert most == 3


def test_a_providers_wish_holds_for_all_and_is_told_at_once_where_there_is_no_time() -> None:
    model = RateLimitedModel(ScriptedModel([RateLimitedError("slower", 1000.0), "answer"]), Limits())
    for _ in range(2):
        with pytest.raises(RateLimitedError) as caught:
            model.complete(REQUEST)
    assert caught.value.usage is None
    assert 50 < (caught.value.retry_after_s or 0) <= LONGEST_ASKED_S
    assert "the provider asked to wait 1000 s; it is asked again in" in str(caught.value)


def test_an_absurd_wish_does_not_end_a_models_search() -> None:
    time_s = [1.0]
    model = RateLimitedModel(ScriptedModel([RateLimitedError("slower", 1e9), "answer"]), Limits(), lambda: time_s[0])
    with pytest.raises(RateLimitedError):
        model.complete(REQUEST)
    time_s[0] += LONGEST_ASKED_S
    assert model.complete(REQUEST).text == "answer"


def test_where_the_users_own_limits_leave_no_room_they_are_named() -> None:
    model = RateLimitedModel(ScriptedModel(["first", "second"]), Limits(requests_per_min=1))
    model.complete(REQUEST)
    with pytest.raises(RateLimitedError, match="the limits set for it leave no room in time"):
        model.complete(replace(REQUEST, timeout_s=5.0))


def test_waiting_uses_up_the_requests_time() -> None:
    given_s: list[float] = []
    time_s = [0.0]

    def say(request: ChatRequest) -> Line:
        given_s.append(request.timeout_s)
        return ""

    def clock_s() -> float:
        time_s[0] += 1.0
        return time_s[0]

    RateLimitedModel(ScriptedModel(say), Limits(), clock_s).complete(REQUEST)
    assert 0 < given_s[0] < REQUEST.timeout_s


def test_who_gives_up_leaves_the_line() -> None:
    gate = threading.Event()
    model = RateLimitedModel(ScriptedModel(lambda request: str(gate.wait(20))), Limits(concurrency=1))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(model.complete, REQUEST)
        while not model._window._running:
            threading.Event().wait(0.001)
        with pytest.raises(RateLimitedError):
            model.complete(replace(REQUEST, timeout_s=0.01))
        gate.set()
        first.result()
    assert model.complete(REQUEST).text == "True"


def test_a_call_that_nobody_pays_for_is_no_call() -> None:
    model = RateLimitedModel(ScriptedModel(["answer"], usage=COST), Limits(1, COST.tokens, 1))
    for _ in range(3):
        with pytest.raises(BudgetSpentError):
            model.complete(replace(REQUEST, payer=Wallet(refuses=True)))
    assert model.complete(REQUEST).text == "answer"
    with pytest.raises(RateLimitedError):
        model.complete(REQUEST)
