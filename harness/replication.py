"""A judgement in fresh processes, again and again: what differs between two runners as long as they live is not a gain.

Which pages a process got, and what else of its surroundings lasts, makes equals differ by one or two per cent in every
pair of a run, and no statistic over its pairs can see that. Another run draws it anew. So a gain is proven by runs
together: their ratios, in logs, scatter about the true one, and the bound is Student's, for the mean. Two or three runs
say little about their own spread, so what runs are known to differ by counts as much as some more of them would (a
scaled inverse chi-squared prior: Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.6). The error is shared
among the workloads and the runs, after each of which there is a look.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gristmill.workload import Workload
from harness import significance
from harness.decision import decide
from kernels.candidate import Candidate
from kernels.verdict import Verdict, WorkloadTiming

RUNS = 16
RUN_SPREAD = 0.02
"""By which runs of one pair of kernels differ, as a standard deviation of logs: 1 to 2.5 % by workload and load."""
SPREAD_WEIGHT = 4
"""As many runs as this knowledge is worth."""
MANY_RUNS = 5
"""From so many on, the highest and the lowest count as their neighbours do: now and then a run is off by a tenth."""
LEAST_RUNS = 2
"""That may prove a gain."""
PROVEN_SHARE = 0.5
"""Of the least gain of one run, what runs together must prove: the other half is room for what differs between the two
sides in all runs; what differs between runs is in the bound."""
SOUGHT = 2.0
"""Times the least gain of one run is the gain that is to be found: runs go on until that much is excluded."""
READ_ERROR = 0.025
"""Of either end of the interval that is for reading."""


class Judging(Protocol):
    """What is needed of a judge. Each judgement has runners of its own."""

    def judge(
        self, candidate: Candidate, workloads: Sequence[Workload], *, edges: bool, baseline: str | Candidate
    ) -> Verdict: ...


def judge_repeatedly(
    judge: Judging,
    candidate: Candidate,
    workloads: Sequence[Workload],
    min_gain: float,
    *,
    edges: bool = True,
    baseline: str | Candidate = "eager",
    report: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """The verdict of up to `RUNS` runs of those workloads of which it is not known yet whether there is a gain.

    Ratios are means of logs over the runs, with the mean's interval; times are those of the run in the middle. A run
    that finds the candidate wrong ends it with that verdict.
    """
    runs: list[Verdict] = []
    open_workloads = list(workloads)
    while len(runs) < RUNS and open_workloads:
        report(f"run {len(runs) + 1} of {RUNS} at most: {len(open_workloads)} of {len(workloads)} workloads are open")
        found = judge.judge(candidate, open_workloads, edges=edges and not runs, baseline=baseline)
        if not found.timings:
            return found
        runs.append(found)
        open_workloads = [w for w in open_workloads if not _settled(_of(runs, w), min_gain, len(workloads))]
    timings = tuple(_together(_of(runs, workload), len(workloads)) for workload in workloads)
    duration_s = sum(run.duration_s for run in runs)
    return decide(replace(runs[0], timings=timings, duration_s=duration_s), PROVEN_SHARE * min_gain)


@dataclass(frozen=True)
class _Mean:
    """Of the logs of independent runs' ratios; of many, the winsorized one (Tukey and McLaughlin, 1963)."""

    log: float
    error: float
    """Its standard error."""
    freedom: int
    """Degrees of it, for Student's distribution."""

    @classmethod
    def of(cls, logs: Sequence[float]) -> _Mean:
        kept = sorted(logs)
        lost = 0
        if len(kept) >= MANY_RUNS:
            kept[0], kept[-1], lost = kept[1], kept[-2], 2
        mean = statistics.fmean(kept)
        freedom = SPREAD_WEIGHT + len(kept) - lost - 1
        scatter = SPREAD_WEIGHT * RUN_SPREAD**2 + sum((log - mean) ** 2 for log in kept)
        return cls(mean, math.sqrt(scatter / freedom / len(logs)), freedom)

    def margin(self, error: float) -> float:
        """How far the true one lies below it, or above it, at most, except with that chance."""
        return significance.student_quantile(error, self.freedom) * self.error


def _of(runs: Iterable[Verdict], workload: Workload) -> list[WorkloadTiming]:
    return [timing for run in runs for timing in run.timings if timing.workload == workload]


def _settled(timings: Sequence[WorkloadTiming], min_gain: float, workloads: int) -> bool:
    """Whether a gain is proven, or one that is worth finding is excluded."""
    if len(timings) >= LEAST_RUNS and _floor(timings, workloads) > 1 + PROVEN_SHARE * min_gain:
        return True
    mean = _Mean.of([math.log(timing.ratio) for timing in timings])
    return mean.log + mean.margin(significance.MISS_ERROR / RUNS) < math.log1p(SOUGHT * min_gain)


def _floor(timings: Sequence[WorkloadTiming], workloads: int) -> float:
    """The ratio that runs prove together, less what each candidate could have saved itself of the judge's own work."""
    mean = _Mean.of([math.log(timing.ratio / (1 + timing.link_share)) for timing in timings])
    return math.exp(mean.log - mean.margin(significance.FAMILY_ERROR / workloads / RUNS))


def _together(timings: Sequence[WorkloadTiming], workloads: int) -> WorkloadTiming:
    middle = sorted(timings, key=lambda timing: timing.ratio)[(len(timings) - 1) // 2]
    mean = _Mean.of([math.log(timing.ratio) for timing in timings])
    margin = mean.margin(READ_ERROR)
    return replace(
        middle,
        ratio=math.exp(mean.log),
        ratio_low=math.exp(mean.log - margin),
        ratio_high=math.exp(mean.log + margin),
        pairs=sum(timing.pairs for timing in timings),
        ratio_floor=_floor(timings, workloads),
    )
