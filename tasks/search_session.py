"""The bench session: agents propose, builds run ahead, one candidate is measured at a time, everybody learns.

The session holds no policy of its own. What it guarantees: the device measures while others build; a candidate that was
judged before (same code, same workloads) is not judged again; the budget ends the session after the candidate in hand.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agents.agent import Agent
from agents.brief import Brief
from agents.swarm import Selection
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks.journal import Journal

BUILD_AHEAD = 3
"""Candidates that are built or building while one is measured: enough to hide a build, few enough to stay adaptive."""
FEEDBACK_LINES = 20
"""How much of the session's course a brief tells."""


class Bench(Protocol):
    """The judge as a session uses it."""

    def prepare(self, candidate: Candidate) -> None:
        """Starts the build in the background; `judge` of the same candidate then finds it done, or waits for it."""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """Blocks until the verdict is there."""


class TrialLog(Protocol):
    """Where each verdict is recorded; must neither fail nor block the session."""

    def record(self, candidate: Candidate, verdict: Verdict, step: int) -> None: ...


@dataclass(frozen=True)
class Trial:
    """One judged candidate of a session."""

    step: int
    """Position in the session, from 0."""
    candidate: Candidate
    verdict: Verdict
    replayed: bool
    """Whether the verdict comes from the journal of an earlier life."""
    elapsed_s: float
    """Of the session, earlier lives included."""


class SearchSession:
    """Searches one operator and dtype within a budget of seconds."""

    def __init__(
        self,
        bench: Bench,
        agents: Sequence[Agent],
        brief: Brief,
        journal: Journal,
        log: TrialLog,
        *,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bench = bench
        self._agents = deque(agents)
        self._brief = brief
        self._journal = journal
        self._log = log
        self._step = first_step
        self._clock = clock
        self._inherited_s = 0.0
        self._selection = Selection()
        self._queue: deque[tuple[Agent, Candidate]] = deque()

    def run(self, budget_s: float) -> Iterator[Trial]:
        """Yields a trial at a time until the budget is spent or no agent has anything left to propose.

        Trials that an earlier life of this search paid for are charged to the budget as they cost then.
        """
        started = self._clock()
        while self._clock() - started + self._inherited_s < budget_s:
            self._build_ahead()
            if not self._queue:
                return
            agent, candidate = self._queue.popleft()
            trial = self._judge(candidate, started)
            agent.learn(candidate, trial.verdict)
            self._remember_best(trial)
            yield trial

    def _build_ahead(self) -> None:
        """Fills the queue in turns, dropping agents that are exhausted."""
        while self._agents and len(self._queue) < BUILD_AHEAD:
            agent = self._agents[0]
            candidates = agent.propose(self._brief, 1)
            if not candidates:
                self._agents.popleft()
                continue
            self._agents.rotate(-1)
            for candidate in candidates:
                if self._journal.find(candidate, self._brief.workloads) is None:
                    self._bench.prepare(candidate)
                self._queue.append((agent, candidate))

    def _judge(self, candidate: Candidate, started: float) -> Trial:
        workloads = self._brief.workloads
        known = self._journal.find(candidate, workloads)
        verdict = known or self._bench.judge(candidate, workloads)
        if known is None:
            self._journal.append(candidate, verdict, workloads)
        else:
            self._inherited_s += verdict.duration_s
        # The log is idempotent by candidate, so a replayed verdict mends what a crash kept from it.
        self._log.record(candidate, verdict, self._step)
        trial = Trial(self._step, candidate, verdict, known is not None, self._clock() - started + self._inherited_s)
        self._step += 1
        return trial

    def _remember_best(self, trial: Trial) -> None:
        self._selection = self._selection.with_verdict(trial.verdict)
        line = f"{trial.candidate.origin.pattern}: {trial.verdict.status.value}, {trial.verdict.reason}"
        self._brief = replace(
            self._brief,
            best=tuple(self._selection.best.values()),
            feedback=(*self._brief.feedback, line)[-FEEDBACK_LINES:],
        )
