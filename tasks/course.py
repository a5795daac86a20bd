"""The course of a session: how it ended, where its time went, and who left it or waited for a provider."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.agent_thread import Departure


@dataclass
class Course:
    """What became of a session."""

    ended: str = ""
    """Why it ended before its seconds were over; empty if it did not."""
    spent: bool = False
    """Whether that was a cap of the budget, which holds for the whole search."""
    judging_s: float = 0.0
    """Spent judging, without waits for the compiler."""
    starved_s: float = 0.0
    """Without anything to judge or to compile: no agent had something for the judge."""
    elapsed_s: float = 0.0
    """Of this life, from the first brief to the end of the judging."""
    unjudged: int = 0
    """Proposals that have no verdict; they are on record."""
    departures: list[Departure] = field(default_factory=list)
    waiting: int = 0
    """Agents that waited for their provider when the session ended."""

    def why_nothing(self, budget_s: float) -> str:
        """Why a session of so many seconds judged nothing, in one line."""
        return f"{self._what_stopped_it(budget_s)}{self._who_left()}"

    def _what_stopped_it(self, budget_s: float) -> str:
        if self.ended:
            return self.ended
        over = f"its {budget_s:.3g} s were over before"
        if self.unjudged:
            return f"{over} the first of {self.unjudged} proposals had a verdict; give it more seconds (--budget-s)"
        if self.waiting:
            return f"{over} a model had answered; {self.waiting} agents were waiting for their provider"
        return f"{over} an agent had proposed a candidate; give it more seconds (--budget-s)"

    def _who_left(self) -> str:
        if not self.departures:
            return ""
        return f" ({len(self.departures)} agents left, the last one because of: {self.departures[-1].reason})"

    def share(self, seconds: float) -> float:
        """Of the elapsed time."""
        return seconds / self.elapsed_s if self.elapsed_s else 0.0
