"""The search session: agents propose, builds run ahead, one candidate is measured at a time, everybody learns.

One thread judges. Agents that answer at once (pattern agents) are asked by it whenever the queue runs low, so that it
never waits for the others: language models, each in a thread of its own. What these ask of the judge while they work
goes ahead of proposals, and theirs ahead of the fast agents', which keep a share all the same.

What a session guarantees: a candidate that was judged before (same code, same workloads) is not judged again, and a
session that goes on after a crash first learns all that earlier ones did. Fast agents alone retrace their steps: asked
the same in the same order, with the journal for a judge, they come to where the earlier life was, and go on as it
would have. The budget ends a session after the candidate in hand. However it ends, its threads end with it, and what
was proposed and not judged is on record.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from agents.agent import Agent
from agents.brief import Brief
from agents.errors import BudgetSpentError
from agents.strategies import catalogue
from agents.strategy import Strategy
from agents.swarm import Selection
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks.agent_thread import AgentThread, Departure, departure, still_at_work
from tasks.course import Course
from tasks.journal import Journal
from tasks.judging_queue import ENDED, JudgingQueue, Kind, Request
from tasks.swarm import Swarm

BUILD_AHEAD = 3
"""Candidates of fast agents that are built or building while one is measured: enough to hide a build, few enough to
stay adaptive.
"""
FAST_EVERY = 4
"""One judgement in so many is a fast agent's, whatever else waits: a swarm that writes junk must not starve them."""
KNOWN_IN_A_ROW = 2000
"""So many proposals of fast agents may be known already before they rest."""
FEEDBACK_LINES = 20
"""How much of the session's course a brief tells."""
WAIT_S = 0.05
"""At most, before the clock and the compilers are looked at again."""
ENDING_S = 30.0
"""How long the answers in flight are waited for at the end: they are paid for, and go on record."""
HURRIED_S = 3.0
"""The same after an interrupt or an error."""
ABANDONED_S = 10.0
"""How long an agent may take to notice that its model is gone."""


