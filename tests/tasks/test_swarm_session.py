"""Agents in threads of their own: the judge never waits for them, and nothing that they propose is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agents.agent import Agent
from agents.brief import Brief
from agents.errors import BudgetSpentError, RequestRefusedError
from agents.strategies.best_of_n import BestOfN
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import agent_thread, search_session
from tasks.agent_thread import FRUITLESS_ROUNDS
from tasks.journal import Journal
from tasks.judging_queue import JudgingQueue, Kind
from tasks.live_workshop import LiveWorkshop
from tasks.proposal_record import ProposalRecord
from tasks.search_session import FAST_EVERY, SearchSession, Trial
from tasks.swarm import Swarm
from tests.tasks.test_search_session import ListAgent
from tests.tasks.world import Clock, FormulaBench, ListLog, candidate, rms_norm

WORKLOADS = (rms_norm(1), rms_norm(4))
LONG_S = 10_000.0
"""A budget that no test uses up."""


def brief() -> Brief:
    return Brief("rms_norm", "float32", WORKLOADS, local_cpu(), 2, 20.0, 100.0)


def by_number(candidate: Candidate, workload: object) -> float:
    return 0.5 + int(candidate.origin.parameters["number"]) % 10 / 10


Step = Callable[["SlowAgent", Brief], list[Candidate]]


@dataclass
class SlowAgent:
    """Runs a script, one step per proposal; with none left it has nothing to offer."""

    name: str
    steps: list[Step]
    proposed: list[Candidate] = field(default_factory=list)
    learned: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        self.threads.add(threading.get_ident())
        if not self.steps:
            return []
        made = self.steps.pop(0)(self, brief)
        self.proposed += made
        return made

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self.threads.add(threading.get_ident())
        self.learned.append(candidate.digest)


def gives(number: int, after: threading.Event | None = None, delay_s: float = 0.0) -> Step:
    def step(agent: SlowAgent, brief: Brief) -> list[Candidate]:
        if after is not None:
            assert after.wait(20)
        time.sleep(delay_s)
        return [candidate(number, agent=agent.name)]

    return step


def raises(error: BaseException) -> Step:
    def step(agent: SlowAgent, brief: Brief) -> list[Candidate]:
        raise error

    return step


@dataclass
class RealBench(FormulaBench):
    """Takes a moment of real time; may interrupt, or run something, at a judgement."""

    pause_s: float = 0.002
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    """What happens before the judgement of that number."""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int | None = None) -> Verdict:
        self.at.get(len(self.judged), lambda: None)()
        time.sleep(self.pause_s)
        return super().judge(candidate, workloads, seed=seed)


class KnownQueue(JudgingQueue):
    """Remembers what was put in."""

    def __init__(self) -> None:
        super().__init__()
        self.given: set[str] = set()

    def put(self, kind: Kind, candidate: Candidate, workloads: Sequence[Workload]) -> Future[Verdict]:
        answer = super().put(kind, candidate, workloads)
        self.given.add(candidate.digest)
        return answer


@dataclass
class World:
    """A session and all that outlives it."""

    folder: Path
    bench: RealBench
    queue: KnownQueue = field(default_factory=KnownQueue)
    abandoned: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder / "verdicts.jsonl")
        self.record = ProposalRecord(self.folder / "proposals.jsonl")
        self.workshop = LiveWorkshop(self.bench, self.queue)

    def session(self, slow: Sequence[SlowAgent], fast: Sequence[Agent] = (), **options: object) -> SearchSession:
        swarm = Swarm(slow, self.queue, self.workshop, self.record, self.abandoned.set)
        return SearchSession(self.bench, fast, brief(), self.journal, ListLog(), swarm=swarm, **options)


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def world(**options: object) -> World:
        return World(tmp_path, RealBench(by_number, Clock(), **options))

    return world


@pytest.fixture(autouse=True)
def no_thread_is_left() -> None:
    before = set(threading.enumerate())
    yield
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]


def patterns(*numbers: int) -> ListAgent:
    return ListAgent("pattern", [candidate(number, agent="pattern") for number in numbers])


def numbers(trials: Sequence[Trial]) -> list[int]:
    return [int(trial.candidate.origin.parameters["number"]) for trial in trials]


def assert_nothing_is_lost(world: World, slow: Sequence[SlowAgent]) -> None:
    """As another process finds it."""
    journal, record = Journal(world.folder / "verdicts.jsonl"), ProposalRecord(world.folder / "proposals.jsonl")
    unjudged = {one.candidate.digest: one.unjudged for one in record.unjudged(journal, WORKLOADS)}
    for agent in slow:
        for one in agent.proposed:
            assert journal.find(one, WORKLOADS) is not None or unjudged[one.digest]


def test_the_judge_does_not_wait_for_slow_agents(world) -> None:
    here = world()
    release = threading.Event()
    slow = SlowAgent("llm:0", [gives(100, release)])
    here.bench.at[8] = release.set
    trials = list(here.session([slow], [patterns(*range(9))]).run(LONG_S))
    assert numbers(trials)[:8] == list(range(8)) and 100 in numbers(trials)


def test_a_judge_that_waits_for_agents_is_told_from_one_that_waits_for_a_compiler(world, monkeypatch) -> None:
    clock = time.monotonic
    here = world()
    slow = SlowAgent("llm:0", [gives(100, delay_s=0.5)])
    session = here.session([slow], clock=clock)
    list(session.run(LONG_S))
    assert session.course.starved_s > 0.3
    here = World(here.folder / "other", here.bench)
    compiling = threading.Event()
    monkeypatch.setattr(
        here.bench, "is_built", lambda candidate: compiling.wait(0.02) or clock() > until, raising=False
    )
    until = clock() + 0.5
    session = here.session([SlowAgent("llm:0", [gives(101)])], [patterns(7)], clock=clock)
    list(session.run(LONG_S))
    assert session.course.elapsed_s - session.course.starved_s > 0.4, "the half second was the compiler's"


def test_paid_answers_go_first_and_fast_agents_keep_their_share(world) -> None:
    here = world()
    slow = [SlowAgent(f"llm:{n}", [gives(100 + n * 10 + k) for k in range(6)]) for n in range(4)]

    def has_answered(agent: SlowAgent) -> bool:
        """Whether its next proposal waits, or is in hand, or there will be none."""
        waiting = {one.digest for one in agent.proposed} - set(here.bench.judged)
        return waiting <= here.queue.given if waiting else len(agent.proposed) == 6

    def all_answer() -> None:
        while not all(map(has_answered, slow)):
            time.sleep(0.001)

    here.bench.at = dict.fromkeys(range(34), all_answer)
    trials = list(here.session(slow, [patterns(*range(10))]).run(LONG_S))
    fast = [number < 100 for number in numbers(trials)]
    assert len(trials) == 34
    busy = fast[1:24]
    assert sum(busy) / len(busy) == pytest.approx(1 / FAST_EVERY, abs=0.12)
    assert_nothing_is_lost(here, slow)


def test_each_agent_works_on_one_thread_and_hears_of_every_verdict(world) -> None:
    here = world()
    slow = [SlowAgent(f"llm:{n}", [gives(100 + n * 10 + k) for k in range(3)]) for n in range(3)]
    fast = patterns(*range(4))
    trials = list(here.session(slow, [fast]).run(LONG_S))
    judged = [trial.candidate.digest for trial in trials]
    assert [one.digest for one, _ in fast.learned] == judged
    for agent in slow:
        assert len(agent.threads) == 1 and threading.get_ident() not in agent.threads
        own = [one.digest for one in agent.proposed]
        assert set(own) <= set(agent.learned), "it learns of its own before it is asked again"
        assert agent.learned == judged[: len(agent.learned)]


def test_an_agent_proposes_again_only_after_its_verdict(world) -> None:
    here = world()
    seen: list[int] = []

    def next_one(number: int) -> Step:
        def step(agent: SlowAgent, brief: Brief) -> list[Candidate]:
            seen.append(len(agent.learned))
            return [candidate(number, agent=agent.name)]

        return step

    list(here.session([SlowAgent("llm:0", [next_one(n) for n in range(4)])]).run(LONG_S))
    assert seen == [0, 1, 2, 3]


class Tools:
    """An agent's questions to the workshop, as steps."""

    @staticmethod
    def asks(ask: Callable[[SlowAgent], object], number: int) -> Step:
        def step(agent: SlowAgent, brief: Brief) -> list[Candidate]:
            ask(agent)
            return [candidate(number, agent=agent.name)]

        return step


