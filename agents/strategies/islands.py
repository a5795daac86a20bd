"""Evolution on islands: several populations that each keep their own archive, and now and then send their best on.

Islands keep a swarm from turning into copies of the first good idea (as in OpenEvolve and AlphaEvolve). A population is
a MAP-Elites archive; a brief takes its parent from the range of traffic with the most left to save, and sometimes a
second one of another technique to cross it with. What no language model wrote is common ground: every island has it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from agents.brief import Brief, Parent
from agents.stopping import Stopping
from agents.strategies.archive import Archive, Elite
from gristmill.domain import AxisRange
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict

T = TypeVar("T")
ISLANDS = 4
MIGRATE_EVERY = 32
"""Verdicts on candidates of language models between two migrations."""
FRESH = 0.1
"""Share of briefs without parents, so that new ideas keep coming."""
EXPLOIT = 0.5
"""Share of parents that are the best for a workload, by what is left to save in it; the others are drawn from all that
survive in the range alike.
"""
CROSSOVER = 0.35
"""Share of briefs with a second parent."""
REPAIRS = 2
"""How often in a row an agent is handed back an attempt of its own that is not right."""


class Islands:
    """See `agents.strategy.Strategy`. The same seed, briefs and verdicts lead to the same briefs."""

    name = "islands"

    def __init__(self, base: Brief, seed: int = 0) -> None:
        self._islands = [Archive(base) for _ in range(ISLANDS)]
        self._stopping = Stopping(base)
        self._random = random.Random(seed)
        self._homes: dict[str, int] = {}
        """Island by agent, given out in turn."""
        self._failed: dict[str, Parent] = {}
        """By agent: its last attempt, if it was not right and may still be mended."""
        self._failures: Counter[str] = Counter()
        self._judged = 0

    def brief(self, base: Brief, agent: str) -> Brief:
        island = self._islands[self._home(agent)]
        focus = self._focus(island)
        parents = self._parents(island, focus)
        failed = self._failed.get(agent)
        if failed is not None:
            parents = (failed, *parents[:1])
        return replace(base, parents=parents, focus=focus, strategy=self.name)

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self._stopping.learn(verdict)
        agent = candidate.origin.agent
        if not candidate.origin.model:
            for island in self._islands:
                island.add(candidate, verdict)
            return
        self._islands[self._home(agent)].add(candidate, verdict)
        self._remember_failure(agent, Parent(candidate, verdict))
        self._judged += 1
        if self._judged % MIGRATE_EVERY == 0:
            self._migrate()

    def enough(self) -> str:
        return self._stopping.enough()

    def _home(self, agent: str) -> int:
        return self._homes.setdefault(agent, len(self._homes) % ISLANDS)

    def _focus(self, island: Archive) -> AxisRange:
        """A range by what is left to save in it, over all islands."""
        return self._draw(island.ranges, [self._left(island.workloads(one)) for one in island.ranges])

    def _parents(self, island: Archive, focus: AxisRange) -> tuple[Parent, ...]:
        survivors = island.survivors(focus)
        if not survivors or self._random.random() < FRESH:
            return ()
        first = self._random.choice(survivors)
        if self._random.random() < EXPLOIT:
            workloads = [w for w in island.workloads(focus) if island.specialist(w) is not None]
            first = island.specialist(self._draw(workloads, [self._left([w]) for w in workloads])) or first
        if self._random.random() >= CROSSOVER:
            return (first.parent,)
        technique = island.technique(first)
        others = [one for one in island.survivors() if island.technique(one) != technique]
        others = others or [one for one in survivors if one.digest != first.digest]
        return (first.parent, self._random.choice(others).parent) if others else (first.parent,)

    def _left(self, workloads: Sequence[Workload]) -> float:
        return self._stopping.standing.headroom(workloads)

    def _draw(self, choices: Sequence[T], weights: Sequence[float]) -> T:
        return self._random.choices(choices, weights if sum(weights) > 0 else None)[0]

    def _remember_failure(self, agent: str, attempt: Parent) -> None:
        self._failed.pop(agent, None)
        if attempt.verdict.timings:
            self._failures[agent] = 0
            return
        self._failures[agent] += 1
        if self._failures[agent] <= REPAIRS:
            self._failed[agent] = attempt
        else:
            self._failures[agent] = 0

    def _migrate(self) -> None:
        """The best of every range and the best for each workload go to the next island."""
        leaving = [_emigrants(island) for island in self._islands]
        for number, emigrants in enumerate(leaving):
            neighbour = self._islands[(number + 1) % ISLANDS]
            for elite in emigrants:
                neighbour.add(elite.parent.candidate, elite.parent.verdict)


def _emigrants(island: Archive) -> list[Elite]:
    best = [elite for one in island.ranges for elite in island.elites(one)[:1]]
    return [*best, *island.specialists()]
