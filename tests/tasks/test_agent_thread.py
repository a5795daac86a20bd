"""An agent sits an outage out, and hears the end of its session while it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from agents.backoff import Backoff
from agents.brief import Brief
from agents.errors import BudgetSpentError, ModelUnavailableError, RateLimitedError, RequestRefusedError
from agents.outage import Patience
from gristmill.hardware import local_cpu
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict
from tasks.agent_thread import FRUITLESS_ROUNDS, AgentThread, Departure
from tests.tasks.world import candidate, rms_norm

Step = Exception | list[Candidate]
DOWN = ModelUnavailableError("openai/a: 503")


class PassingTime(threading.Event):
    """A session's end whose waits take no time, and are noted; it comes by itself after so many of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.now_s = 0.0
        self.pauses_s: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses_s.append(timeout)
        self.now_s += timeout
        if len(self.pauses_s) >= self._most:
            self.set()
        return self.is_set()


@dataclass
class OneDesk:
    """A session that judges at once."""

    over: threading.Event
    handed_in: list[Candidate] = field(default_factory=list)
    gone: list[Departure | None] = field(default_factory=list)

    def brief(self, agent: str) -> Brief:
        return Brief("rms_norm", "float32", (rms_norm(1),), local_cpu(), 2, 20.0, 100.0)

    def hand_in(self, agent: str, candidate: Candidate) -> Future[Verdict]:
        self.handed_in.append(candidate)
        answer: Future[Verdict] = Future()
        answer.set_result(Verdict(Status.SLOWER, "measured", candidate.digest, candidate.operator))
        return answer

    def left(self, gone: Departure | None) -> None:
        self.gone.append(gone)


@dataclass
class ScriptedAgent:
    """Does one step per proposal, and the last one for ever."""

    steps: list[Step]
    name: str = "llm:0"
    watch: Callable[[], None] = lambda: None

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        self.watch()
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step

    def learn(self, candidate: Candidate, verdict: Verdict) -> None: ...


def ended(agent: ScriptedAgent, over: PassingTime, patience: Patience = Patience()) -> tuple[AgentThread, OneDesk]:  # noqa: B008
    desk = OneDesk(over)
    thread = AgentThread(agent, desk, patience, lambda: over.now_s, lambda: 1.0)
    thread.start()
    assert thread.join(30)
    return thread, desk


def test_an_agent_goes_on_after_an_outage_and_the_next_one_is_another() -> None:
    steps: list[Step] = [*[DOWN] * 9, [candidate(1)], DOWN, RateLimitedError("slower", 30.0), [candidate(2)], []]
    over = PassingTime(1000)
    _, desk = ended(ScriptedAgent(steps), over)
    assert desk.handed_in == [candidate(1), candidate(2)]
    assert over.pauses_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 1.0, 30.0]
    (gone,) = desk.gone
    assert gone is not None and f"{FRUITLESS_ROUNDS} times" in gone.reason, "an outage is no lack of ideas"


def test_an_agent_leaves_after_minutes_without_an_answer_and_says_so() -> None:
    over = PassingTime(1000)
    thread, desk = ended(ScriptedAgent([DOWN]), over)
    (gone,) = desk.gone
    assert gone is not None and not gone.trace
    assert gone.reason.startswith("no answer for 10 min, ") and gone.reason.endswith(str(DOWN))
    assert Patience().outage_s <= sum(over.pauses_s) < Patience().outage_s + Patience().pauses.longest_s
    assert not thread.waits_because, "it has left, and waits no more"


class Repeating(ScriptedAgent):
    why_nothing = "what it proposed was known already (4x)"


def test_who_only_repeats_what_is_known_leaves_with_that_reason() -> None:
    _, desk = ended(Repeating([[]]), PassingTime(10))
    reason = "nothing to propose 4 times in a row: what it proposed was known already (4x)"
    assert desk.gone == [Departure("llm:0", reason)]


def test_an_agent_leaves_at_once_when_it_is_refused() -> None:
    over = PassingTime(1000)
    _, desk = ended(ScriptedAgent([DOWN, RequestRefusedError("openai/a: wrong key")]), over)
    assert desk.gone == [Departure("llm:0", "openai/a: wrong key")] and over.pauses_s == [1.0]


def test_the_end_of_the_session_ends_the_wait_and_it_is_known_who_waited() -> None:
    over = PassingTime(3)
    thread, desk = ended(ScriptedAgent([DOWN]), over)
    assert desk.gone == [None] and thread.waits_because == str(DOWN)


def test_a_budget_that_is_only_set_aside_does_not_end_an_outage() -> None:
    waits: list[str] = []
    steps: list[Step] = [DOWN, BudgetSpentError("in flight", may_fit_later=True), DOWN, [candidate(1)], []]
    agent = ScriptedAgent(steps)
    over = PassingTime(100)
    desk = OneDesk(over)
    thread = AgentThread(agent, desk, clock_s=lambda: over.now_s, draw=lambda: 1.0)
    agent.watch = lambda: waits.append(thread.waits_because)
    thread.start()
    assert thread.join(30)
    assert waits[:5] == ["", str(DOWN), str(DOWN), str(DOWN), ""]
    assert over.pauses_s[:3] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("pause_s", [3600.0])
def test_a_real_wait_is_cut_short(pause_s: float) -> None:
    over, asked = threading.Event(), threading.Event()
    desk = OneDesk(over)
    agent = ScriptedAgent([DOWN], watch=asked.set)
    thread = AgentThread(agent, desk, Patience(Backoff(pause_s, pause_s), 2 * pause_s))
    thread.start()
    assert asked.wait(30)
    assert not thread.join(0.05)
    over.set()
    assert thread.join(30) and desk.gone == [None]