def test_questions_go_ahead_of_proposals(world) -> None:
    here = world()
    began, asked, answered = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def check(agent: SlowAgent) -> None:
        assert began.wait(20)
        asked.set()
        verdict = here.workshop.check(candidate(7), WORKLOADS[:1])
        order.append(f"answered after {len(here.bench.judged)}")
        assert [timing.workload for timing in verdict.timings] == [WORKLOADS[0]]
        answered.set()

    def hold() -> None:
        began.set()
        assert asked.wait(20)
        time.sleep(0.05)

    here.bench.at[0] = hold
    slow = SlowAgent("llm:0", [Tools.asks(check, 100)])
    trials = list(here.session([slow], [patterns(*range(6))]).run(LONG_S))
    assert order == ["answered after 1"] and answered.is_set()
    assert here.bench.checked == [candidate(7).digest]
    assert 7 not in numbers(trials), "a check is no trial"


def test_what_is_measured_on_all_workloads_is_a_trial_and_judged_once(world) -> None:
    here = world()
    ratios: list[float | None] = []

    def measure(agent: SlowAgent) -> None:
        ratios.append(here.workshop.measure(candidate(100, agent=agent.name), WORKLOADS[::-1]).ratio)
        ratios.append(here.workshop.measure(candidate(101, agent=agent.name), WORKLOADS[:1]).ratio)

    slow = SlowAgent("llm:0", [Tools.asks(measure, 100)])
    trials = list(here.session([slow]).run(LONG_S))
    assert numbers(trials) == [100]
    assert here.bench.judged == [candidate(100).digest, candidate(101).digest]
    assert len(here.journal) == 1 and None not in ratios
    assert_nothing_is_lost(here, [slow])