class Bench(Protocol):
    """The judge as a session uses it. `judge` and `check` are for the session's thread, the others for any."""

    def prepare(self, candidate: Candidate) -> None:
        """Starts the build in the background; `judge` of the same candidate then finds it done, or waits for it."""

    def is_built(self, candidate: Candidate) -> bool:
        """Whether `judge` need not wait for the compiler."""

    def build(self, candidate: Candidate) -> Verdict | None:
        """Builds beside what is measured: a verdict that refuses it, or None."""

    def assembly(self, candidate: Candidate) -> str:
        """Disassembly of the innermost loops of what was built."""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """Blocks until the verdict is there. Raises BudgetSpentError where it may not begin."""

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """The same with the roughest of timings."""


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
    """Searches one operator and dtype within a budget of seconds. For one `run`."""

    def __init__(
        self,
        bench: Bench,
        agents: Sequence[Agent],
        brief: Brief,
        journal: Journal,
        log: TrialLog,
        *,
        swarm: Swarm | None = None,
        strategy: Strategy | None = None,
        first: Sequence[Candidate] = (),
        first_step: int = 0,
        tick: Callable[[], None] = lambda: None,
        tell_waiting: Callable[[int, str], None] = lambda count, why: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            agents: that answer at once; the judging thread asks them.
            swarm: those that do not.
            strategy: leads all of them; the first of the catalogue if not given.
            first: candidates to judge before all others, unless they were judged.
            tick: called often; may raise BudgetSpentError, which ends the session.
            tell_waiting: called as often with how many agents wait for their provider, and what one of these said.
        """
        self.course = Course()
        self.over = threading.Event()
        self._bench = bench
        self._fast = deque(agents)
        self._swarm = swarm
        self._queue = swarm.queue if swarm is not None else JudgingQueue()
        self._threads = [AgentThread(agent, self, swarm.patience) for agent in swarm.agents] if swarm else []
        self._working = len(self._threads)
        self._brief = brief
        self._strategy = strategy or catalogue.strategy(catalogue.NAMES[0], brief, 0)
        self._leading = threading.Lock()
        self._journal = journal
        self._log = log
        self._first = first
        self._tick = tick
        self._tell_waiting = tell_waiting
        self._step = first_step
        self._clock = clock
        self._inherited_s = 0.0
        self._selection = Selection()
        self._unlearned = {one.candidate.digest: one for one in journal.entries_on(brief.workloads)}
        """What earlier lives judged and this one has not come to yet, in order."""
        self._ahead: deque[Request] = deque()
        """Proposals of fast agents, and those that an earlier life left."""
        self._in_hand: Request | None = None
        self._resting = False
        """No fast agent has had anything to offer since the last verdict."""
        self._others_in_a_row = 0

    def run(self, budget_s: float) -> Generator[Trial, None, None]:
        """Yields a trial at a time until the budget is spent, it is enough, or no agent has anything left to propose.

        Trials that an earlier life of this search paid for come first, and are charged as they cost then. Close the
        iterator to end the session early.
        """
        started = self._clock()
        patience_s = HURRIED_S
        try:
            if self._swarm is not None:
                yield from self._replay(started)
            yield from self._search(started, budget_s)
            yield from self._replay(started)
            patience_s = ENDING_S
        except BudgetSpentError as error:
            self.course.ended, self.course.spent = str(error), True
            patience_s = ENDING_S
        finally:
            self.course.elapsed_s = self._clock() - started
            self._wind_down(patience_s)

    def brief(self, agent: str) -> Brief:
        """See `tasks.agent_thread.Desk`."""
        with self._leading:
            return self._strategy.brief(self._brief, agent)

    def hand_in(self, agent: str, candidate: Candidate) -> Future[Verdict]:
        """See `tasks.agent_thread.Desk`. On record before anything else happens to it."""
        assert self._swarm is not None
        self._swarm.record.add(candidate, self._brief.workloads)
        if not self.over.is_set():
            self._bench.prepare(candidate)
        return self._queue.put(Kind.PROPOSAL, candidate, self._brief.workloads)

    def left(self, gone: Departure | None) -> None:
        """See `tasks.agent_thread.Desk`."""
        with self._leading:
            self._working -= 1
            if gone is not None:
                self.course.departures.append(gone)
        self._queue.notify()

    def _replay(self, started: float) -> Iterator[Trial]:
        """What earlier lives judged and nobody has proposed again: the strategy and every agent learn it, in order."""
        while self._unlearned:
            yield self._relearn(next(iter(self._unlearned)), started)

    def _relearn(self, digest: str, started: float) -> Trial:
        entry = self._unlearned.pop(digest)
        self._inherited_s += entry.verdict.duration_s
        return self._learn(entry.candidate, entry.verdict, started, replayed=True)

    def _search(self, started: float, budget_s: float) -> Iterator[Trial]:
        def left_s() -> float:
            return budget_s - self._inherited_s - (self._clock() - started)

        if left_s() <= 0:
            return
        self._take_up_unjudged()
        for thread in self._threads:
            thread.start()
        while left_s() > 0 and not self._is_enough():
            if not self._unlearned:
                self._tick()
            self._tell_waiting(*self._waiting())
            alone = self._working == 0
            request = self._next()
            if request is not None and request.candidate.digest in self._unlearned:
                yield self._relearn(request.candidate.digest, started)
            elif request is not None and self._unlearned:
                self._ahead.appendleft(request)  # the trail is lost: another way of proposing, or another memory
                yield from self._replay(started)
            elif request is not None:
                trial = self._serve(request, started)
                if trial is not None:
                    yield trial
            elif alone and not self._ahead and self._queue.is_empty:
                self.course.ended = "no agent has anything left to propose"
                return
            else:
                self._wait(min(WAIT_S, max(0.0, left_s())))

    def _wait(self, most_s: float) -> None:
        """For a compiler, if one is at work; else the agents keep the judge waiting."""
        asked = self._swarm is not None and self._swarm.workshop.is_building
        compiling = asked or bool(self._ahead) or not self._queue.is_empty
        began = self._clock()
        self._queue.wait(most_s)
        self.course.starved_s += 0.0 if compiling else self._clock() - began

    def _waiting(self) -> tuple[int, str]:
        reasons = [why for thread in self._threads if (why := thread.waits_because)]
        return len(reasons), reasons[0] if reasons else ""

    def _is_enough(self) -> bool:
        with self._leading:
            self.course.ended = self._strategy.enough()
        return bool(self.course.ended)

    def _take_up_unjudged(self) -> None:
        """What an earlier life was given and did not judge goes first, then what this one was told to begin with."""
        left = self._swarm.record.unjudged(self._journal, self._brief.workloads) if self._swarm is not None else ()
        candidates = [*(proposal.candidate for proposal in left), *self._first]
        for candidate in {candidate.digest: candidate for candidate in candidates}.values():
            if self._verdict_on(candidate) is None:
                self._put_ahead(candidate)

    def _next(self) -> Request | None:
        """The next thing to judge, if anything is ready."""
        self._fill()
        ahead = self._next_ahead()
        if ahead is None or self._others_in_a_row < FAST_EVERY - 1:
            request = self._queue.take(self._bench.is_built)
            if request is not None:
                self._others_in_a_row += 1
                return request
        if ahead is not None:
            self._others_in_a_row = 0
            self._ahead.remove(ahead)
        return ahead

    def _next_ahead(self) -> Request | None:
        """Alone, fast agents are judged in order, so that a seed leads the same way each time; else what is built."""
        if not self._threads:
            return self._ahead[0] if self._ahead else None
        return next((request for request in self._ahead if self._bench.is_built(request.candidate)), None)

    def _fill(self) -> None:
        """Asks fast agents in turn until enough is built ahead. Once a whole round has nothing new they rest."""
        empty = known = 0
        while self._fast and not self._resting and len(self._ahead) < BUILD_AHEAD:
            agent = self._fast.popleft()
            try:
                candidates = agent.propose(self.brief(agent.name), 1)
                new = [candidate for candidate in candidates if not self._is_known(agent, candidate)]
            except Exception as error:
                self.course.departures.append(departure(agent.name, error))
                continue
            self._fast.append(agent)
            for candidate in new:
                self._put_ahead(candidate)
            empty = 0 if candidates else empty + 1
            known = 0 if new else known + len(candidates)
            self._resting = empty >= len(self._fast) or known >= KNOWN_IN_A_ROW

    def _is_known(self, agent: Agent, candidate: Candidate) -> bool:
        """Whether it was judged, of which the agent is reminded, or waits for it."""
        verdict = self._verdict_on(candidate)
        if verdict is not None:
            agent.learn(candidate, verdict)
        return verdict is not None or any(candidate.digest == request.candidate.digest for request in self._ahead)

    def _verdict_on(self, candidate: Candidate) -> Verdict | None:
        """As this life knows it."""
        unlearned = candidate.digest in self._unlearned
        return None if unlearned else self._journal.find(candidate, self._brief.workloads)

    def _put_ahead(self, candidate: Candidate) -> None:
        if candidate.digest not in self._unlearned:
            self._bench.prepare(candidate)
        self._ahead.append(Request(Kind.PROPOSAL, candidate, self._brief.workloads))

    def _serve(self, request: Request, started: float) -> Trial | None:
        """Judges, and answers. A trial, unless this was a question on the side or was judged before."""
        self._in_hand = request
        trial = None
        verdict = self._known(request)
        if verdict is None:
            verdict = self._judge(request)
            if request.kind is not Kind.CHECK and self._is_whole(request):
                self._journal.append(request.candidate, verdict, request.workloads)
                trial = self._learn(request.candidate, verdict, started, replayed=False)
        request.answer.set_result(verdict)
        self._in_hand = None
        return trial

    def _known(self, request: Request) -> Verdict | None:
        if request.kind is Kind.CHECK:
            return None
        return self._journal.find(request.candidate, request.workloads)

    def _is_whole(self, request: Request) -> bool:
        """Whether all of the search's workloads are asked for, in whatever order."""
        asked = {workload.digest for workload in request.workloads}
        return asked == {workload.digest for workload in self._brief.workloads}

    def _judge(self, request: Request) -> Verdict:
        judge = self._bench.check if request.kind is Kind.CHECK else self._bench.judge
        began = self._clock()
        verdict = judge(request.candidate, request.workloads)
        self.course.judging_s += max(0.0, self._clock() - began - verdict.build_s)
        return verdict

    def _learn(self, candidate: Candidate, verdict: Verdict, started: float, *, replayed: bool) -> Trial:
        """Everybody is told. The log is idempotent by candidate, so replaying mends what a crash kept from it."""
        self._log.record(candidate, verdict, self._step)
        with self._leading:
            self._strategy.learn(candidate, verdict)
            self._remember_best(candidate, verdict)
        for agent in list(self._fast):
            try:
                agent.learn(candidate, verdict)
            except Exception as error:
                self.course.departures.append(departure(agent.name, error))
                self._fast.remove(agent)
        for thread in self._threads:
            thread.tell(candidate, verdict)
        self._resting = False
        trial = Trial(self._step, candidate, verdict, replayed, self._clock() - started + self._inherited_s)
        self._step += 1
        return trial

    def _remember_best(self, candidate: Candidate, verdict: Verdict) -> None:
        self._selection = self._selection.with_verdict(verdict)
        line = f"{candidate.origin.pattern}: {verdict.status.value}, {verdict.reason}"
        self._brief = replace(
            self._brief,
            best=tuple(self._selection.best.values()),
            feedback=(*self._brief.feedback, line)[-FEEDBACK_LINES:],
        )

    def _wind_down(self, patience_s: float) -> None:
        """Nobody waits for an answer any more, no thread works, and what has no verdict is on record."""
        self.course.waiting, _ = self._waiting()
        self.over.set()
        self._queue.close()
        if self._swarm is not None:
            self._swarm.workshop.drop()
        for request in (*([self._in_hand] if self._in_hand is not None else []), *self._ahead):
            self._queue.refuse(request)
        try:
            self._join(patience_s)
        finally:
            if self._swarm is not None:
                self._swarm.workshop.close()
            self._leave_unjudged()

    def _join(self, patience_s: float) -> None:
        late = still_at_work(self._threads, patience_s)
        if late and self._swarm is not None:
            self._swarm.abandon()
            late = still_at_work(late, ABANDONED_S)
        self.course.departures += [Departure(thread.name, "did not end with the search; left alone") for thread in late]

    def _leave_unjudged(self) -> None:
        for request in self._queue.unjudged():
            if self._journal.find(request.candidate, request.workloads) is None:
                self.course.unjudged += 1
                if self._swarm is not None:
                    self._swarm.record.leave(request.candidate, request.workloads, self.course.ended or ENDED)
