"""Best of n: independent tries, none of which is told of the others. What a model finds without any search."""

from __future__ import annotations

from dataclasses import replace

from agents.brief import Brief
from agents.stopping import Stopping
from agents.strategies.archive import Archive
from kernels.candidate import Candidate
from kernels.verdict import Verdict


class BestOfN:
    """See `agents.strategy.Strategy`. Asks for the whole of the traffic and for each of its ranges in turn."""

    name = "best-of-n"

    def __init__(self, base: Brief, *, most: int | None = None) -> None:
        """
        Args:
            most: verdicts after which it is enough; without it the budget says.
        """
        self._archive = Archive(base)
        self._stopping = Stopping(base)
        ranges = self._archive.ranges
        self._foci = (None, *ranges) if len(ranges) > 1 else (None,)
        self._asked: dict[str, int] = {}
        self._most = most
        self._learned = 0

    def brief(self, base: Brief, agent: str) -> Brief:
        asked = self._asked.get(agent, 0)
        self._asked[agent] = asked + 1
        place = list(self._asked).index(agent) + asked
        return replace(base, parents=(), feedback=(), focus=self._foci[place % len(self._foci)], strategy=self.name)

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self._learned += 1
        self._archive.add(candidate, verdict)
        self._stopping.learn(verdict)

    def enough(self) -> str:
        if self._most is not None and self._learned >= self._most:
            return f"{self._learned} candidates were judged"
        return self._stopping.enough()