def test_builds_and_disassembly_need_no_turn_and_broken_sources_no_judge(world) -> None:
    here = world()
    broken = candidate(1)
    broken.files["main.cpp"] = "#error"
    assert here.workshop.build(broken).status.value == "build_failed"
    assert here.workshop.build(candidate(2)) is None
    assert here.workshop.check(broken, WORKLOADS).status.value == "build_failed"
    assert here.workshop.assembly(candidate(2)).startswith("gm_run")
    here.queue.close()
    here.workshop.close()
    for ask in (here.workshop.build, here.workshop.assembly):
        with pytest.raises(BudgetSpentError, match="ended"):
            ask(candidate(2))
    with pytest.raises(BudgetSpentError, match="ended"):
        here.workshop.measure(candidate(2), WORKLOADS)


def test_the_end_of_the_budget_waits_for_answers_in_flight_and_keeps_them(world) -> None:
    here = world()
    in_flight = threading.Event()

    def late(agent: SlowAgent, brief: Brief) -> list[Candidate]:
        in_flight.set()
        assert session.over.wait(20)
        return [candidate(100, agent=agent.name)]

    slow = SlowAgent("llm:0", [late])
    here.bench.at[0] = lambda: in_flight.wait(20)
    session = here.session([slow], [patterns(*range(500))])
    trials = list(session.run(0.1))
    assert 100 not in numbers(trials) and len(slow.proposed) == 1
    assert session.course.unjudged >= 1 and session.course.ended == ""
    assert_nothing_is_lost(here, [slow])


ENDS = ("interrupt", "closed", "cap", "enough", "host fault")


