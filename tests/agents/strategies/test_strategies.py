"""Every strategy keeps the contract: briefs that can be searched, parents that were judged, the same course again."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import replace

import pytest

from agents.brief import Brief
from agents.errors import BriefError
from agents.strategies.best_of_n import BestOfN
from agents.strategies.catalogue import NAMES, strategy
from agents.strategies.islands import ISLANDS, MIGRATE_EVERY, Islands
from agents.strategies.refinement import DIVERGED, PATIENCE, REPAIRS, Refinement
from agents.strategy import Strategy
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict
from tests.agents.search_world import DECODE, PREFILL, brief, candidate, failure, verdict

AGENTS = ("llm:one", "llm:two", "llm:three")


def course(seed: int, length: int = 60) -> list[tuple[Candidate, Verdict]]:
    """A made-up search: decode specialists, prefill specialists, generalists and failures."""
    chance = random.Random(seed)
    judged = []
    for number in range(length):
        one = candidate(number, chance.choice(AGENTS), pattern=chance.choice(("split-k", "packing", "")))
        ratios = {"decode": chance.uniform(0.5, 4.0), "prefill": chance.uniform(0.5, 3.0)}
        kind = chance.random()
        if kind < 0.3:
            judged.append((one, failure(one)))
        else:
            kept = ratios if kind < 0.6 else dict([chance.choice(list(ratios.items()))])
            judged.append((one, verdict(one, **kept)))
    return judged


class StrategyContract(ABC):
    """What every strategy keeps. Subclasses say how to make one."""

    @abstractmethod
    def make(self, seed: int = 0) -> Strategy: ...

    def test_it_has_a_name_of_its_own_that_its_briefs_tell(self) -> None:
        made = self.make()
        assert made.name in NAMES
        assert made.brief(brief(), AGENTS[0]).strategy == made.name
        assert strategy(made.name, brief(), 0).name == made.name

    def test_the_first_brief_asks_for_something_new(self) -> None:
        assert self.make().brief(brief(), AGENTS[0]).parents == ()

    def test_only_how_to_search_is_filled_in(self) -> None:
        made, base = self.make(), replace(brief(), feedback=("a line",), pattern="split-k")
        for one, judged in course(1):
            asked = made.brief(base, one.origin.agent)
            blank = replace(asked, parents=(), focus=None, strategy="", feedback=())
            assert blank == replace(base, feedback=())
            assert asked.focus is None or any(asked.focus.admits(w.axes["tokens"]) for w in base.workloads)
            made.learn(one, judged)

    def test_parents_were_judged_and_come_with_their_verdicts(self) -> None:
        made = self.make()
        judged: dict[str, Verdict] = {}
        for one, found in course(2):
            parents = made.brief(brief(), one.origin.agent).parents
            assert len({parent.candidate.digest for parent in parents}) == len(parents) <= 2
            for parent in parents:
                assert judged[parent.candidate.digest] == parent.verdict
            made.learn(one, found)
            judged[one.digest] = found

    def test_nobody_is_handed_the_failures_of_another_agent(self) -> None:
        made = self.make()
        for one, found in course(3):
            for parent in made.brief(brief(), one.origin.agent).parents:
                assert parent.verdict.timings or parent.candidate.origin.agent == one.origin.agent
            made.learn(one, found)

    def test_the_same_verdicts_lead_to_the_same_briefs(self) -> None:
        first, second = self.make(7), self.make(7)
        for one, found in course(4):
            assert first.brief(brief(), one.origin.agent) == second.brief(brief(), one.origin.agent)
            first.learn(one, found)
            second.learn(one, found)

    def test_a_replayed_search_goes_on_from_what_it_knew(self) -> None:
        """Verdicts of an earlier life come before any brief was asked for."""
        made = self.make()
        for one, found in course(5):
            made.learn(one, found)
        for agent in (*AGENTS, "llm:new"):
            made.brief(brief(), agent)
        assert made.enough() == ""

    def test_a_search_at_the_roofline_is_enough(self) -> None:
        made = self.make()
        assert made.enough() == ""
        one = candidate(1, AGENTS[0])
        made.learn(one, verdict(one, decode=2.0, prefill=2.0, roofline=0.5))
        assert made.enough() == ""
        two = candidate(2, AGENTS[0])
        made.learn(two, verdict(two, decode=4.0, prefill=4.0, roofline=0.99))
        assert "roofline" in made.enough()

    def test_a_search_that_only_fails_goes_on_without_parents_that_are_right(self) -> None:
        made = self.make()
        for number in range(20):
            one = candidate(number, AGENTS[number % 3])
            assert not any(parent.verdict.timings for parent in made.brief(brief(), one.origin.agent).parents)
            made.learn(one, failure(one))
        assert made.enough() == ""


class SpecialistsSurvive(StrategyContract):
    """Of the strategies that build on what was found."""

    def test_specialists_for_decode_and_for_prefill_both_become_parents(self) -> None:
        made = self.make()
        decoding = candidate(1, "pattern:a", pattern="split-k", model="")
        filling = candidate(2, "pattern:a", pattern="split-k", model="")
        both = candidate(3, "pattern:a", pattern="split-k", model="")
        made.learn(decoding, verdict(decoding, decode=3.0))
        made.learn(filling, verdict(filling, prefill=2.0))
        made.learn(both, verdict(both, decode=1.5, prefill=1.5))
        asked = [made.brief(brief(), f"llm:{number}") for number in range(40)]
        shown = {parent.candidate.digest for one in asked for parent in one.parents[:1]}
        assert {decoding.digest, filling.digest} <= shown

    def test_a_language_model_may_rewrite_what_a_pattern_agent_found(self) -> None:
        made = self.make()
        found = candidate(1, "pattern:rms_norm:rows", model="")
        made.learn(found, verdict(found, decode=2.0, prefill=2.0))
        shown = [made.brief(brief(), f"llm:{number}").parents for number in range(20)]
        assert any(parents and parents[0].candidate.digest == found.digest for parents in shown)

    def test_a_failed_attempt_is_handed_back_with_its_evidence_and_not_for_ever(self) -> None:
        made = self.make()
        handed = 0
        for number in range(12):
            one = candidate(number, AGENTS[0])
            made.learn(one, failure(one))
            parents = made.brief(brief(), AGENTS[0]).parents
            if parents:
                assert parents[0].candidate.digest == one.digest and parents[0].verdict.status is Status.BUILD_FAILED
                handed += 1
        assert 0 < handed < 12


class TestBestOfN(StrategyContract):
    def make(self, seed: int = 0) -> Strategy:
        return BestOfN(brief())

    def test_tries_are_independent(self) -> None:
        made = self.make()
        for one, found in course(8):
            made.learn(one, found)
            asked = made.brief(replace(brief(), feedback=("a line",)), AGENTS[0])
            assert asked.parents == () and asked.feedback == ()

    def test_all_parts_of_the_traffic_get_their_turn(self) -> None:
        made = self.make()
        foci = [made.brief(brief(), AGENTS[0]).focus for _ in range(6)]
        assert len(set(foci[:3])) == 3 and foci[:3] == foci[3:]

    def test_n_is_enough(self) -> None:
        made = BestOfN(brief(), most=3)
        for one, found in course(9, 3):
            assert made.enough() == ""
            made.learn(one, found)
        assert made.enough() == "3 candidates were judged"


class TestRefinement(SpecialistsSurvive):
    def make(self, seed: int = 0) -> Strategy:
        return Refinement(brief())

    def attempt(self, made: Strategy, number: int, ratio: float | None) -> Candidate:
        one = candidate(number, AGENTS[0])
        judged = failure(one) if ratio is None else verdict(one, decode=ratio, prefill=ratio)
        made.learn(one, judged)
        return one

    def first_parent(self, made: Strategy) -> str:
        return made.brief(brief(), AGENTS[0]).parents[0].candidate.digest

    def test_it_walks_on_from_a_small_loss_and_back_from_a_large_one(self) -> None:
        made = self.make()
        best = self.attempt(made, 1, 3.0)
        near = self.attempt(made, 2, 2.9)
        assert self.first_parent(made) == near.digest
        self.attempt(made, 3, 3.0 * DIVERGED * 0.9)
        assert self.first_parent(made) == best.digest

    def test_repairs_end_and_the_best_comes_back(self) -> None:
        made = self.make()
        best = self.attempt(made, 1, 2.0)
        for number in range(2, 1 + REPAIRS):
            broken = self.attempt(made, number, None)
            parents = made.brief(brief(), AGENTS[0]).parents
            assert [parent.candidate.digest for parent in parents] == [broken.digest, best.digest]
        self.attempt(made, 1 + REPAIRS, None)
        assert [parent.candidate.digest for parent in made.brief(brief(), AGENTS[0]).parents] == [best.digest]

    def test_without_progress_it_returns_to_its_best_and_then_moves_to_what_is_left(self) -> None:
        made = self.make()
        best = self.attempt(made, 1, 2.0)
        for number in range(PATIENCE):
            self.attempt(made, 10 + number, 1.9)
        assert self.first_parent(made) == best.digest
        other = candidate(99, "pattern:x", model="")
        made.learn(other, verdict(other, decode=2.5))
        for number in range(PATIENCE):
            assert made.brief(brief(), AGENTS[0]).focus.admits(DECODE.axes["tokens"])
            self.attempt(made, 30 + number, 1.9)
        moved = made.brief(brief(), AGENTS[0])
        assert moved.focus.admits(PREFILL.axes["tokens"])
        assert moved.parents[0].candidate.digest == best.digest

    def test_lanes_are_spread_over_the_traffic(self) -> None:
        made = self.make()
        assert len({made.brief(brief(), agent).focus for agent in AGENTS[:2]}) == 2


class TestIslands(SpecialistsSurvive):
    def make(self, seed: int = 0) -> Strategy:
        return Islands(brief(), seed)

    def seen_by(self, made: Strategy, agent: str, rounds: int = 40) -> set[str]:
        return {parent.candidate.digest for _ in range(rounds) for parent in made.brief(brief(), agent).parents}

    def test_what_an_island_finds_reaches_the_others_by_migration_only(self) -> None:
        made = self.make()
        agents = [f"llm:{number}" for number in range(ISLANDS)]
        for agent in agents:
            made.brief(brief(), agent)
        found = candidate(0, agents[0])
        made.learn(found, verdict(found, decode=3.0, prefill=3.0))
        assert found.digest in self.seen_by(made, agents[0])
        assert all(found.digest not in self.seen_by(made, agent) for agent in agents[1:])
        for number in range(1, MIGRATE_EVERY):
            one = candidate(number, agents[0])
            made.learn(one, failure(one))
        assert found.digest in self.seen_by(made, agents[1])
        assert found.digest not in self.seen_by(made, agents[2])

    def test_two_techniques_are_crossed(self) -> None:
        made = self.make()
        for number, pattern in enumerate(("split-k", "packing")):
            one = candidate(number, AGENTS[0], pattern=pattern)
            made.learn(one, verdict(one, decode=2.0 + number, prefill=2.0))
        crossed = [asked.parents for _ in range(60) if len((asked := made.brief(brief(), AGENTS[0])).parents) == 2]
        assert crossed
        for first, second in crossed:
            assert first.candidate.origin.pattern != second.candidate.origin.pattern

    def test_another_seed_is_another_course(self) -> None:
        def parents(seed: int) -> list[tuple[str, ...]]:
            made = self.make(seed)
            told = []
            for one, found in course(6):
                made.learn(one, found)
                told.append(tuple(p.candidate.digest for p in made.brief(brief(), one.origin.agent).parents))
            return told

        assert parents(1) == parents(1) != parents(2)

    def test_most_briefs_are_for_where_time_is_left(self) -> None:
        made = self.make()
        one = candidate(1, "pattern:a", model="")
        made.learn(one, verdict(one, decode=4.0, roofline=1.0))
        foci = [made.brief(brief(), AGENTS[0]).focus for _ in range(40)]
        assert all(focus is not None and focus.admits(PREFILL.axes["tokens"]) for focus in foci)


def test_an_unknown_strategy_is_one_clear_error() -> None:
    with pytest.raises(BriefError, match=r"'annealing'.*islands, refinement, best-of-n") as raised:
        strategy("annealing", brief(), 0)
    assert "\n" not in str(raised.value)
    assert isinstance(brief(), Brief)
