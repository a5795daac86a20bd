"""Which pattern to try next: Thompson sampling with expected improvement as the reward.

An arm is a pattern. Its candidates build and answer right with a probability that has a Beta posterior; the logarithm
of their ratio over the baseline is taken as normal around a mean of its own, with one variance for all arms, since
it is constants that make candidates of one pattern differ. Means and variance have a normal-inverse-gamma posterior
(K. Murphy, "Conjugate Bayesian analysis of the Gaussian distribution", 2007). A choice draws the deviation s, and
probability p and mean m of each arm, from their posteriors (Thompson, 1933) and takes the arm with the highest

    p * ((m - b) * Phi(z) + s * phi(z)),    z = (m - b) / s,    b = log of the best ratio so far,

which is p times the expected improvement over the best (Jones, Schonlau and Welch, 1998): how likely times how large.
What counts is thus judged against today's best, while the evidence, ratios over the baseline, keeps its meaning from
one search to the next. Old outcomes fade (discounted Thompson sampling: Raj and Kalyani, 2017), within a search by a
factor per verdict, in memory by time. Other operators and other hardware count less, the farther they are.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agents.memory import Evidence, PatternRecord, family_of

PRIOR_WEIGHT = 0.5
"""Candidates' worth of belief that a pattern is as fast as the baseline: its log-ratio is 0."""
PRIOR_SHAPE, PRIOR_SCALE = 2.0, 0.16
"""Inverse-gamma of the variance: log-ratios deviate by 0.4, a factor of 1.5."""
FADE = 0.98
"""What each verdict of this search leaves of the weight of those before it."""
EVERY = 3
"""One choice in so many goes to an arm that was never tried, as long as there is one: none is starved."""
OWN_CAP = 30.0
NEIGHBOUR_CAP = 6.0
"""So many candidates' worth of memory at most: of this operator and hardware, and of all others. More would take this
search too long to contradict."""
WORST_RATIO = 0.25
"""What is slower counts as this: one hopeless candidate must not make its pattern look varied."""
HALF_LIFE_MS = 30 * 86_400_000.0
"""After so long an outcome in memory counts half."""
NOTHING = Evidence()


@dataclass(frozen=True)
class Prior:
    """What memory knows of one arm."""

    own: Evidence = NOTHING
    """Of this operator on this hardware."""
    neighbours: Evidence = NOTHING
    """Of others, discounted."""


class PatternBandit:
    """Chooses among patterns. The same seed, priors, calls and verdicts give the same choices; for one thread."""

    def __init__(self, priors: Mapping[str, Prior], seed: int) -> None:
        self._neighbours = {name: _capped(prior.neighbours, NEIGHBOUR_CAP) for name, prior in priors.items()}
        self._own = {name: _capped(prior.own, OWN_CAP) for name, prior in priors.items() if prior.own.tried > 0}
        self._tried = set(self._own)
        self._choices = 0
        self._random = random.Random(seed)

    def choose(self, patterns: Sequence[str], best_ratio: float) -> str:
        """One of `patterns`, which may be others each time and need no prior.

        Args:
            best_ratio: baseline time over the best candidate's so far, on the traffic at hand; 1 if there is none.

        Raises:
            ValueError: there are no patterns to choose from.
        """
        self._choices += 1
        untried = [name for name in patterns if name not in self._tried]
        arms = untried if untried and self._choices % EVERY == 0 else patterns
        best = math.log(max(best_ratio, 1.0))
        deviation = self._draw_deviation()
        chosen = max(arms, key=lambda name: self._draw_reward(name, deviation, best))
        self._tried.add(chosen)
        return chosen

    def learn(self, pattern: str, ratio: float | None) -> None:
        """Takes in a verdict: its traffic-weighted ratio, None if the candidate was not correct."""
        self._own = {name: evidence.scaled(FADE) for name, evidence in self._own.items()}
        self._own[pattern] = self._own.get(pattern, NOTHING) + evidence_of(ratio)
        self._tried.add(pattern)

    def evidence(self, pattern: str) -> Evidence:
        """All that is held of an arm."""
        return self._own.get(pattern, NOTHING) + self._neighbours.get(pattern, NOTHING)

    def _draw_deviation(self) -> float:
        arms = [self.evidence(name) for name in sorted({*self._own, *self._neighbours})]
        shape = PRIOR_SHAPE + sum(evidence.correct for evidence in arms) / 2
        scale = PRIOR_SCALE + sum(_spread(evidence) for evidence in arms) / 2
        return math.sqrt(scale / self._random.gammavariate(shape, 1.0))

    def _draw_reward(self, pattern: str, deviation: float, best: float) -> tuple[float, float]:
        """The reward as the posterior lets us dream it; the mean decides where no arm has any hope left."""
        evidence = self.evidence(pattern)
        works = self._random.betavariate(1 + evidence.correct, 1 + max(0.0, evidence.tried - evidence.correct))
        weight = PRIOR_WEIGHT + evidence.correct
        mean = self._random.gauss(evidence.log_ratios / weight, deviation / math.sqrt(weight))
        return works * expected_improvement(mean, deviation, best), mean


