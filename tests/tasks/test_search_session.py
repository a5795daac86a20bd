"""The session spends its budget and no more, judges nothing twice across lives, and tells agents what it learned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agents.agent import Agent
from agents.brief import Brief
from agents.swarm import pattern_agents
from gristmill.hardware import local_cpu
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks.journal import Journal
from tasks.search_session import BUILD_AHEAD, FEEDBACK_LINES, SearchSession, Trial
from tests.tasks.world import Clock, FormulaBench, ListLog, candidate, rms_norm

WORKLOADS = (rms_norm(1), rms_norm(4))


@dataclass
class ListAgent:
    """Proposes a list, one by one, and remembers what it was shown."""

    name: str
    left: list[Candidate]
    briefs: list[Brief] = field(default_factory=list)
    learned: list[tuple[Candidate, Verdict]] = field(default_factory=list)

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        self.briefs.append(brief)
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self.learned.append((candidate, verdict))


def brief() -> Brief:
    return Brief("rms_norm", "float32", WORKLOADS, local_cpu(), 2, 20.0, 100.0)


def by_number(candidate: Candidate, workload: object) -> float:
    return 0.5 + int(candidate.origin.parameters["number"]) / 10


def agent(*numbers: int, name: str = "a") -> ListAgent:
    return ListAgent(name, [candidate(number, agent=name) for number in numbers])


@pytest.fixture
def open_session(tmp_path: Path) -> Callable[..., tuple[SearchSession, FormulaBench, ListLog]]:
    def open_session(
        agents: Sequence[Agent], dies_at: int = -1, first_step: int = 0, cost_s: float = 1.0
    ) -> tuple[SearchSession, FormulaBench, ListLog]:
        bench, log = FormulaBench(by_number, Clock(), cost_s, dies_at), ListLog()
        journal = Journal(tmp_path / "verdicts.jsonl")
        session = SearchSession(bench, agents, brief(), journal, log, first_step=first_step, clock=bench.clock)
        return session, bench, log

    return open_session


def numbers(trials: Sequence[Trial]) -> list[int]:
    return [int(trial.candidate.origin.parameters["number"]) for trial in trials]


def test_the_budget_ends_the_session_after_the_candidate_in_hand(open_session) -> None:
    session, bench, _ = open_session([agent(*range(20))], cost_s=2.0)
    trials = list(session.run(5.0))
    assert [trial.elapsed_s for trial in trials] == [2.0, 4.0, 6.0]
    assert len(bench.judged) == 3


@pytest.mark.parametrize("budget_s", [0.0, -1.0])
def test_without_a_budget_nothing_is_even_built(open_session, budget_s: float) -> None:
    session, bench, log = open_session([agent(1)])
    assert list(session.run(budget_s)) == []
    assert bench.prepared == bench.judged == log.recorded == []


def test_builds_run_ahead_of_the_one_that_is_measured(open_session) -> None:
    session, bench, _ = open_session([agent(*range(9))])
    run = session.run(100)
    next(run)
    assert len(bench.prepared) == BUILD_AHEAD and len(bench.judged) == 1


def test_agents_take_turns_and_exhausted_ones_rest(open_session) -> None:
    first, second = agent(1, name="a"), agent(11, 12, 13, name="b")
    session, _, _ = open_session([first, second])
    trials = list(session.run(100))
    assert numbers(trials) == [1, 11, 12, 13]
    assert len(second.briefs) > 3 and not second.left
    assert [one.digest for one, _ in first.learned] == [one.digest for one, _ in second.learned]
    assert [one.origin.agent for one, _ in first.learned] == ["a", "b", "b", "b"], "everybody hears of all verdicts"


def test_verdicts_come_in_the_order_of_the_proposals_and_steps_count_on(open_session) -> None:
    session, bench, log = open_session([agent(3, 1, 2)], first_step=40)
    trials = list(session.run(100))
    assert numbers(trials) == [3, 1, 2]
    assert [step for _, step in log.recorded] == [trial.step for trial in trials] == [40, 41, 42]
    assert bench.judged == [digest for digest, _ in log.recorded]


def test_a_brief_tells_the_best_so_far_and_what_was_tried(open_session) -> None:
    one = agent(*range(40))
    session, _, _ = open_session([one])
    trials = list(session.run(35))
    last = one.briefs[-1]
    assert one.briefs[0].best == () and one.briefs[0].feedback == ()
    assert len(last.feedback) == FEEDBACK_LINES
    assert all(line.startswith("rows: ") for line in last.feedback)
    best = [max((b.ratio for b in shown.best), default=0.0) for shown in one.briefs]
    assert best == sorted(best) and best[-1] > 1
    assert {entry.workload for entry in last.best} == {w.label for w in WORKLOADS}
    assert best[-1] == pytest.approx(max(by_number(t.candidate, None) for t in trials[:-1]), abs=0.11)


@pytest.mark.parametrize("dies_at", [0, 1, 4])
def test_a_killed_session_judges_nothing_twice_and_pays_once(open_session, dies_at: int) -> None:
    doomed, bench, _ = open_session([agent(*range(9))], dies_at=dies_at)
    with pytest.raises(KeyboardInterrupt):
        list(doomed.run(6.0))
    first_life = list(bench.judged)
    assert len(first_life) == dies_at
    session, bench, log = open_session([agent(*range(9))])
    trials = list(session.run(6.0))
    assert numbers(trials) == list(range(6)), "the two lives together spent one budget"
    assert not set(first_life) & set(bench.judged)
    assert not set(first_life) & set(bench.prepared), "what is known is not built"
    assert [trial.replayed for trial in trials] == [True] * dies_at + [False] * (6 - dies_at)
    assert [step for _, step in log.recorded] == list(range(6)), "the log hears of replayed trials again"
    assert trials[-1].elapsed_s == 6.0


def test_a_third_life_after_the_end_judges_nothing(open_session) -> None:
    list(open_session([agent(*range(9))])[0].run(4.0))
    session, bench, _ = open_session([agent(*range(9))])
    assert numbers(list(session.run(4.0))) == [0, 1, 2, 3]
    assert bench.judged == []


def test_pattern_agents_replay_to_where_they_were(tmp_path: Path) -> None:
    """The real agents: resumed with the same seed, they propose the judged candidates first, then new ones."""

    def ratio(candidate: Candidate, workload: object) -> float:
        return 0.8 + 0.1 * int(candidate.origin.parameters["UNROLL"])

    def run(dies_at: int) -> tuple[FormulaBench, list[Trial]]:
        bench = FormulaBench(ratio, Clock(), 1.0, dies_at)
        journal = Journal(tmp_path / "verdicts.jsonl")
        session = SearchSession(bench, pattern_agents(brief(), 7), brief(), journal, ListLog(), clock=bench.clock)
        trials: list[Trial] = []
        with contextlib.suppress(KeyboardInterrupt):
            trials.extend(session.run(16.0))
        return bench, trials

    killed, _ = run(dies_at=10)
    resumed, trials = run(dies_at=-1)
    assert [trial.candidate.digest for trial in trials[:10]] == killed.judged
    assert len(resumed.judged) == 6 and not set(resumed.judged) & set(killed.judged)


@pytest.mark.parametrize("kills", [[0], [1], [7], [3, 4, 9]])
def test_pattern_agents_that_were_killed_go_on_as_if_they_had_not_been(tmp_path: Path, kills: list[int]) -> None:
    """Their study samples: without retracing its steps it would draw other candidates."""

    def ratio(candidate: Candidate, workload: object) -> float:
        return 0.8 + 0.1 * int(candidate.origin.parameters["UNROLL"])

    def run(folder: Path, dies_at: int = -1) -> tuple[list[str], FormulaBench]:
        bench = FormulaBench(ratio, Clock(), 1.0, dies_at)
        journal = Journal(folder / "verdicts.jsonl")
        session = SearchSession(bench, pattern_agents(brief(), 7), brief(), journal, ListLog(), clock=bench.clock)
        trials: list[Trial] = []
        with contextlib.suppress(KeyboardInterrupt):
            trials.extend(session.run(18.0))
        return [trial.candidate.digest for trial in trials], bench

    whole, _ = run(tmp_path / "whole")
    judged: list[str] = []
    for dies_at in kills:
        judged += run(tmp_path / "killed", dies_at)[1].judged
    resumed, bench = run(tmp_path / "killed")
    judged += bench.judged
    assert resumed == whole
    assert sorted(judged) == sorted(set(judged)) and set(judged) == set(whole)


def test_what_nobody_proposes_again_is_learned_before_anything_new_is_judged(open_session) -> None:
    list(open_session([agent(5, 6, 7)])[0].run(3.0))
    other = agent(6, 1, 2)
    session, bench, _ = open_session([other])
    trials = list(session.run(5.0))
    assert numbers(trials) == [6, 5, 7, 1, 2] and [trial.replayed for trial in trials] == [True] * 3 + [False] * 2
    assert bench.judged == [candidate(1, agent="a").digest, candidate(2, agent="a").digest]
