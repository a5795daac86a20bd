"""An agent that fills in a pattern's constants, steered by Optuna's tree-structured Parzen estimator.

It runs one study for the whole range of traffic and one per specialist range that traffic touches, so that the best
kernel for decoding and the best for prefill both survive.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from agents import recall
from agents.brief import Brief
from agents.errors import PatternError
from agents.memory import Remembered
from agents.parameter_space import Values
from agents.pattern_source import PatternSource, Target
from agents.patterns import catalogue
from gristmill.domain import AxisRange
from kernels.candidate import Candidate
from kernels.verdict import Verdict

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 6
"""Random trials before the estimator takes over, the defaults included."""
GUIDED_ATTEMPTS = 8
"""How often the estimator may repeat itself before a neighbour of the best is taken."""
NEIGHBOUR_ATTEMPTS = 30
"""How many neighbours of the best may all be known before a random combination is taken."""
RANDOM_ATTEMPTS = 200
"""How many random combinations may all be known before the space counts as exhausted."""
WHOLE_SHARE = 0.5
"""Weight of the search for one kernel that is good everywhere, against 1 for all specialists together."""


@dataclass
class _Range:
    """The search over one range of the varying axis."""

    target: Target
    weight: float
    """Share of the engine's time spent in the range."""
    study: optuna.Study
    untried: list[Values]
    """What memory holds and the defaults, as far as not proposed yet, best first."""
    random: random.Random
    best: tuple[float, Values] | None = None
    """The highest ratio and its combination."""
    proposed: int = 0
    exhausted: bool = False

    @property
    def order(self) -> tuple[int, float, float]:
        """The range with the least of this proposes next: defaults in turn, then by proposals per share of time."""
        if self.untried:
            return 0, self.proposed, -self.weight
        return 1, (self.proposed + 1) / self.weight, 0.0

    def tell(self, trial: optuna.trial.Trial, verdict: Verdict) -> None:
        import optuna

        if verdict.ratio is None:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        self.study.tell(trial, verdict.ratio)
        self.remember(verdict.ratio, trial.params)

    def remember(self, ratio: float, values: Values) -> None:
        if self.best is None or ratio > self.best[0]:
            self.best = ratio, values


@dataclass
class _Trial:
    range: _Range
    trial: optuna.trial.Trial