def evidence_of(ratio: float | None) -> Evidence:
    """What one verdict says of its pattern."""
    if ratio is None:
        return Evidence(tried=1.0)
    value = math.log(max(ratio, WORST_RATIO))
    return Evidence(1.0, 1.0, value, value * value)


def expected_improvement(mean: float, deviation: float, best: float) -> float:
    """Of a normal variable over `best`, never negative."""
    z = (mean - best) / deviation
    below = 0.5 * math.erfc(-z / math.sqrt(2))
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return max(0.0, (mean - best) * below + deviation * density)


def priors(records: Iterable[PatternRecord], operator: str, hardware: str, now_ms: int) -> dict[str, Prior]:
    """What memory's records say of each pattern, for a search of this operator on this hardware."""
    own: defaultdict[str, Evidence] = defaultdict(Evidence)
    others: defaultdict[str, Evidence] = defaultdict(Evidence)
    for record in sorted(records, key=lambda r: (r.pattern, r.operator, r.hardware)):
        weight = nearness(record.operator, record.hardware, operator, hardware)
        side = own if weight == 1 else others
        side[record.pattern] += faded(record.evidence, record.as_of_ms, now_ms).scaled(weight)
    return {name: Prior(own[name], others[name]) for name in sorted({*own, *others})}


def nearness(operator: str, hardware: str, wanted_operator: str, wanted_hardware: str) -> float:
    """How much an outcome there says about one here: 1 only for the same operator and hardware."""
    if operator == wanted_operator:
        of_operator = 1.0
    else:
        of_operator = 0.3 if family_of(operator) == family_of(wanted_operator) else 0.1
    return of_operator * _nearness_of_hardware(hardware, wanted_hardware)


def faded(evidence: Evidence, as_of_ms: int, now_ms: int) -> Evidence:
    """Evidence as it counts at a later time; what comes from the future, off a wrong clock, counts in full."""
    return evidence.scaled(0.5 ** (max(0, now_ms - as_of_ms) / HALF_LIFE_MS))


def _nearness_of_hardware(hardware: str, wanted: str) -> float:
    """By key: architecture first, widest vector feature last; see `gristmill.hardware.Hardware`."""
    if hardware == wanted:
        return 1.0
    parts, other = hardware.split("-"), wanted.split("-")
    if parts[0] != other[0]:
        return 0.1
    return 0.5 if parts[-1] == other[-1] else 0.25


def _capped(evidence: Evidence, tried: float) -> Evidence:
    return evidence.scaled(min(1.0, tried / evidence.tried)) if evidence.tried > 0 else evidence


def _spread(evidence: Evidence) -> float:
    """Sum of squares around the arm's own mean, and of that mean around the prior's, which is 0."""
    return max(0.0, evidence.squares - evidence.log_ratios**2 / (PRIOR_WEIGHT + evidence.correct))
