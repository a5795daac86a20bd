"""The tuner joins a search once a language model has left constants open, and varies those of the best programs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agents.brief import Brief, Parent
from agents.tunable_source import TunableSource
from agents.tuning_agent import TuningAgent
from kernels.candidate import Candidate
from kernels.verdict import Verdict

FAMILIES = 4
"""Programs that are tuned at the same time: the best ones."""


@dataclass
class Tuner:
    """See `agents.agent.Agent`. A `TuningAgent` that finds its parents among the verdicts by itself."""

    seed: int
    _best: dict[str, tuple[float, Parent]] = field(default_factory=dict)
    """By family of sources: the highest ratio and its candidate."""
    _turns: int = 0

    def __post_init__(self) -> None:
        self._agent = TuningAgent(self.seed)

    @property
    def name(self) -> str:
        return self._agent.name

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        ranked = sorted(self._best, key=lambda family: (-self._best[family][0], family))[:FAMILIES]
        turn = self._turns % max(1, len(ranked))
        self._turns += 1
        parents = tuple(self._best[family][1] for family in (*ranked[turn:], *ranked[:turn]))
        return self._agent.propose(replace(brief, parents=parents), count) if parents else []

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self._agent.learn(candidate, verdict)
        source = TunableSource.of(candidate) if candidate.origin.model else None
        if source is not None and verdict.ratio is not None:
            best = self._best.get(source.family)
            if best is None or verdict.ratio > best[0]:
                self._best[source.family] = verdict.ratio, Parent(candidate, verdict)
