"""What paired timings prove: a bound below the true ratio that holds although one looks often, at many workloads.

The 95 % interval that a verdict reports is for reading. It may not decide: read after every pair, and the best of
several workloads taken, it lies above 1 for identical candidates far more often than in one case of forty. So what is
called `faster` rests on a bound of its own. An error of `FAMILY_ERROR` in all is shared among the workloads of a
judgement, and each share among the looks, which come at fixed counts of pairs (Bonferroni, twice). At a look the bound
is the better of two:

* For any gain: Wilcoxon's signed ranks, inverted (Hodges and Lehmann, 1963): of all averages of two samples the one
  with as many below it as chance allows. It asks of the noise only that it falls to both sides alike, so spikes of any
  height may occur. Neighbouring samples are not independent on a busy host, which would make it too sure; its spread is
  widened by what they have in common (Newey and West, 1987), and each third of the run has to show the gain by itself.
* For large gains, because ranks of few samples prove nothing: noise seldom moves a pair by `SPREAD`; how often, at
  most, is `SPREAD_SHARE`, which `./mill judge --calibrate` checks. Five pairs that all lie beyond it, and within it of
  one another, are decided.

Where a judgement is to find small gains, none is given up on less: the bound above the true ratio is that of ranks too.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FAMILY = 20
"""Workloads that share the error, where nobody says how many there are."""
FAMILY_ERROR = 0.01
"""Chance that any workload of a judgement is called faster than it is, over all looks."""
MISS_ERROR = 0.02
"""Chance that a workload's ratio is taken for lower than it is, over all looks."""
SPREAD = 1.5
SPREAD_SHARE = 0.1
"""Share of pairs at most that noise moves by the factor `SPREAD` in the candidate's favour."""
SPREAD_ERROR_SHARE = 0.25
"""Of the error, what the rule for large gains may spend."""
LOOK_GROWTH = 1.4
MANY_PAIRS = 12
PRECISION = 1e-5
"""Of the bound, as a share."""
PARTS = 3
"""In each of so many parts of a run, one after the other, the median must show the gain: a spell cannot prove it."""
STUDENT_STEPS = 100_001
EXACT_RANKS = 64
"""Up to this many samples the ranks' distribution is computed, beyond it is the normal one, whose tails are heavier."""


@functools.cache
def looks(least: int, most: int) -> tuple[int, ...]:
    """Counts of pairs at which there is a look: from `least` on, each some 40 % more than the last, and `most`."""
    counts = [max(1, min(least, most))]
    while counts[-1] < most:
        following = max(counts[-1] + 1, round(counts[-1] * LOOK_GROWTH))
        counts.append(following if following * 1.2 < most else most)
    return tuple(counts)


def lower_bound(ratios: Array, workloads: int, looks_in_all: int) -> float:
    """A ratio that the true one exceeds, except with this look's share of the error; 0 if nothing is proven.

    Args:
        ratios: of pairs, in the order in which they were measured.
        workloads: how many are timed in the judgement.
    """
    error = FAMILY_ERROR / workloads / looks_in_all
    ranks = _rank_bound(np.log(in_both_orders(ratios)), error * (1 - SPREAD_ERROR_SHARE))
    return max(math.exp(ranks), _spread_bound(ratios, error * SPREAD_ERROR_SHARE))


def upper_bound(ratios: Array, looks_in_all: int) -> float:
    """A ratio that the true one lies below, except with this look's share of `MISS_ERROR`; infinity if too little is
    known.
    """
    return math.exp(-_rank_bound(-np.log(in_both_orders(ratios)), MISS_ERROR / looks_in_all))


def in_both_orders(ratios: Array) -> Array:
    """Geometric means of two pairs in a row, one with the candidate first and one with it last: who goes first is often
    slower, and that cancels. Of few pairs, the pairs themselves; else one without a partner is left out.
    """
    if len(ratios) < MANY_PAIRS:
        return ratios
    whole = len(ratios) // 2 * 2
    return np.sqrt(ratios[:whole:2] * ratios[1:whole:2])


