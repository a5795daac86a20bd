"""An agent that fills in a pattern's constants; see `agents.parameter_study` for how it is steered.

It runs one study for the whole range of traffic and one per specialist range that traffic touches, so that the best
kernel for decoding and the best for prefill both survive.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from agents import recall
from agents.brief import Brief
from agents.errors import PatternError
from agents.memory import CandidateEntry, Remembered
from agents.parameter_space import Values
from agents.parameter_study import ParameterStudy
from agents.pattern_source import PatternSource, Target
from agents.patterns import catalogue
from gristmill.domain import AxisRange
from kernels.candidate import Candidate
from kernels.verdict import Verdict

WHOLE_SHARE = 0.5
"""Weight of the search for one kernel that is good everywhere, against 1 for all specialists together."""


@dataclass
class _Range:
    """The search over one range of the varying axis."""

    target: Target
    weight: float
    """Share of the engine's time spent in the range."""
    study: ParameterStudy

    @property
    def order(self) -> tuple[int, float, float]:
        """The range with the least of this proposes next: first values in turn, then by proposals per share of time."""
        if self.study.untried:
            return 0, self.study.proposed, -self.weight
        return 1, (self.study.proposed + 1) / self.weight, 0.0


@dataclass
class PatternAgent:
    """See `agents.agent.Agent`. The same seed, briefs and verdicts give the same proposals."""

    pattern: PatternSource
    seed: int
    remembered: tuple[Remembered, ...] = ()
    """Candidates of earlier searches. What they promise for this traffic is proposed before the defaults."""
    _ranges: dict[tuple[str, AxisRange], _Range] = field(default_factory=dict)
    """By dtype and range."""
    _known: set[str] = field(default_factory=set)
    """Digests that were proposed or learned."""
    _learned: list[tuple[Candidate, Verdict]] = field(default_factory=list)
    """Verdicts of an earlier session that came before the range they belong to."""

    @property
    def name(self) -> str:
        return f"pattern:{self.pattern.operator}:{self.pattern.name}"

    @functools.cached_property
    def _names(self) -> set[str]:
        """This agent's name, and those that it has in journals from before its pattern was renamed."""
        former = catalogue.pattern(self.pattern.name).formerly
        return {self.name, *(f"pattern:{self.pattern.operator}:{name}" for name in former)}

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        self._open_ranges(brief)
        proposals: list[Candidate] = []
        while len(proposals) < count:
            ready = [r for r in self._ranges.values() if r.target.dtype == brief.dtype and not r.study.exhausted]
            if not ready:
                break
            candidate = min(ready, key=lambda r: r.order).study.next()
            if candidate is not None:
                proposals.append(candidate)
        return proposals

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        if any(opened.study.tell(candidate, verdict) for opened in self._ranges.values()):
            return
        if candidate.origin.agent in self._names and candidate.digest not in self._known:
            self._known.add(candidate.digest)
            opened = self._ranges.get(_place(candidate))
            if opened is None:
                self._learned.append((candidate, verdict))
            else:
                _recall(opened.study, candidate, verdict)

    def _open_ranges(self, brief: Brief) -> None:
        for tokens, weight in ranges_of(brief, self.pattern).items():
            place = (brief.dtype, tokens)
            if place not in self._ranges:
                target = Target(brief.hardware, brief.cores, brief.dtype, tokens)
                seed = self.seed * 1_000_003 + len(self._ranges)
                make = functools.partial(self.pattern.candidate, target, agent=self.name)
                first = _distinct([*self._known_values(brief, target), *self.pattern.defaults(target)])
                study = ParameterStudy(self.pattern.space(target), make, first, self._known, seed)
                self._ranges[place] = _Range(target, weight, study)
                for candidate, verdict in self._learned:
                    if _place(candidate) == place:
                        _recall(study, candidate, verdict)

    def rewritten(self, brief: Brief) -> list[tuple[Candidate, CandidateEntry]]:
        """Each remembered candidate of this agent, written anew for each range of the brief's traffic whose target
        allows its constants, with what speaks for it.
        """
        targets = [
            Target(brief.hardware, brief.cores, brief.dtype, tokens) for tokens in ranges_of(brief, self.pattern)
        ]
        return [
            (self.pattern.candidate(target, values, self.name), one.entry)
            for one in self._own
            for target in targets
            if (values := self._values_in_space(one.candidate, target)) is not None
        ]

    def _known_values(self, brief: Brief, target: Target) -> list[Values]:
        """Remembered combinations that were good for workloads near the target's, the best first."""
        here = [w for w in brief.workloads if target.tokens.admits(w.axes[self.pattern.varying_axis])]
        ranked = recall.ranked_for(self._own, here, [brief.weight(w) for w in here], brief.hardware.key)
        known = [values for one in ranked if (values := self._values_in_space(one.candidate, target)) is not None]
        return _distinct(known)[: recall.FIRST]

    @property
    def _own(self) -> list[Remembered]:
        return [one for one in self.remembered if one.candidate.origin.agent in self._names]

    def _values_in_space(self, candidate: Candidate, target: Target) -> Values | None:
        """A remembered candidate's constants, if this target allows them: other cores or ranges may not."""
        try:
            values = {name: int(value) for name, value in candidate.origin.parameters.items()}
            self.pattern.space(target).check(values)
        except (ValueError, PatternError):
            return None
        return values


def _recall(study: ParameterStudy, candidate: Candidate, verdict: Verdict) -> None:
    """Hands a study what an earlier session learned."""
    if verdict.ratio is not None:
        study.recall({name: int(value) for name, value in candidate.origin.parameters.items()}, verdict.ratio)


def _distinct(combinations: Iterable[Values]) -> list[Values]:
    return [dict(values) for values in dict.fromkeys(tuple(sorted(values.items())) for values in combinations)]


def _place(candidate: Candidate) -> tuple[str, AxisRange]:
    """Which search a candidate of ours belongs to."""
    return candidate.domain.dtype, candidate.domain.ranges[0]


def ranges_of(brief: Brief, pattern: PatternSource) -> dict[AxisRange, float]:
    """The ranges worth searching, with their share of time: everything that traffic shows first, then each
    specialist range with traffic in it, if there is more than one. Traffic outside the pattern's ranges is left out.
    """
    axis = pattern.varying_axis
    shares = {
        AxisRange(axis, low, high): sum(brief.weight(w) for w in brief.workloads if low <= w.axes[axis] <= high)
        for low, high in pattern.specialists
    }
    touched = {tokens: share for tokens, share in shares.items() if share > 0}
    if len(touched) < 2:
        return touched
    return {AxisRange(axis, min(r.low for r in touched), max(r.high for r in touched)): WHOLE_SHARE, **touched}
