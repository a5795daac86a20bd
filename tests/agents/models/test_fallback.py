from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from agents.backoff import LONGEST_ASKED_S
from agents.chat import Answer, ChatModel, Finish, Usage
from agents.errors import BudgetSpentError, ModelError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.models.fallback import COOLDOWN, FallbackModel
from agents.models.scripted import Line, ScriptedModel
from tests.agents.models.model_contract import REQUEST, MakeModel, ModelContract

COST = Usage(10, 20, 0.5)
FAILURES = [ModelUnavailableError("gone", COST), RateLimitedError("slower", 1.0, COST), RequestRefusedError("no", COST)]


class TestFallbackModel(ModelContract):
    @pytest.fixture
    def make(self) -> MakeModel:
        return lambda lines: FallbackModel([ScriptedModel(lines, usage=COST)])


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Switched(ScriptedModel):
    """Answers with its name, or fails, as its `line` says now."""

    def __init__(self, name: str) -> None:
        self.line: Line = name
        super().__init__(lambda request: self.line, name, COST)


def fallback(clock: Clock, *models: ChatModel) -> FallbackModel:
    return FallbackModel(models, clock)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_the_next_one_answers_and_all_is_paid(failure: ModelError) -> None:
    first, second = Switched("first"), Switched("second")
    model = fallback(Clock(), first, second)
    first.line = failure
    answer = model.complete(REQUEST)
    assert (answer.text, answer.usage) == ("second", COST + COST)
    assert model.most(REQUEST) == COST, "each call is paid for by itself"
    assert model.name == "first"


def test_each_cools_down_by_itself_and_longer_each_time() -> None:
    clock, first, second = Clock(), Switched("first"), Switched("second")
    model = fallback(clock, first, second)
    first.line = ModelUnavailableError("gone")
    waits_s = []
    for _ in range(8):
        failed_at_s = clock.now_s
        model.complete(REQUEST)
        while model._order()[0] != 0:
            clock.now_s += 1.0
        waits_s.append(clock.now_s - failed_at_s)
    assert waits_s == [min(COOLDOWN.first_s * 2**index, COOLDOWN.longest_s) for index in range(8)]


def test_while_the_first_cools_down_it_is_not_asked_and_afterwards_it_is() -> None:
    clock, first, second = Clock(), Switched("first"), Switched("second")
    model = fallback(clock, first, second)
    first.line = RateLimitedError("slower", 50.0)
    model.complete(REQUEST)
    first.line = "first"
    clock.now_s = 49.0
    assert model.complete(REQUEST).text == "second"
    clock.now_s = 50.0
    assert model.complete(REQUEST).text == "first"


def test_an_absurd_wish_is_respected_for_a_minute_only() -> None:
    clock, first, second = Clock(), Switched("first"), Switched("second")
    model = fallback(clock, first, second)
    first.line = RateLimitedError("slower", 1e9)
    model.complete(REQUEST)
    first.line = "first"
    clock.now_s = LONGEST_ASKED_S
    assert model.complete(REQUEST).text == "first"


def test_a_success_ends_the_growth_of_cooldowns() -> None:
    clock, first, second = Clock(), Switched("first"), Switched("second")
    model = fallback(clock, first, second)
    for _ in range(4):
        first.line = ModelUnavailableError("gone")
        model.complete(REQUEST)
        clock.now_s += COOLDOWN.first_s
        first.line = "first"
        assert model.complete(REQUEST).text == "first"


def test_where_all_cool_down_all_are_asked_the_one_first_that_is_free_first() -> None:
    clock, first, second = Clock(), Switched("first"), Switched("second")
    model = fallback(clock, first, second)
    first.line, second.line = RateLimitedError("slower", 50.0, COST), RateLimitedError("slower", 20.0, COST)
    with pytest.raises(RateLimitedError) as caught:
        model.complete(REQUEST)
    assert caught.value.usage == COST + COST
    first.line, second.line = "first", "second"
    assert model.complete(REQUEST).text == "second"


def test_a_refused_answer_goes_to_the_next_one_without_a_cooldown() -> None:
    first, second = Switched("first"), Switched("second")
    model = fallback(Clock(), first, second)
    refusal = Answer("first", "I can't", (), Finish.REFUSED, COST, 0.0)
    first.line = refusal
    assert model.complete(REQUEST).text == "second"
    first.line = "first"
    assert model.complete(REQUEST).text == "first"
    first.line, second.line = refusal, ModelUnavailableError("gone", COST)
    answer = model.complete(REQUEST)
    assert (answer.finish, answer.usage) == (Finish.REFUSED, COST + COST)


def test_an_error_that_may_pass_is_told_rather_than_one_that_will_not() -> None:
    first, second, third = Switched("first"), Switched("second"), Switched("third")
    model = fallback(Clock(), first, second, third)
    first.line, second.line = ModelUnavailableError("down", COST), RateLimitedError("slower", 1.0, COST)
    third.line = RequestRefusedError("wrong key", COST)
    with pytest.raises(RateLimitedError, match="slower") as caught:
        model.complete(REQUEST)
    assert caught.value.usage == COST + COST + COST
    first.line = second.line = third.line
    with pytest.raises(RequestRefusedError, match="wrong key"):
        model.complete(REQUEST)


@dataclass
class Cap:
    """A payer with room for calls up to so many dollars."""

    usd: float
    later: float = 0.0
    """Up to which it may have room later."""

    def pay(self, most: Usage, call: Callable[[], Answer]) -> Answer:
        if most.usd > self.usd:
            raise BudgetSpentError(f"{most.usd} USD", may_fit_later=most.usd <= self.later)
        return call()


def priced(name: str, usd: float) -> Switched:
    model = Switched(name)
    model._usage = Usage(10, 20, usd)
    return model


def test_where_a_call_does_not_fit_a_cheaper_model_is_asked() -> None:
    dear, cheap = priced("dear", 2.0), priced("cheap", 0.1)
    model = fallback(Clock(), dear, cheap)
    assert model.most(REQUEST).usd == 2.0
    assert model.complete(replace(REQUEST, payer=Cap(1.0))).text == "cheap"
    assert model.complete(replace(REQUEST, payer=Cap(3.0))).text == "dear", "the budget is no failure of the model"


def test_where_none_fits_it_is_told_whether_waiting_may_help() -> None:
    model = fallback(Clock(), priced("a", 2.0), priced("b", 1.5), priced("c", 1.8))
    with pytest.raises(BudgetSpentError, match=r"1\.5") as caught:
        model.complete(replace(REQUEST, payer=Cap(1.0, 1.6)))
    assert caught.value.may_fit_later


@pytest.mark.parametrize(("failure", "told"), [(FAILURES[0], ModelUnavailableError), (FAILURES[2], BudgetSpentError)])
def test_an_outage_is_told_rather_than_a_cap_and_a_cap_rather_than_a_refusal(
    failure: ModelError, told: type[Exception]
) -> None:
    cheap = Switched("cheap")
    cheap.line = failure
    with pytest.raises(told):
        fallback(Clock(), cheap, priced("dear", 2.0)).complete(replace(REQUEST, payer=Cap(1.0)))
