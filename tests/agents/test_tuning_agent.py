"""Tuning agents vary what a parent leaves open, whoever wrote it, and find what is good."""

from __future__ import annotations

import random

from agents.brief import Brief, Parent
from agents.tunable_source import TunableSource, marked
from agents.tuning_agent import TuningAgent
from gristmill.domain import Domain
from kernels.candidate import Candidate, Language, Origin
from kernels.verdict import Status
from tests.agents.conversation_world import KERNEL, brief_for, verdict_on

OPEN = """constexpr int ROWS = 4;  // tune: 1, 2, 4, 8
constexpr int UNROLL = 1;  // tune: 1, 2, 4, 8
constexpr int PREFETCH = 0;  // tune: 0, 4, 8, 16
"""


def written(text: str = OPEN, model: str = "test/model") -> Candidate:
    files = marked({"main.cpp": text + KERNEL}, Language.CPP, {})
    return Candidate("rms_norm", Language.CPP, files, Domain("rms_norm", "float32"), Origin("llm:a", "p", model=model))


def made_up(candidate: Candidate) -> float:
    """A made-up machine on which 8 rows and 4 at a time are good, and prefetching costs."""
    source = TunableSource.of(candidate)
    assert source is not None
    values = source.values
    return 3.0 - abs(values["ROWS"] - 8) / 8 - abs(values["UNROLL"] - 4) / 8 - values["PREFETCH"] / 32


def brief_with(*parents: Candidate) -> Brief:
    return brief_for(parents=tuple(Parent(parent, verdict_on(parent, ratio=1.2)) for parent in parents))


def test_proposes_variants_of_its_parent() -> None:
    parent = written()
    agent = TuningAgent(1)
    proposed = agent.propose(brief_with(parent), 5)
    assert len({c.digest for c in proposed} | {parent.digest}) == 6
    for variant in proposed:
        assert variant.origin.agent == "tuning"
        assert variant.origin.parents == (parent.digest,)
        assert variant.origin.model == "test/model"
        assert variant.domain == parent.domain
        assert variant.files["main.cpp"].endswith(KERNEL)


def test_no_candidate_twice_until_the_space_is_exhausted() -> None:
    parent = written("constexpr int ROWS = 4;  // tune: 1, 2, 4, 8\nconstexpr int UNROLL = 1;  // tune: 1, 2\n")
    agent, chance = TuningAgent(2), random.Random(3)
    seen: list[str] = []
    while batch := agent.propose(brief_with(parent), 3):
        seen += [candidate.digest for candidate in batch]
        for candidate in batch:
            if chance.random() < 0.7:
                agent.learn(candidate, verdict_on(candidate, chance.choice(list(Status)), chance.choice([None, 1.5])))
    assert len(seen) == len(set(seen)) == 7
    assert parent.digest not in seen


def test_the_search_improves() -> None:
    agent, parent = TuningAgent(4), written()
    ratios: list[float] = []
    for _ in range(12):
        for candidate in agent.propose(brief_with(parent), 3):
            ratios.append(made_up(candidate))
            agent.learn(candidate, verdict_on(candidate, ratio=ratios[-1]))
    assert sum(ratios[18:]) / len(ratios[18:]) > sum(ratios[:18]) / 18
    assert max(ratios) > 2.7


def test_a_variant_as_parent_goes_on_with_the_same_study() -> None:
    agent, parent = TuningAgent(5), written()
    first = agent.propose(brief_with(parent), 4)
    again = agent.propose(brief_with(first[0]), 60)
    assert not {c.digest for c in first} & {c.digest for c in again}
    assert len(first) + len(again) == 4 * 4 * 4 - 1


def test_what_was_learned_before_the_parent_came_counts() -> None:
    """As after a restart: verdicts of the journal first, then a brief."""
    before, parent = TuningAgent(6), written()
    judged = [(c, verdict_on(c, ratio=made_up(c))) for c in before.propose(brief_with(parent), 25)]
    resumed = TuningAgent(7)
    for candidate, verdict in judged:
        resumed.learn(candidate, verdict)
    steered = resumed.propose(brief_with(parent), 10)
    chance = TuningAgent(7).propose(brief_with(parent), 10)
    assert not {c.digest for c, _ in judged} & {c.digest for c in steered}
    assert sum(map(made_up, steered)) > sum(map(made_up, chance))


def test_nothing_to_tune() -> None:
    agent = TuningAgent(8)
    plain, open_source = written(""), written()
    assert agent.propose(brief_for(), 3) == []
    assert agent.propose(brief_with(plain), 3) == []
    failed = Parent(open_source, verdict_on(open_source, Status.INCORRECT, None))
    assert agent.propose(brief_for(parents=(failed,)), 3) == []
    assert len(agent.propose(brief_with(plain, open_source), 3)) == 3


def test_the_first_parent_comes_first() -> None:
    first, second = written(), written(OPEN + "// other\n")
    proposed = TuningAgent(9).propose(brief_with(first, second), 4)
    assert {c.origin.parents for c in proposed} == {(first.digest,)}


def test_same_seed_same_proposals() -> None:
    runs = []
    for _ in range(2):
        agent = TuningAgent(10)
        digests = []
        for _ in range(4):
            for candidate in agent.propose(brief_with(written()), 3):
                digests.append(candidate.digest)
                agent.learn(candidate, verdict_on(candidate, ratio=made_up(candidate)))
        runs.append(digests)
    assert runs[0] == runs[1]
