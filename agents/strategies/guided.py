"""A strategy whose briefs follow patterns, chosen by what memory and this search know of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from agents.bandit import PatternBandit
from agents.brief import Brief
from agents.patterns import catalogue
from agents.strategy import Strategy
from kernels.candidate import Candidate
from kernels.verdict import Verdict


class Guided:
    """See `agents.strategy.Strategy`; leads as the one it is given does.

    An attempt that is handed back to be mended stays with its pattern, or without one where its author named a
    technique of its own; every other brief gets one from the bandit.
    """

    def __init__(
        self, strategy: Strategy, bandit: PatternBandit, patterns: Sequence[str], guided: Collection[str]
    ) -> None:
        """
        Args:
            patterns: names of those that apply.
            guided: names of the agents to lead; the others know their pattern.
        """
        self._strategy = strategy
        self._bandit = bandit
        self._patterns = tuple(patterns)
        self._guided = frozenset(guided)
        self._best_ratio = 1.0

    @property
    def name(self) -> str:
        return self._strategy.name

    def brief(self, base: Brief, agent: str) -> Brief:
        brief = self._strategy.brief(base, agent)
        if agent not in self._guided or not self._patterns:
            return brief
        mended = next((parent for parent in brief.parents[:1] if not parent.verdict.timings), None)
        if mended is not None:
            named = mended.candidate.origin.pattern
            return replace(brief, pattern=named if catalogue.is_known(named) else "")
        return replace(brief, pattern=self._bandit.choose(self._patterns, self._best_ratio))

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self._strategy.learn(candidate, verdict)
        self._best_ratio = max(self._best_ratio, verdict.ratio or 0.0)
        if candidate.origin.pattern:
            self._bandit.learn(catalogue.canonical(candidate.origin.pattern), verdict.ratio)

    def enough(self) -> str:
        return self._strategy.enough()
