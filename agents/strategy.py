"""The seam between a search and how it is led: which brief the next proposal gets, and when enough was tried."""

from __future__ import annotations

from typing import Protocol

from agents.brief import Brief
from kernels.candidate import Candidate
from kernels.verdict import Verdict


class Strategy(Protocol):
    """Leads the agents of one search. One thread at a time calls it; many briefs may be out at once."""

    @property
    def name(self) -> str: ...

    def brief(self, base: Brief, agent: str) -> Brief:
        """What this agent is to do next: `base` with pattern, parents and focus filled in. Writes that agents compare
        (an LLM's, a pattern agent's) come from one archive, so each may build on the other's.
        """
        ...

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        """Takes in a verdict, of whoever proposed it; also those replayed from a journal, in order."""
        ...

    def enough(self) -> str:
        """Why the search may end before its budget does, in a few words; empty while it should go on."""
        ...