@dataclass
class PatternAgent:
    """See `agents.agent.Agent`. The same seed, briefs and verdicts give the same proposals."""

    pattern: PatternSource
    seed: int
    remembered: tuple[Remembered, ...] = ()
    """Candidates of earlier searches. What they promise for this traffic is proposed before the defaults."""
    _ranges: dict[tuple[str, AxisRange], _Range] = field(default_factory=dict)
    """By dtype and range."""
    _open: dict[str, _Trial] = field(default_factory=dict)
    """Trials that wait for a verdict, by candidate digest."""
    _known: set[str] = field(default_factory=set)
    """Digests that were proposed or learned."""
    _learned: list[tuple[Candidate, Verdict]] = field(default_factory=list)
    """Verdicts of an earlier session that came before the range they belong to."""

    @property
    def name(self) -> str:
        return f"pattern:{self.pattern.operator}:{self.pattern.name}"

    @cached_property
    def _names(self) -> set[str]:
        """This agent's name, and those that it has in journals from before its pattern was renamed."""
        former = catalogue.pattern(self.pattern.name).formerly
        return {self.name, *(f"pattern:{self.pattern.operator}:{name}" for name in former)}

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        self._open_ranges(brief)
        proposals: list[Candidate] = []
        while len(proposals) < count:
            ready = [r for r in self._ranges.values() if r.target.dtype == brief.dtype and not r.exhausted]
            if not ready:
                break
            candidate = self._next(min(ready, key=lambda r: r.order))
            if candidate is not None:
                proposals.append(candidate)
        return proposals

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        waiting = self._open.pop(candidate.digest, None)
        if waiting is not None:
            waiting.range.tell(waiting.trial, verdict)
        elif candidate.origin.agent in self._names and candidate.digest not in self._known:
            self._known.add(candidate.digest)
            opened = self._ranges.get(_place(candidate))
            if opened is None:
                self._learned.append((candidate, verdict))
            else:
                self._recall(opened, candidate, verdict)

    def _open_ranges(self, brief: Brief) -> None:
        for tokens, weight in ranges_of(brief, self.pattern).items():
            place = (brief.dtype, tokens)
            if place not in self._ranges:
                target = Target(brief.hardware, brief.cores, brief.dtype, tokens)
                seed = self.seed * 1_000_003 + len(self._ranges)
                untried = self._first_values(brief, target)
                opened = _Range(target, weight, _new_study(seed), untried, random.Random(seed))
                self._ranges[place] = opened
                for candidate, verdict in self._learned:
                    if _place(candidate) == place:
                        self._recall(opened, candidate, verdict)

    def _first_values(self, brief: Brief, target: Target) -> list[Values]:
        """Each combination once: those that were good for workloads near the target's, then the defaults."""
        here = [w for w in brief.workloads if target.tokens.admits(w.axes[self.pattern.varying_axis])]
        own = [one for one in self.remembered if one.candidate.origin.agent in self._names]
        ranked = recall.ranked_for(own, here, [brief.weight(w) for w in here], brief.hardware.key)
        known = [values for one in ranked if (values := self._values_in_space(one.candidate, target)) is not None]
        return _distinct([*_distinct(known)[: recall.FIRST], *self.pattern.defaults(target)])

    def _values_in_space(self, candidate: Candidate, target: Target) -> Values | None:
        """A remembered candidate's constants, if this target allows them: other cores or ranges may not."""
        try:
            values = {name: int(value) for name, value in candidate.origin.parameters.items()}
            self.pattern.space(target).check(values)
        except (ValueError, PatternError):
            return None
        return values

    def _recall(self, opened: _Range, candidate: Candidate, verdict: Verdict) -> None:
        """Hands a range what an earlier session learned about it."""
        import optuna

        if verdict.ratio is None:
            return
        values = {name: int(value) for name, value in candidate.origin.parameters.items()}
        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            parameter.name: optuna.distributions.CategoricalDistribution(parameter.choices)
            for parameter in self.pattern.space(opened.target).parameters
            if parameter.when(values) and values.get(parameter.name) in parameter.choices
        }
        chosen = {name: values[name] for name in distributions}
        opened.study.add_trial(
            optuna.trial.create_trial(params=chosen, distributions=distributions, value=verdict.ratio)
        )
        opened.remember(verdict.ratio, chosen)

    def _next(self, searched: _Range) -> Candidate | None:
        """One new candidate for a range, or None once in a while and at the end."""
        searched.proposed += 1
        while searched.untried:
            candidate = self._ask(searched, searched.untried.pop(0))
            if candidate is not None:
                return candidate
        for _ in range(GUIDED_ATTEMPTS):
            candidate = self._ask(searched)
            if candidate is not None:
                return candidate
        space = self.pattern.space(searched.target)
        for attempt in range(NEIGHBOUR_ATTEMPTS + RANDOM_ATTEMPTS):
            if searched.best is not None and attempt < NEIGHBOUR_ATTEMPTS:
                values = space.neighbour(searched.best[1], searched.random)
            else:
                values = space.sample(searched.random)
            if self.pattern.candidate(searched.target, values, self.name).digest not in self._known:
                return self._ask(searched, values)
        searched.exhausted = True
        return None

    def _ask(self, searched: _Range, values: Values | None = None) -> Candidate | None:
        """Asks the study for one combination (the given one, if any); None if it does not fit or is known."""
        import optuna

        if values is not None:
            searched.study.enqueue_trial(values)
        trial = searched.study.ask()
        space = self.pattern.space(searched.target)
        chosen = space.complete(lambda p: trial.suggest_categorical(p.name, p.choices))
        candidate = self.pattern.candidate(searched.target, chosen, self.name) if space.fits(chosen) else None
        if candidate is None or candidate.digest in self._known:
            searched.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return None
        self._known.add(candidate.digest)
        self._open[candidate.digest] = _Trial(searched, trial)
        return candidate


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


def _new_study(seed: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True)
    return optuna.create_study(direction="maximize", sampler=sampler)
