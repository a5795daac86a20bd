"""A search whose provider does not answer, over real sockets: it waits, goes on, or says why its agents left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.backoff import Backoff
from agents.errors import BudgetSpentError, PatternError
from agents.models.fallback import FallbackModel
from agents.models.provider_client import ProviderClient
from agents.models.provider_model import ProviderModel
from agents.models.retry import RetryingModel
from agents.outage import Patience
from agents.provider.wire import Price, Route
from benchmarks.openai_server import Behaviour, OpenAIServer
from tasks import recruitment
from tasks.journal import Journal
from tasks.proposal_record import ProposalRecord
from tasks.recruitment import Recruits, Staff, session_for
from tasks.search_session import SearchSession
from tests.agents.conversation_world import CountedBudget, as_answer, numbered, unredacted
from tests.agents.conversation_world import ListLog as Episodes
from tests.agents.models.conftest import agents_python, client, keys  # noqa: F401
from tests.tasks.test_recruitment import brief, ratio
from tests.tasks.world import Clock, FormulaBench, ListLog

AGENTS = 3
LONG_S = 10_000.0
"""No test is as long."""
QUICK = Patience(Backoff(0.01, 0.02), LONG_S)
OUTAGES = (
    Behaviour(status=503),
    Behaviour(status=429, retry_after_s=0.01),
    Behaviour("half an answer", breaks_after=2),
)


class Outage:
    """A provider that does not answer its first requests."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self._numbers = itertools.count()

    def __call__(self, request: Mapping[str, Any]) -> Behaviour:
        number = next(self._numbers)
        if number < self.left:
            return OUTAGES[number % len(OUTAGES)]
        return Behaviour(as_answer(numbered(number)))


@pytest.fixture
def search(
    tmp_path: Path,
    client: ProviderClient,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[SearchSession, Episodes, CountedBudget]]:
    """Agents that ask one model, and nobody else."""

    def nobody(*_: object) -> list[object]:
        raise PatternError("no pattern writes rms_norm")

    def search(
        server: OpenAIServer, patience: Patience, **options: Any
    ) -> tuple[SearchSession, Episodes, CountedBudget]:
        one = ProviderModel(client, Route("openai/mock", server.url, price=Price(1e-6, 1e-6)))
        model = RetryingModel(FallbackModel([one]), sleep=lambda seconds: None)
        record, episodes, budget = ProposalRecord(tmp_path / "proposals.jsonl"), Episodes(), CountedBudget()
        recruits = Recruits((model,), AGENTS, budget, episodes, unredacted, record, patience)
        bench = FormulaBench(ratio, Clock())
        journal = Journal(tmp_path / "verdicts.jsonl")
        session = session_for(bench, brief(), journal, ListLog(), Staff(recruits=recruits), seed=3, **options)
        return session, episodes, budget

    monkeypatch.setattr(recruitment, "pattern_agents", nobody)
    return search


def test_after_an_outage_all_agents_go_on_and_propose(search) -> None:
    told: list[tuple[int, str]] = []
    with OpenAIServer(Outage(40)) as server:
        session, _, budget = search(server, QUICK, tell_waiting=lambda count, why: told.append((count, why)))
        run, agents = session.run(LONG_S), set()
        for trial in run:
            agents.add(trial.candidate.origin.agent)
            if len(agents) == AGENTS:
                break
        run.close()
    assert len(agents) == AGENTS and not session.course.departures
    assert max(count for count, _ in told) >= 1 and any("openai/mock" in why for _, why in told)
    assert session.course.waiting == 0 and budget.in_flight == 0


def test_an_outage_without_end_ends_the_agents_with_the_reason(search) -> None:
    with OpenAIServer(Outage(1 << 30)) as server:
        session, episodes, budget = search(server, replace(QUICK, outage_s=0.3))
        assert list(session.run(LONG_S)) == []
    assert session.course.ended == "no agent has anything left to propose"
    assert len({gone.agent for gone in session.course.departures}) == AGENTS
    for gone in session.course.departures:
        assert gone.reason.startswith("no answer for ") and "openai/mock" in gone.reason and not gone.trace
    assert {episode.outcome.value for episode in episodes.episodes} == {"failed"} and budget.in_flight == 0


def test_a_wrong_key_ends_the_agents_at_once(search) -> None:
    with OpenAIServer(Behaviour(status=401, message="wrong key")) as server:
        session, episodes, _ = search(server, Patience(Backoff(LONG_S, LONG_S), LONG_S))
        assert list(session.run(LONG_S)) == []
    assert len(session.course.departures) == len(server.requests) == len(episodes.episodes) == AGENTS
    assert all("wrong key" in gone.reason for gone in session.course.departures)


def test_a_budget_that_ends_in_an_outage_ends_the_search_and_tells_who_waited(search) -> None:
    waiting = 0

    def tell_waiting(count: int, why: str) -> None:
        nonlocal waiting
        waiting = count

    def tick() -> None:
        if waiting == AGENTS:
            raise BudgetSpentError("the search's time is spent")

    with OpenAIServer(Outage(1 << 30)) as server:
        session, _, budget = search(
            server, Patience(Backoff(LONG_S, LONG_S), LONG_S), tick=tick, tell_waiting=tell_waiting
        )
        assert list(session.run(LONG_S)) == []
    assert session.course.spent and session.course.ended == "the search's time is spent"
    assert session.course.waiting == AGENTS and session.course.departures == []
    assert budget.in_flight == 0
