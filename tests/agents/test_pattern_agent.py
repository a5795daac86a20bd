"""Pattern agents keep the agents' contract, cover traffic with specialists, and find what is good."""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod

import pytest

from agents.agent import Agent
from agents.brief import Brief
from agents.pattern_agent import PatternAgent, ranges_of
from agents.pattern_source import PatternSource, Target
from agents.sources import catalogue, skinny_linear
from agents.swarm import pattern_agents
from gristmill.domain import AxisRange
from gristmill.hardware import Hardware
from gristmill.workload import Workload, dense
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict

HARDWARE = Hardware("x86_64-test", "test", 4, ("avx2", "fma", "avx512f"))


def linear(tokens: int, time_ns: int = 1000, dtype: str = "float32") -> Workload:
    axes = {"tokens": tokens, "in_features": 64, "out_features": 32}
    return Workload(
        "skinny_linear", dtype, axes, (dense((tokens, 64), dtype), dense((32, 64), dtype)), calls=1, time_ns=time_ns
    )


def brief_for(*workloads: Workload) -> Brief:
    return Brief("skinny_linear", "float32", workloads, HARDWARE, 4, bandwidth_gb_s=25.0, gflop_s=100.0)


def verdict_on(candidate: Candidate, ratio: float | None) -> Verdict:
    status = Status.CRASHED if ratio is None else Status.FASTER if ratio > 1 else Status.SLOWER
    return Verdict(status, "synthetic", candidate.digest, candidate.operator, ratio)


def synthetic_ratio(candidate: Candidate) -> float:
    """A made-up machine: wide vectors, many sums and two threads are good, everything else costs a little."""
    value = {name: int(text) for name, text in candidate.origin.parameters.items()}
    sums = value["ROWS"] * value["TOKENS"]
    return 3.0 - abs(sums - 24) / 12 - (value["LANES"] != 16) - 0.3 * (value["THREADS"] != 2) - 0.1 * value["K_UNROLL"]


class AgentContract(ABC):
    """What every agent keeps. Subclasses say how to make one."""

    brief = brief_for(linear(1), linear(4), linear(16))

    @abstractmethod
    def make(self, seed: int) -> Agent: ...

    def test_proposes_at_most_what_is_asked(self) -> None:
        agent = self.make(1)
        assert agent.propose(self.brief, 0) == []
        for count in (1, 3, 7):
            assert 1 <= len(agent.propose(self.brief, count)) <= count

    def test_proposals_fit_the_brief_and_name_the_agent(self) -> None:
        agent = self.make(1)
        for candidate in agent.propose(self.brief, 12):
            assert candidate.operator == self.brief.operator
            assert candidate.domain.dtype == self.brief.dtype
            assert candidate.origin.agent == agent.name
            assert any(candidate.domain.admits(workload) for workload in self.brief.workloads)

    def test_no_candidate_twice_whatever_the_verdicts(self) -> None:
        agent = self.make(2)
        chance = random.Random(3)
        waiting: list[Candidate] = []
        seen: list[str] = []
        for _ in range(12):
            proposed = agent.propose(self.brief, 4)
            seen += [candidate.digest for candidate in proposed]
            waiting += proposed
            chance.shuffle(waiting)
            for candidate in waiting[: chance.randrange(len(waiting) + 1)]:
                agent.learn(candidate, verdict_on(candidate, chance.choice([None, 0.5, 2.0])))
                waiting.remove(candidate)
        assert len(seen) == len(set(seen)) == 48

    def test_same_seed_same_proposals(self) -> None:
        runs = []
        for _ in range(2):
            agent = self.make(5)
            digests = []
            for _ in range(5):
                for candidate in agent.propose(self.brief, 4):
                    digests.append(candidate.digest)
                    agent.learn(candidate, verdict_on(candidate, synthetic_ratio_or_one(candidate)))
            runs.append(digests)
        assert runs[0] == runs[1]

    def test_proposes_nothing_that_it_learned_of(self) -> None:
        known = self.make(7).propose(self.brief, 10)
        agent = self.make(7)
        for candidate in known:
            agent.learn(candidate, verdict_on(candidate, 1.5))
        again = agent.propose(self.brief, 10)
        assert not {c.digest for c in known} & {c.digest for c in again}


def synthetic_ratio_or_one(candidate: Candidate) -> float:
    return synthetic_ratio(candidate) if "ROWS" in candidate.origin.parameters else 1.0


class TestRowsAgent(AgentContract):
    def make(self, seed: int) -> Agent:
        return PatternAgent(skinny_linear.ROWS, seed)


class TestPanelsAgent(AgentContract):
    def make(self, seed: int) -> Agent:
        return PatternAgent(skinny_linear.PANELS, seed)


def test_ranges_follow_traffic() -> None:
    brief = brief_for(linear(1, 600), linear(8, 300), linear(500, 100))
    ranges = ranges_of(brief, skinny_linear.ROWS)
    assert list(ranges) == [AxisRange("tokens", 1, 8), AxisRange("tokens", 1, 1), AxisRange("tokens", 5, 8)]
    assert [ranges[r] for r in list(ranges)[1:]] == pytest.approx([0.6, 0.3])


def test_one_range_needs_no_whole() -> None:
    assert list(ranges_of(brief_for(linear(3)), skinny_linear.ROWS)) == [AxisRange("tokens", 2, 4)]


def test_traffic_outside_every_range_ends_the_agent() -> None:
    assert PatternAgent(skinny_linear.ROWS, 1).propose(brief_for(linear(5000)), 3) == []