@pytest.mark.parametrize("end", ENDS)
def test_however_it_ends_threads_end_and_nothing_is_lost(world, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(pause_s=0.01)
    monkeypatch.setattr(search_session, "HURRIED_S", 10.0)
    slow = [SlowAgent(f"llm:{n}", [gives(100 + 10 * n + k, delay_s=0.02) for k in range(9)]) for n in range(6)]
    errors = {"interrupt": KeyboardInterrupt(), "cap": BudgetSpentError("no device seconds"), "host fault": OSError()}

    def strike() -> None:
        raise errors[end]

    if end in errors:
        here.bench.at[5] = strike
    strategy = BestOfN(brief(), most=5) if end == "enough" else None
    session = here.session(slow, [patterns(*range(50))], strategy=strategy)
    run = session.run(LONG_S)
    trials = []
    try:
        for trial in run:
            trials.append(trial)
            if end == "closed" and len(trials) == 5:
                break
        run.close()
    except (KeyboardInterrupt, OSError):
        assert end in ("interrupt", "host fault")
    assert len(trials) == 5 and session.over.is_set()
    assert session.course.spent == (end == "cap")
    if end in ("cap", "enough"):
        assert session.course.ended in ("no device seconds", "5 candidates were judged")
    assert_nothing_is_lost(here, slow)
    assert not here.abandoned.is_set()


def test_the_next_life_judges_first_what_this_one_left(world) -> None:
    first = world(pause_s=0.01)
    slow = [SlowAgent(f"llm:{n}", [gives(100 + n)]) for n in range(5)]
    arrived = threading.Event()

    def strike() -> None:
        deadline = time.monotonic() + 20
        while len(first.record.unjudged(first.journal, WORKLOADS)) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        arrived.set()
        raise KeyboardInterrupt

    first.bench.at[0] = strike
    with pytest.raises(KeyboardInterrupt):
        list(first.session(slow, [patterns(0, 1)]).run(LONG_S))
    assert arrived.is_set()
    second = world()
    again = SlowAgent("llm:0", [])
    trials = list(second.session([again], [patterns(0, 1, 2)]).run(LONG_S))
    left = {100, 101, 102, 103, 104, 0}
    assert left <= set(numbers(trials)[:7]) and sorted(numbers(trials)) == [0, 1, 2, *sorted(left - {0})]
    third = world()
    agent = SlowAgent("llm:9", [gives(200)])
    replayed = list(third.session([agent]).run(LONG_S))
    assert [trial.replayed for trial in replayed] == [True] * len(trials) + [False]
    assert agent.learned[: len(trials)] == [trial.candidate.digest for trial in trials]


def test_agents_that_fail_leave_and_the_others_go_on(world) -> None:
    here = world()
    slow = [
        SlowAgent("llm:refused", [gives(100), raises(RequestRefusedError("no such model"))]),
        SlowAgent("llm:bug", [gives(110), raises(KeyError("a bug"))]),
        SlowAgent("llm:fine", [gives(120 + k, delay_s=0.01) for k in range(6)]),
    ]
    session = here.session(slow, [patterns(1)])
    trials = list(session.run(LONG_S))
    assert sorted(numbers(trials)) == [1, 100, 110, *range(120, 126)]
    gone = {one.agent: one for one in session.course.departures}
    assert gone["llm:refused"].reason == "no such model" and not gone["llm:refused"].trace
    assert "KeyError" in gone["llm:bug"].reason and "a bug" in gone["llm:bug"].trace
    assert str(FRUITLESS_ROUNDS) in gone["llm:fine"].reason
    assert session.course.ended == "no agent has anything left to propose"


class Faulty(ListAgent):
    """A fast agent with a bug."""

    broken = "propose"

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        if self.broken == "propose" and len(self.left) == 1:
            raise ZeroDivisionError
        return super().propose(brief, count)

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        if self.broken == "learn":
            raise ZeroDivisionError


@pytest.mark.parametrize("broken", ["propose", "learn"])
def test_a_bug_in_a_fast_agent_is_reported_and_costs_nobody_else(world, broken: str) -> None:
    here = world()
    faulty = Faulty("faulty", [candidate(50 + n) for n in range(3)])
    faulty.broken = broken
    session = here.session([SlowAgent("llm:0", [gives(100)])], [faulty, patterns(*range(4))])
    trials = list(session.run(LONG_S))
    assert {0, 1, 2, 3, 100} <= set(numbers(trials))
    (gone,) = [one for one in session.course.departures if one.agent == "faulty"]
    assert "ZeroDivisionError" in gone.trace


def test_a_budget_that_is_only_set_aside_is_asked_again(world, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_thread, "RETRY_S", 0.01)
    here = world()
    wait = BudgetSpentError("in flight", may_fit_later=True)
    slow = SlowAgent("llm:0", [raises(wait), raises(wait), gives(100), raises(BudgetSpentError("no dollar is left"))])
    session = here.session([slow])
    assert numbers(list(session.run(LONG_S))) == [100]
    assert [one.reason for one in session.course.departures] == ["no dollar is left"]


def test_an_agent_that_hangs_on_its_model_is_freed_by_abandoning_it(world, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_session, "ENDING_S", 0.05)
    here = world()

    def hangs(agent: SlowAgent, brief: Brief) -> list[Candidate]:
        assert here.abandoned.wait(20)
        raise RequestRefusedError("the provider process was ended")

    session = here.session([SlowAgent("llm:0", [hangs])], [patterns(1)], clock=here.bench.clock)
    assert numbers(list(session.run(here.bench.cost_s))) == [1]
    assert [one.reason for one in session.course.departures] == ["the provider process was ended"]


def test_an_agent_that_never_ends_is_told_of(world, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_session, "ENDING_S", 0.05)
    monkeypatch.setattr(search_session, "ABANDONED_S", 0.05)
    here = world()
    release = threading.Event()
    session = here.session([SlowAgent("llm:0", [gives(100, release)])], [patterns(1)])
    list(session.run(0.2))
    assert [(one.agent, "left alone" in one.reason) for one in session.course.departures] == [("llm:0", True)]
    release.set()
    for thread in threading.enumerate():
        if thread.name == "agent llm:0":
            thread.join(20)
    here = world()
    assert [one.candidate.digest for one in here.record.unjudged(here.journal, WORKLOADS)] == [candidate(100).digest]


def test_the_same_program_from_two_agents_is_judged_once(world) -> None:
    here = world()
    slow = [SlowAgent(f"llm:{n}", [gives(100), gives(101)]) for n in range(8)]
    trials = list(here.session(slow, [patterns(100, 101)]).run(LONG_S))
    assert sorted(numbers(trials)) == [100, 101] and len(here.bench.judged) == 2


@pytest.mark.parametrize("seed", range(6))
def test_sixty_four_agents_in_any_interleaving_lose_nothing(world, seed: int) -> None:
    chance = random.Random(seed)
    here = world(pause_s=0.0005)

    def step(number: int) -> Step:
        kind, delay_s = chance.random(), chance.random() * 0.01
        if kind < 0.2:
            return Tools.asks(
                lambda agent: here.workshop.measure(candidate(number, agent=agent.name), WORKLOADS), number
            )
        if kind < 0.3:
            return Tools.asks(lambda agent: here.workshop.check(candidate(number), WORKLOADS[:1]), number)
        if kind < 0.33:
            return raises(chance.choice([ValueError("bug"), RequestRefusedError("refused")]))
        return gives(number, delay_s=delay_s)

    slow = [SlowAgent(f"llm:{n}", [step(100 + n * 10 + k) for k in range(4)]) for n in range(64)]
    end = chance.choice(["interrupt", "none"])
    if end == "interrupt":
        here.bench.at[chance.randrange(10, 100)] = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    trials: list[Trial] = []
    try:
        for trial in here.session(slow, [patterns(*range(30))]).run(LONG_S):
            trials.append(trial)
    except KeyboardInterrupt:
        assert end == "interrupt"
    judged = [trial.candidate.digest for trial in trials]
    assert len(set(judged)) == len(judged)
    assert_nothing_is_lost(here, slow)
    resumed = world(pause_s=0.0)
    again = list(resumed.session([]).run(LONG_S))
    assert [trial.candidate.digest for trial in again[: len(judged)]] == judged
    assert not resumed.record.unjudged(resumed.journal, WORKLOADS), "what was left has been judged by now"


def test_a_queue_hands_out_what_is_built_first_and_answers_all_at_the_end() -> None:
    queue = JudgingQueue()
    waiting = [queue.put(Kind.PROPOSAL, candidate(number), WORKLOADS) for number in range(3)]
    question = queue.put(Kind.CHECK, candidate(9), WORKLOADS)
    built = candidate(1).digest
    order = [queue.take(lambda one: one.digest == built) for _ in range(3)]
    assert [request and request.candidate.digest for request in order] == [candidate(9).digest, built, None]
    with ThreadPoolExecutor(8) as threads:
        late = [threads.submit(queue.put, Kind.PROPOSAL, candidate(number), WORKLOADS) for number in range(20, 40)]
        queue.close()
    futures = [waiting[0], waiting[2], *(one.result() for one in late)]
    assert all(isinstance(future.exception(0), BudgetSpentError) for future in futures)
    assert len(queue.unjudged()) == 22 and queue.take(lambda one: True) is None
    assert not question.done(), "whoever took it answers it"
