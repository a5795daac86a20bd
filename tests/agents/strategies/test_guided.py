"""A guided strategy leads as its strategy does, and gives every brief of a language model a pattern."""

from __future__ import annotations

from agents.bandit import PatternBandit
from agents.strategies.guided import Guided
from agents.strategies.islands import Islands
from agents.strategies.refinement import Refinement
from agents.strategy import Strategy
from tests.agents.search_world import brief, candidate, failure, verdict
from tests.agents.strategies.test_strategies import AGENTS, SpecialistsSurvive, course

PATTERNS = ("split-k", "weight-packing", "online-softmax")


class TestGuidedIslands(SpecialistsSurvive):
    def make(self, seed: int = 0) -> Strategy:
        return Guided(Islands(brief(), seed), PatternBandit({}, seed), PATTERNS, ())


def test_briefs_of_models_follow_patterns_that_apply_and_others_do_not() -> None:
    guided = Guided(Islands(brief()), PatternBandit({}, 0), PATTERNS, AGENTS)
    chosen = {guided.brief(brief(), AGENTS[0]).pattern for _ in range(20)}
    assert chosen == set(PATTERNS)
    assert guided.brief(brief(), "pattern:rms_norm:rows").pattern == ""
    assert Guided(Islands(brief()), PatternBandit({}, 0), (), AGENTS).brief(brief(), AGENTS[0]).pattern == ""


def test_what_works_is_chosen_more_often() -> None:
    guided = Guided(Islands(brief()), PatternBandit({}, 3), PATTERNS, AGENTS)
    for number in range(30):
        one = candidate(number, AGENTS[0], pattern=PATTERNS[number % 3])
        ratio = 4.0 if number % 3 == 1 else 0.8
        guided.learn(one, verdict(one, decode=ratio, prefill=ratio))
    chosen = [guided.brief(brief(), AGENTS[1]).pattern for _ in range(40)]
    assert chosen.count(PATTERNS[1]) > 20


def test_an_attempt_that_is_to_be_mended_keeps_its_pattern() -> None:
    guided = Guided(Refinement(brief()), PatternBandit({}, 0), PATTERNS, AGENTS)
    for number, pattern in enumerate(PATTERNS):
        broken = candidate(number, AGENTS[number], pattern=pattern)
        guided.learn(broken, failure(broken))
    for agent, pattern in zip(AGENTS, PATTERNS, strict=True):
        assert guided.brief(brief(), agent).pattern == pattern


def test_an_attempt_with_a_technique_of_its_own_is_mended_without_a_pattern() -> None:
    guided = Guided(Refinement(brief()), PatternBandit({}, 0), PATTERNS, AGENTS)
    broken = candidate(0, AGENTS[0], pattern="my own trick")
    guided.learn(broken, failure(broken))
    mending = guided.brief(brief(), AGENTS[0])
    assert mending.parents[0].candidate == broken
    assert mending.pattern == ""


def test_the_course_of_the_strategy_stays_the_same() -> None:
    plain, guided = Islands(brief(), 5), Guided(Islands(brief(), 5), PatternBandit({}, 9), PATTERNS, AGENTS)
    for one, found in course(5):
        expected, asked = plain.brief(brief(), one.origin.agent), guided.brief(brief(), one.origin.agent)
        assert (asked.parents, asked.focus, asked.strategy) == (expected.parents, expected.focus, expected.strategy)
        plain.learn(one, found)
        guided.learn(one, found)
    assert guided.name == plain.name and guided.enough() == plain.enough()
