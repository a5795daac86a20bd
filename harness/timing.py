"""Paired timing: ratios from alternating batches, their interval, and when enough is known. Pure but for its clock."""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness import significance
from kernels.verdict import PairNoise

CONFIDENCE = 0.95
DISTURBED = 1.25
"""By how much a ratio may depend on who goes first; honest kernels differ by 2 to 17 %."""
NORMAL_SPREAD = 1.4826
"""Standard deviation of normal samples over their median distance from the middle."""


@dataclass(frozen=True)
class Interval:
    """A median and the ends of its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Relative to the median."""
        return (self.high - self.low) / (2 * self.median)


@dataclass(frozen=True)
class Pair:
    """Nanoseconds per call of both sides, measured one right after the other."""

    candidate_ns: float
    baseline_ns: float
    candidate_first: bool = True
    """Whether the candidate's batch came before the other's."""

    @property
    def ratio(self) -> float:
        return self.baseline_ns / self.candidate_ns


@dataclass(frozen=True)
class PairedTiming:
    """All pairs of one workload; none is dropped."""

    pairs: tuple[Pair, ...]
    ratio: Interval
    """Of the pairs' ratios, two in a row taken together: one with the candidate first, one with it last."""
    floor: float = 0.0
    """The ratio that is proven: the true one lies above it, with the error that `significance` shares out."""
    spent_s: float = 0.0
    """From the first pair to the last, with all that lay between them."""

    @property
    def candidate_ns(self) -> float:
        return statistics.median(pair.candidate_ns for pair in self.pairs)

    @property
    def baseline_ns(self) -> float:
        return statistics.median(pair.baseline_ns for pair in self.pairs)

    @property
    def noise(self) -> PairNoise:
        """How the pairs differed."""
        logs = np.log([pair.ratio for pair in self.pairs])
        off = np.abs(logs - np.median(logs))
        both = significance.in_both_orders(np.exp(logs))
        return PairNoise(
            variation=NORMAL_SPREAD * float(np.median(off)),
            dependence=significance.dependence(np.log(both)),
            spikes=float(np.mean(off > math.log(significance.SPREAD))),
            drift=self._drift,
            pair_s=self.spent_s / len(self.pairs),
        )

    @property
    def _drift(self) -> float:
        third = max(1, len(self.pairs) // 3)
        parts = self.pairs[:third], self.pairs[-third:]
        first_ns, last_ns = (statistics.median(pair.baseline_ns for pair in part) for part in parts)
        return last_ns / first_ns - 1


class VoidRunError(ValueError):
    """A sample that no clock can give: the run says nothing."""


@dataclass(frozen=True)
class StopRule:
    """When to stop collecting pairs. It is asked at fixed counts of pairs, and when the time is over."""

    min_pairs: int
    max_pairs: int
    budget_s: float
    tolerance: float
    """Stop when the interval's half width is below this share of the median, unless a gain is seen but not proven;"""
    margin: float
    """or when a gain is proven and the interval lies further than this above 1;"""
    gain: float = 0.0
    """or when the interval lies below 1 plus this. A gain is a ratio above 1 plus this."""
    persistent: bool = False
    """A gain is given up only when `significance.upper_bound` excludes it: an interval of few pairs, looked at often,
    excludes many that there are."""
    workloads: int = significance.FAMILY
    """How many are timed in the judgement: among them the error is shared."""

    @property
    def looks(self) -> tuple[int, ...]:
        """The counts of pairs."""
        return significance.looks(self.min_pairs, self.max_pairs)

    def enough(self, ratio: Interval, floor: float, ceiling: float) -> bool:
        """Whether this is known well enough, before pairs or time run out."""
        proven, seen = floor > 1 + self.gain, ratio.low > 1 + self.gain
        if ceiling < 1 + self.gain or (proven and ratio.low > 1 + self.margin):
            return True
        return ratio.half_width < self.tolerance and (proven or not seen)


def bootstrap(samples: ArrayLike) -> Interval:
    """Percentile bootstrap of the median, as it comes out of infinitely many resamples (Efron, 1982, chapter 10).

    Raises:
        VoidRunError: a sample is not finite or not positive, or there is none.
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    if values.size == 0 or not bool(np.isfinite(values[-1]) and values[0] > 0):
        raise VoidRunError(f"samples must be finite and positive, found {values[:5].tolist()}")
    low, high = _median_ranks(values.size)
    middle = (values[(values.size - 1) // 2] + values[values.size // 2]) / 2
    return Interval(float(middle), float(values[low]), float(values[high]))


@functools.cache
def _median_ranks(size: int) -> tuple[int, int]:
    """Which samples, in order, are the ends of the interval.

    The median of a resample lies at or below the k-th of n samples if half of its draws do, and each does with
    probability k/n. Of an even number the lower middle counts for the lower end, and the upper one for the upper.
    """
    half = (size + 1) // 2
    for rank in range(1, size + 1):
        if significance.binomial_tail(size, rank / size, half) > (1 - CONFIDENCE) / 2:
            return rank - 1, size - rank
    raise AssertionError("at the last rank the probability is 1")


def collect(
    measure: Callable[[bool], Pair], rule: StopRule, rng: random.Random, clock_s: Callable[[], float]
) -> PairedTiming:
    """Collects pairs until the rule is content. `measure` is told whether the candidate goes first: of each two pairs
    in a row it does in one, and in which is random.

    Raises:
        VoidRunError: a pair holds a time that is not finite or not positive.
    """
    pairs: list[Pair] = []
    first = False
    start_s = clock_s()
    while True:
        first = not first if len(pairs) % 2 else rng.random() < 0.5
        pair = measure(first)
        for sample in (pair.candidate_ns, pair.baseline_ns):
            if not (math.isfinite(sample) and sample > 0):
                raise VoidRunError(f"a batch took {sample} ns a call")
        pairs.append(pair)
        last = len(pairs) >= rule.max_pairs
        over = last or (clock_s() - start_s >= rule.budget_s and len(pairs) >= rule.min_pairs)
        if over or len(pairs) in rule.looks:
            ratio, floor, ceiling = _look(pairs, rule)
            if over or rule.enough(ratio, floor, ceiling):
                return PairedTiming(tuple(pairs), ratio, floor, clock_s() - start_s)


def _look(pairs: Sequence[Pair], rule: StopRule) -> tuple[Interval, float, float]:
    """The interval; what is proven, which is never more than the interval says; and what is excluded."""
    ratios = np.array([pair.ratio for pair in _undisturbed(pairs)])
    interval = bootstrap(significance.in_both_orders(ratios))
    in_all = len(rule.looks) + 1  # the last may come with the end of the time, at any count
    floor = min(interval.low, significance.lower_bound(ratios, rule.workloads, in_all))
    ceiling = max(interval.high, significance.upper_bound(ratios, in_all)) if rule.persistent else interval.high
    return interval, floor, ceiling


def _undisturbed(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """All pairs, unless the other side is much slower after the candidate than before it: a candidate can empty the
    caches for whoever comes next. Then those in which it came last. Of few pairs, all.
    """
    after, before = ([pair for pair in pairs if pair.candidate_first is first] for first in (True, False))
    if len(pairs) < significance.MANY_PAIRS or not before:
        return pairs
    slowed = statistics.median(p.ratio for p in after) > DISTURBED * statistics.median(p.ratio for p in before)
    return before if slowed else pairs


def batch_size(per_call_ns: float, target_ns: float, sets: int, rng: random.Random) -> int:
    """Calls in a batch that should take `target_ns`: random, at most one per set, at least one."""
    wanted = max(1.0, target_ns / max(per_call_ns, 1.0)) * rng.uniform(1.0, 1.3)
    return max(1, min(sets - rng.randrange(0, max(1, sets // 8)), round(wanted)))
