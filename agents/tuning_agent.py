"""An agent that tunes what others left open: it takes its parents from the brief, and varies their marked constants."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from agents.brief import Brief, Parent
from agents.parameter_study import ParameterStudy
from agents.tunable_source import TunableSource
from kernels.candidate import Candidate
from kernels.verdict import Verdict


@dataclass
class TuningAgent:
    """See `agents.agent.Agent`. The same seed, briefs and verdicts give the same proposals.

    There is one study per family of sources: a parent that differs from an earlier one in its constants only goes on
    with what was learned. Parents without marked constants, or without a ratio, are passed over; with none left there
    is nothing to propose until a brief brings others.
    """

    seed: int
    name: str = "tuning"
    _studies: dict[str, ParameterStudy] = field(default_factory=dict)
    """By family."""
    _known: set[str] = field(default_factory=set)
    """Digests that were proposed or learned."""
    _learned: dict[str, list[tuple[TunableSource, float]]] = field(default_factory=dict)
    """Ratios by family that came before its study was opened."""

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        proposals: list[Candidate] = []
        for study in [study for parent in brief.parents if (study := self._study(parent)) is not None]:
            while len(proposals) < count and not study.exhausted:
                candidate = study.next()
                if candidate is not None:
                    proposals.append(candidate)
        return proposals

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        if any(study.tell(candidate, verdict) for study in self._studies.values()):
            return
        if candidate.digest in self._known:
            return
        self._known.add(candidate.digest)
        source = TunableSource.of(candidate)
        if source is None or verdict.ratio is None:
            return
        if source.family in self._studies:
            self._studies[source.family].recall(source.values, verdict.ratio)
        else:
            self._learned.setdefault(source.family, []).append((source, verdict.ratio))

    def _study(self, parent: Parent) -> ParameterStudy | None:
        """The study that a parent belongs to, opened if need be; None if there is nothing to tune."""
        source = TunableSource.of(parent.candidate)
        if source is None or parent.verdict.ratio is None:
            return None
        self.learn(parent.candidate, parent.verdict)
        if source.family not in self._studies:
            seed = self.seed * 1_000_003 + len(self._studies)
            make = functools.partial(source.variant, agent=self.name)
            study = ParameterStudy(source.space, make, (), self._known, seed)
            self._studies[source.family] = study
            for learned, ratio in self._learned.pop(source.family, []):
                study.recall(learned.values, ratio)
        return self._studies[source.family]