def binomial_tail(size: int, chance: float, least: int) -> float:
    """Probability of at least so many successes."""
    if chance >= 1:
        return 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])
    counts = np.arange(least, size + 1)
    ways = logs[size] - logs[counts] - logs[size - counts]
    return float(np.exp(ways + counts * math.log(chance) + (size - counts) * math.log1p(-chance)).sum())


@functools.cache
def student_quantile(error: float, freedom: int) -> float:
    """What Student's t of so many degrees of freedom exceeds with that chance.

    By the substitution t = sqrt(freedom) tan(a), under which its density is that of cos(a) ** (freedom - 1).
    """
    angles = np.linspace(0, math.pi / 2, STUDENT_STEPS)
    tails = np.cumsum(np.cos(angles[::-1]) ** (freedom - 1))
    place = int(np.searchsorted(tails, 2 * error * tails[-1]))
    return math.sqrt(freedom) * math.tan(float(angles[-1 - place]))


def _spread_bound(ratios: Array, error: float) -> float:
    """The largest ratio that so many pairs exceed by `SPREAD`, or by their own spread, that chance is not the cause."""
    needed = _spread_count(len(ratios), error)
    if needed is None:
        return 0.0
    ordered = np.sort(ratios)
    trimmed = len(ratios) // 10
    return float(ordered[-needed] / max(SPREAD, ordered[-1 - trimmed] / ordered[trimmed]))


@functools.cache
def _spread_count(pairs: int, error: float) -> int | None:
    expected = math.ceil(SPREAD_SHARE * pairs)
    return next((n for n in range(expected, pairs + 1) if binomial_tail(pairs, SPREAD_SHARE, n) <= error), None)


def _rank_bound(samples: Array, error: float) -> float:
    """Lower bound for the centre of symmetry; minus infinity if there are too few samples for that error."""
    size = len(samples)
    if 0.5**size > error:
        return -math.inf
    rank = _critical_rank(size, NormalDist().inv_cdf(1 - error) * math.sqrt(dependence(samples)))
    if rank < 1:
        return -math.inf
    return min(_average_of_rank(samples, rank), *(float(np.median(part)) for part in np.array_split(samples, PARTS)))


def _average_of_rank(samples: Array, rank: int) -> float:
    """The `rank`-th of the averages of two samples, or of one with itself; by `PRECISION` lower at most."""
    ordered = np.sort(samples)
    low, high = float(ordered[0]), float(ordered[-1])
    while high - low > PRECISION:
        middle = (low + high) / 2
        twice = np.searchsorted(ordered, 2 * middle - ordered, side="right").sum()
        twice += np.searchsorted(ordered, middle, side="right")
        low, high = (middle, high) if twice < 2 * rank else (low, middle)
    return low


def _critical_rank(size: int, deviates: float) -> int:
    """How many averages of two samples may lie below their centre, for a tail as likely as a normal one from there."""
    if size <= EXACT_RANKS:
        return int(np.searchsorted(_rank_sums(size), NormalDist().cdf(-deviates), side="right"))
    mean, deviation = size * (size + 1) / 4, math.sqrt(size * (size + 1) * (2 * size + 1) / 24)
    return max(0, math.floor(mean - deviates * deviation))


@functools.cache
def _rank_sums(size: int) -> Array:
    """Cumulative distribution of the sum of the ranks of positive samples, where each is positive by a fair coin."""
    chances = np.ones(1)
    for rank in range(1, size + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return np.cumsum(chances)


def dependence(samples: Array) -> float:
    """By how much the variance of the ranks' sum grows because samples in a row resemble each other, and one standard
    error of that more: at least 1."""
    size = len(samples)
    if size < 4:
        return 1.0
    centred = samples - np.median(samples)
    scores = np.sign(centred) * np.argsort(np.argsort(np.abs(centred)))
    scores = scores - scores.mean()
    own = float(scores @ scores)
    if own == 0:
        return 1.0
    reach = max(1, round(math.sqrt(size)))
    common = sum((1 - lag / (reach + 1)) * float(scores[lag:] @ scores[:-lag]) / own for lag in range(1, reach + 1))
    return max(1.0, 1 + 2 * common) * (1 + math.sqrt(4 / 3 * reach / size))
