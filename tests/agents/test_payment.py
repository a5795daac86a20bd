"""Through retries and fallbacks, what is held covers the one call that is out, and after any ending nothing is held."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.caps import BudgetCaps, Caps
from agents.chat import Answer, ChatRequest, Finish, Message, Role, Usage
from agents.conversation import ChatSettings, Conversation
from agents.errors import (
    BudgetSpentError,
    ModelError,
    ModelUnavailableError,
    RateLimitedError,
    RequestRefusedError,
)
from agents.ledger import Ledger
from agents.models.abandonable import AbandonableModel
from agents.models.fallback import FallbackModel
from agents.models.rate_limit import Limits, RateLimitedModel
from agents.models.retry import ATTEMPTS, RetryingModel
from agents.models.scripted import Line, ScriptedModel
from agents.payment import Payment
from agents.spending import Amount, Budget
from tests.agents.conversation_world import CountedBudget, unredacted

OPENING = (Message(Role.USER, "Write a kernel."),)
COST = Usage(10, 20, 0.5)


class BugError(Exception):
    """Of a model."""


@dataclass
class Provider:
    """Keeps books of its own, and looks what is held whenever it is called."""

    budget: CountedBudget
    happenings: list[tuple[str, float]]
    """What comes of each call, and which part of its bound it costs."""
    charged: int = 0
    calls: int = 0

    def model(self, name: str, tokens: int) -> ScriptedModel:
        def say(request: ChatRequest) -> Line:
            assert self.budget.in_flight == 1, "nothing is held for calls that are not out"
            assert self.budget.held_tokens == tokens
            self.calls += 1
            kind, share = self.happenings.pop(0) if self.happenings else ("answer", 1.0)
            if kind == "bug":
                self.charged += tokens
                raise BugError
            usage = Usage(int(tokens * share), 0, 0.0)
            self.charged += usage.tokens
            if kind in ("answer", "refusal"):
                finish = Finish.DONE if kind == "answer" else Finish.REFUSED
                return Answer(name, "text", (), finish, usage, 0.0)
            if kind == "rate limit":
                return RateLimitedError("slower", 0.0, usage)
            return {"outage": ModelUnavailableError, "rejected": RequestRefusedError}[kind](kind, usage)

        return ScriptedModel(say, name, Usage(tokens, 0, 0.0))


def conversation(model: RetryingModel | AbandonableModel, budget: Budget) -> Conversation:
    return Conversation(model, budget, ChatSettings(), OPENING, "a test", unredacted)


KINDS = ("answer", "refusal", "outage", "rate limit", "rejected", "bug")


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 1)), max_size=30),
    st.integers(0, 400),
    st.integers(1, 6),
)
@settings(deadline=None)
def test_what_is_held_covers_each_call_and_no_cap_is_passed(
    bounds: list[int], happenings: list[tuple[str, float]], cap: int, questions: int
) -> None:
    budget = CountedBudget(cap)
    provider = Provider(budget, list(happenings))
    models = [RateLimitedModel(provider.model(f"m{n}", tokens), Limits()) for n, tokens in enumerate(bounds)]
    model = RetryingModel(FallbackModel(models, lambda: 0.0), sleep=lambda seconds: None)
    for _ in range(questions):
        talk, before = conversation(model, budget), provider.charged
        with contextlib.suppress(ModelError, BudgetSpentError, BugError):
            talk.ask()
        assert budget.in_flight == 0
        assert budget.spent.tokens == provider.charged <= cap
        recorded = talk.usage.tokens
        assert recorded == provider.charged - before or "bug" in [kind for kind, _ in happenings]
    assert provider.calls <= questions * ATTEMPTS * len(bounds)


def test_one_attempt_is_set_aside_however_many_there_may_be() -> None:
    """Sixteen agents on models with fallbacks fit where sixteen calls do."""
    budget = CountedBudget(16 * 30)
    inside, release = threading.Semaphore(0), threading.Event()

    def say(request: ChatRequest) -> Line:
        inside.release()
        assert release.wait(30)
        return "answer"

    models = [ScriptedModel(say, name, COST) for name in ("a", "b", "c")]
    model = RetryingModel(FallbackModel(models))
    threads = [threading.Thread(target=conversation(model, budget).ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=30)
    assert budget.held_tokens == 16 * 30
    release.set()
    for thread in threads:
        thread.join(30)
    assert budget.in_flight == 0 and budget.spent.tokens == 16 * 30


def test_nothing_is_held_while_a_question_pauses() -> None:
    budget, held = CountedBudget(), []
    outages: Sequence[Line] = [ModelUnavailableError("down", COST), "answer"]
    model = RetryingModel(ScriptedModel(outages, usage=COST), sleep=lambda seconds: held.append(budget.held_tokens))
    talk = conversation(model, budget)
    talk.ask()
    assert held == [0] and talk.usage == COST + COST and budget.spent == Amount(1.0, 60)


def test_what_failed_attempts_cost_is_written_down_when_the_next_one_does_not_fit() -> None:
    budget = CountedBudget(59)
    model = RetryingModel(ScriptedModel([ModelUnavailableError("down", COST)], usage=COST), sleep=lambda seconds: None)
    talk = conversation(model, budget)
    with pytest.raises(BudgetSpentError):
        talk.ask()
    (step,) = talk.steps
    assert talk.usage == COST and step.model is not None and "cap of 59" in step.model.error
    assert budget.spent == Amount(0.5, 30) and budget.in_flight == 0


@dataclass
class Held:
    """A model that answers when it is let go."""

    inside: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, request: ChatRequest) -> Line:
        self.inside.set()
        assert self.let_go.wait(30)
        return "too late"


def abandoned(budget: Budget, meanwhile: Callable[[], None]) -> Conversation:
    """A question that is given up while its call is out; the call then ends all the same."""
    held = Held()
    model = AbandonableModel(ScriptedModel(held, usage=COST))
    talk = conversation(model, budget)

    def ask() -> None:
        with pytest.raises(ModelUnavailableError):
            talk.ask()

    thread = threading.Thread(target=ask)
    thread.start()
    assert held.inside.wait(30)
    model.abandon()
    thread.join(30)
    meanwhile()
    held.let_go.set()
    for one in threading.enumerate():
        if one.name.startswith("call "):
            one.join(30)
    return talk


def test_an_abandoned_call_counts_in_full_at_once_and_once() -> None:
    budget = CountedBudget()

    def look() -> None:
        assert budget.in_flight == 0 and budget.spent == Amount(0.5, 30)

    talk = abandoned(budget, look)
    look()
    assert talk.usage == COST


def test_the_ledger_may_be_closed_before_an_abandoned_call_ends(tmp_path: Path) -> None:
    caps = BudgetCaps(Caps(usd=1.0), Caps(usd=1.0))
    ledger = Ledger(tmp_path / "ledger.db")
    abandoned(ledger.budget("s", caps), ledger.close)
    with Ledger(tmp_path / "ledger.db") as again:
        (account,) = again.searches()
        assert account.spent.usd == 0.5 and account.calls_in_flight == 0


def test_nothing_is_paid_for_after_the_end() -> None:
    budget = CountedBudget()
    payment = Payment(budget, "a test")
    assert payment.close() == payment.close() == Usage()
    with pytest.raises(ModelUnavailableError):
        payment.pay(COST, lambda: pytest.fail("the call was made"))
    assert budget.purposes == []
