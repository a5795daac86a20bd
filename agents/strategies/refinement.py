"""Iterative refinement: every agent works on one candidate, sees what the judge said of it, and turns back in time.

Each agent has a lane. The next attempt starts from the last one that was right; one that was wrong is handed back with
its evidence to be mended, a few times. An attempt that lost half of the lane's best gain has diverged: the lane goes
back to its best. So it does after a while without progress, and after twice that it takes up the part of the traffic
with the most left to save, from the best that anybody found for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agents.brief import Brief, Parent
from agents.stopping import Stopping
from agents.strategies.archive import Archive, Elite
from gristmill.domain import AxisRange
from kernels.candidate import Candidate
from kernels.verdict import Verdict

DIVERGED = 0.5
"""Of the lane's best gain: below it an attempt is given up, as KernelAgent does."""
REPAIRS = 3
"""How often in a row an attempt that is not right is handed back."""
PATIENCE = 6
"""Attempts without progress before a lane returns to its best."""


@dataclass
class Lane:
    """One agent's way."""

    focus: AxisRange | None
    current: Elite | None = None
    """From which the next attempt starts."""
    best: Elite | None = None
    failed: Parent | None = None
    """The last attempt, if it was not right and may still be mended."""
    failures: int = 0
    """In a row."""
    idle: int = 0
    """Attempts since the best one."""

    @property
    def parents(self) -> tuple[Parent, ...]:
        """What is to be mended first, then from what it came."""
        base = (self.current.parent,) if self.current is not None else ()
        return (self.failed, *base) if self.failed is not None else base

    def fail(self, attempt: Parent) -> None:
        self.failures += 1
        self.failed = attempt
        if self.failures >= REPAIRS:
            self.idle += 1
            self.revert()

    def succeed(self, attempt: Elite) -> None:
        self.failed, self.failures = None, 0
        if self.best is None or attempt.gain > self.best.gain:
            self.best = self.current = attempt
            self.idle = 0
            return
        self.idle += 1
        self.current = attempt
        if attempt.gain < DIVERGED * self.best.gain or self.idle % PATIENCE == 0:
            self.revert()

    def revert(self) -> None:
        self.current = self.best
        self.failed, self.failures = None, 0


class Refinement:
    """See `agents.strategy.Strategy`."""

    name = "refinement"

    def __init__(self, base: Brief) -> None:
        self._archive = Archive(base)
        self._stopping = Stopping(base)
        self._lanes: dict[str, Lane] = {}

    def brief(self, base: Brief, agent: str) -> Brief:
        lane = self._lane(agent)
        if lane.idle >= 2 * PATIENCE:
            lane = self._lanes[agent] = Lane(self._most_headroom()[0])
        if lane.current is None:
            found = self._archive.elites(lane.focus)
            lane.best = lane.current = found[0] if found else None
        return replace(base, parents=lane.parents, focus=lane.focus, strategy=self.name)

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self._archive.add(candidate, verdict)
        self._stopping.learn(verdict)
        lane = self._lane(candidate.origin.agent)
        attempt = Parent(candidate, verdict)
        if verdict.timings:
            lane.succeed(Elite(attempt, self._archive.gain(verdict, lane.focus)))
        else:
            lane.fail(attempt)

    def enough(self) -> str:
        return self._stopping.enough()

    def _lane(self, agent: str) -> Lane:
        """Lanes begin side by side on the ranges with the most left to save."""
        if agent not in self._lanes:
            ranges = self._most_headroom()
            self._lanes[agent] = Lane(ranges[len(self._lanes) % len(ranges)])
        return self._lanes[agent]

    def _most_headroom(self) -> list[AxisRange]:
        return sorted(self._archive.ranges, key=lambda one: -self._archive.headroom(one))