def test_each_range_starts_with_its_default() -> None:
    brief = brief_for(linear(1), linear(8), linear(16))
    first = PatternAgent(skinny_linear.ROWS, 1).propose(brief, 4)
    assert {c.domain.ranges[0] for c in first} == set(ranges_of(brief, skinny_linear.ROWS))
    for candidate in first:
        defaults = skinny_linear.ROWS.defaults(target_of(candidate))[0]
        assert candidate.origin.parameters == {name: str(value) for name, value in defaults.items()}


def target_of(candidate: Candidate) -> Target:
    return Target(HARDWARE, 4, "float32", candidate.domain.ranges[0])


def test_time_decides_who_searches_more() -> None:
    brief = brief_for(linear(1, 900), linear(8, 100))
    proposed = PatternAgent(skinny_linear.ROWS, 1).propose(brief, 60)
    by_range = [sum(c.domain.ranges[0] == r for c in proposed) for r in ranges_of(brief, skinny_linear.ROWS)]
    assert by_range[1] > 2 * by_range[2]


def test_the_search_improves() -> None:
    """Against a made-up machine on which the defaults are mediocre: the later half beats the first, and chance."""
    agent = PatternAgent(skinny_linear.ROWS, 11)
    brief = brief_for(linear(16))
    ratios: list[float] = []
    for _ in range(20):
        for candidate in agent.propose(brief, 3):
            ratios.append(synthetic_ratio(candidate))
            agent.learn(candidate, verdict_on(candidate, ratios[-1]))
    early, late = ratios[:20], ratios[40:]
    assert sum(late) / len(late) > sum(early) / len(early)
    assert max(ratios) >= 2.5


def test_a_small_space_is_exhausted_once() -> None:
    pattern = catalogue.sources_for("softmax", "float32")[0]
    hardware = Hardware("none", "test", 1, ())
    workload = Workload("softmax", "float32", {"rows": 4, "columns": 8}, (dense((4, 8), "float32"),), 1, 1)
    brief = Brief("softmax", "float32", (workload,), hardware, 1, 10.0, 10.0)
    agent = PatternAgent(pattern, 1)
    proposed: list[Candidate] = []
    while batch := agent.propose(brief, 50):
        proposed += batch
    target = proposed_target(pattern, hardware)
    assert len(proposed) == sum(1 for _ in pattern.space(target).all())
    assert agent.propose(brief, 5) == []


def proposed_target(pattern: PatternSource, hardware: Hardware) -> Target:
    return Target(hardware, 1, "float32", AxisRange("rows", *pattern.specialists[0]))


def test_an_earlier_session_steers() -> None:
    """Verdicts of a killed run are told to the new agent's study, so it need not start from chance."""
    brief = brief_for(linear(16))
    first = PatternAgent(skinny_linear.ROWS, 1)
    history = [(c, verdict_on(c, synthetic_ratio(c))) for c in first.propose(brief, 40)]
    resumed = PatternAgent(skinny_linear.ROWS, 2)
    for candidate, verdict in history:
        resumed.learn(candidate, verdict)
    untouched = PatternAgent(skinny_linear.ROWS, 2)
    steered = [synthetic_ratio(c) for c in resumed.propose(brief, 15)]
    chance = [synthetic_ratio(c) for c in untouched.propose(brief, 15)]
    assert sum(steered) > sum(chance)


def test_verdicts_that_come_after_the_start_count_too() -> None:
    brief = brief_for(linear(16))
    known = PatternAgent(skinny_linear.ROWS, 1).propose(brief, 20)
    agent = PatternAgent(skinny_linear.ROWS, 9)
    agent.propose(brief, 1)
    for candidate in known:
        agent.learn(candidate, verdict_on(candidate, synthetic_ratio(candidate)))
    later = agent.propose(brief, 20)
    assert not {c.digest for c in known} & {c.digest for c in later}


def test_dtypes_do_not_mix() -> None:
    agent = PatternAgent(skinny_linear.ROWS, 1)
    agent.propose(brief_for(linear(4)), 2)
    other = Brief("skinny_linear", "bfloat16", (linear(4, dtype="bfloat16"),), HARDWARE, 4, 25.0, 100.0)
    assert {c.domain.dtype for c in agent.propose(other, 4)} == {"bfloat16"}


def test_the_swarm_has_an_agent_per_pattern() -> None:
    agents = pattern_agents(brief_for(linear(1)), seed=1)
    assert [agent.name for agent in agents] == [
        "pattern:skinny_linear:register-blocking",
        "pattern:skinny_linear:weight-packing",
    ]


def test_a_source_for_a_niche_is_asked_only_where_the_traffic_has_some() -> None:
    def names(out_features: int) -> set[str]:
        axes = {"tokens": 4, "in_features": 4096, "out_features": out_features}
        layouts = (dense((4, 4096), "float32"), dense((out_features, 4096), "float32"))
        workload = Workload("skinny_linear", "float32", axes, layouts, calls=1, time_ns=1)
        return {agent.name for agent in pattern_agents(brief_for(workload), seed=1)}

    assert names(8) - names(4096) == {"pattern:skinny_linear:split-k"}
    assert "pattern:skinny_linear:register-blocking" in names(8) & names(4096)


def test_journals_from_before_a_pattern_was_renamed_count() -> None:
    brief = brief_for(linear(16))
    old = [
        dataclasses.replace(c, origin=dataclasses.replace(c.origin, agent="pattern:skinny_linear:row-dot-products"))
        for c in PatternAgent(skinny_linear.ROWS, 1).propose(brief, 5)
    ]
    agent = PatternAgent(skinny_linear.ROWS, 1)
    for candidate in old:
        agent.learn(candidate, verdict_on(candidate, 1.5))
    assert not {c.digest for c in old} & {c.digest for c in agent.propose(brief, 5)}
