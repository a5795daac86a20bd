"""An agent that takes its time, at work in a thread of its own: brief, proposal, verdict, and again."""

from __future__ import annotations

import queue
import random
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from agents import outage
from agents.agent import Agent, Explaining
from agents.brief import Brief
from agents.errors import BudgetSpentError, ModelError
from agents.outage import Outage, Patience
from gristmill.errors import GristmillError
from kernels.candidate import Candidate
from kernels.verdict import Verdict

FRUITLESS_ROUNDS = 4
"""In a row without a proposal, before an agent counts as having nothing left to offer."""
RETRY_S = 1.0
"""Before a budget is asked again whose calls in flight may turn out cheaper."""
PATIENCE = Patience()


@dataclass(frozen=True)
class Departure:
    """An agent that left before the search ended."""

    agent: str
    reason: str
    trace: str = ""
    """Of a bug; empty where all went as it may."""


def departure(agent: str, error: Exception) -> Departure:
    """Why an agent left that raised an error. A bug is told whole: somebody has to find it."""
    if isinstance(error, GristmillError):
        return Departure(agent, str(error))
    return Departure(agent, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


class Desk(Protocol):
    """The session, as its agents' threads see it."""

    @property
    def over(self) -> threading.Event:
        """Set when the session ends."""
        ...

    def brief(self, agent: str) -> Brief:
        """What the agent is to do next."""
        ...

    def hand_in(self, agent: str, candidate: Candidate) -> Future[Verdict]:
        """Takes a proposal in. The verdict comes later, or BudgetSpentError when the session ends before."""
        ...

    def left(self, gone: Departure | None) -> None:
        """The thread ends, early or because the session does."""
        ...


class AgentThread:
    """One agent. It proposes again only once its last proposal was judged: what it learns from it is worth the wait,
    and an answer that nobody would have the time to judge costs as much as any other. While its model gives no answer
    it waits and asks again, for as long as its patience lasts or until the session ends.
    """

    def __init__(
        self,
        agent: Agent,
        desk: Desk,
        patience: Patience = PATIENCE,
        clock_s: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = agent.name
        self.waits_because = ""
        """What its model said last, from a failure to the next answer; stays so if the session ends meanwhile."""
        self._agent = agent
        self._desk = desk
        self._patience = patience
        self._clock_s = clock_s
        self._draw = draw
        self._outage: Outage | None = None
        self._news: queue.SimpleQueue[tuple[Candidate, Verdict]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"agent {agent.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, candidate: Candidate, verdict: Verdict) -> None:
        """A verdict, of whoever's candidate; the agent hears of it before its next brief."""
        self._news.put((candidate, verdict))

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended, or was never started."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        gone: Departure | None = None
        try:
            gone = self._work()
        except Exception as error:
            gone = departure(self.name, error)
        finally:
            self._desk.left(gone)

    def _work(self) -> Departure | None:
        fruitless = 0
        while not self._desk.over.is_set():
            self._hear_news()
            try:
                proposals = self._agent.propose(self._desk.brief(self.name), 1)
            except BudgetSpentError as error:
                if self._desk.over.is_set():
                    return None
                if not error.may_fit_later:
                    raise
                self._desk.over.wait(RETRY_S)
                continue
            except ModelError as error:
                gone = self._sit_out(error)
                if gone is not None:
                    return gone
                continue
            self._outage, self.waits_because = None, ""
            fruitless = 0 if proposals else fruitless + 1
            if fruitless >= FRUITLESS_ROUNDS:
                return Departure(self.name, f"nothing to propose {fruitless} times in a row{self._why_nothing()}")
            for answer in [self._desk.hand_in(self.name, candidate) for candidate in proposals]:
                answer.exception()  # waits; a verdict comes in with the other news
        return None

    def _why_nothing(self) -> str:
        why = self._agent.why_nothing if isinstance(self._agent, Explaining) else ""
        return f": {why}" if why else ""

    def _sit_out(self, error: ModelError) -> Departure | None:
        """Pauses after a call without an answer. Returns at once when the session ends, or if the agent is to leave."""
        now_s = self._clock_s()
        self._outage = outage.after_failure(self._outage, now_s)
        pause_s = outage.pause_s(self._outage, error, self._patience, now_s, self._draw())
        if pause_s is None:
            self.waits_because = ""
            return Departure(self.name, outage.farewell(self._outage, error, now_s))
        self.waits_because = str(error)
        self._desk.over.wait(pause_s)
        return None

    def _hear_news(self) -> None:
        while not self._news.empty():
            self._agent.learn(*self._news.get_nowait())


def still_at_work(threads: Sequence[AgentThread], patience_s: float) -> list[AgentThread]:
    """Those that do not end within that time, all together."""
    deadline_s = time.monotonic() + patience_s
    return [thread for thread in threads if not thread.join(max(0.0, deadline_s - time.monotonic()))]
