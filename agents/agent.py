"""The seam between a search and whoever proposes candidates."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from agents.brief import Brief
from kernels.candidate import Candidate
from kernels.verdict import Verdict

MOST_AGENTS = 256
"""That ask language models in one search: each has a thread, and one judge serves them all."""


class Agent(Protocol):
    """Proposes candidates and learns from their verdicts. One thread at a time calls it.

    Several proposals may be out before the first verdict comes back, in any order or never. An agent
    proposes no candidate twice, and none that it has learned of.
    """

    @property
    def name(self) -> str:
        """Stands in the origin of every candidate it proposes."""
        ...

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        """At most `count` candidates; fewer, or none, when it has nothing new to offer.

        Raises:
            BudgetSpentError: what it would cost passes a cap.
            ModelError: its model gave no answer; unless it was refused, to propose later may help.
        """
        ...

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        """Takes in a verdict. It may be on a candidate of an earlier session, or of another agent."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """An agent that can say more than that it has nothing to offer."""

    @property
    def why_nothing(self) -> str:
        """What its attempts since its last candidate came to, in words; empty if there was none."""
        ...
