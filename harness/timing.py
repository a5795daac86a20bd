"""Paired timing: ratios from alternating batches, their interval, and when enough is known. Pure but for its clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
CONFIDENCE = 0.95


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

    @property
    def ratio(self) -> float:
        return self.baseline_ns / self.candidate_ns


@dataclass(frozen=True)
class PairedTiming:
    """All pairs of one workload."""

    pairs: tuple[Pair, ...]
    ratio: Interval

    @property
    def candidate_ns(self) -> float:
        return float(np.median([pair.candidate_ns for pair in self.pairs]))

    @property
    def baseline_ns(self) -> float:
        return float(np.median([pair.baseline_ns for pair in self.pairs]))


class VoidRunError(ValueError):
    """A sample that no clock can give: the run says nothing."""


@dataclass(frozen=True)
class StopRule:
    """When to stop collecting pairs."""

    min_pairs: int
    max_pairs: int
    budget_s: float
    tolerance: float
    """Stop when the interval's half width is below this share of the median ..."""
    margin: float
    """... or when the whole interval is further than this from 1, on either side."""

    def enough(self, ratio: Interval, pairs: int, spent_s: float) -> bool:
        if pairs < self.min_pairs:
            return False
        if pairs >= self.max_pairs or spent_s >= self.budget_s:
            return True
        decided = ratio.low > 1 + self.margin or ratio.high < 1 - self.margin
        return decided or ratio.half_width < self.tolerance


def bootstrap(samples: Sequence[float], seed: int, resamples: int = RESAMPLES) -> Interval:
    """Percentile bootstrap of the median.

    Raises:
        VoidRunError: a sample is not finite or not positive, or there is none.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0 or not bool(np.all(np.isfinite(values) & (values > 0))):
        raise VoidRunError(f"samples must be finite and positive, found {values[:5].tolist()}")
    picks = np.random.default_rng(seed).integers(0, values.size, size=(resamples, values.size))
    medians = np.median(values[picks], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median(values)), float(low), float(high))


def collect(
    measure: Callable[[bool], Pair], rule: StopRule, rng: random.Random, clock_s: Callable[[], float]
) -> PairedTiming:
    """Collects pairs until the rule is content. `measure` is told whether the candidate goes first: that is random.

    Raises:
        VoidRunError: a pair holds a time that is not finite or not positive.
    """
    pairs: list[Pair] = []
    start_s = clock_s()
    while True:
        pair = measure(rng.random() < 0.5)
        for sample in (pair.candidate_ns, pair.baseline_ns):
            if not (math.isfinite(sample) and sample > 0):
                raise VoidRunError(f"a batch took {sample} ns a call")
        pairs.append(pair)
        ratio = bootstrap([pair.ratio for pair in pairs], seed=len(pairs))
        if rule.enough(ratio, len(pairs), clock_s() - start_s):
            return PairedTiming(tuple(pairs), ratio)


def batch_size(per_call_ns: float, target_ns: float, sets: int, rng: random.Random) -> int:
    """Calls in a batch that should take `target_ns`: random, at most one per set, at least one."""
    wanted = max(1.0, target_ns / max(per_call_ns, 1.0)) * rng.uniform(1.0, 1.3)
    return max(1, min(sets - rng.randrange(0, max(1, sets // 8)), round(wanted)))
