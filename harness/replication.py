"""A judgement in fresh processes, again: what differs between two runners for as long as they live is not a gain.

Which pages a process got, and what else of its surroundings lasts, makes equals differ by some per cent in every pair
of a run, and no statistic over its pairs can see that. Another run draws it anew. So a gain is proven if most of three
runs prove it: where one run in twenty is wrong, fewer than one of a hundred such majorities is. Or if all three show
it, and prove it together: a mean of three is off by less than any of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from gristmill.workload import Workload
from harness.decision import decide
from kernels.candidate import Candidate
from kernels.verdict import Verdict, WorkloadTiming

RUNS = 3


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
) -> Verdict:
    """The verdict of up to three runs: of one without a sign of a gain, of two that prove it or of which the second
    shows none.

    Each timing is the middle one of its runs, by what is proven, or with what they prove together; of two, the lower. A
    run that finds the candidate wrong ends it with that verdict.
    """
    runs: list[Verdict] = []
    open_workloads = list(workloads)
    while len(runs) < RUNS and open_workloads:
        found = judge.judge(candidate, open_workloads, edges=edges and not runs, baseline=baseline)
        if not found.timings:
            return found
        runs.append(found)
        open_workloads = [w for w in open_workloads if _undecided(_of(runs, w), min_gain)]
    timings = tuple(_together(_of(runs, timing.workload), min_gain) for timing in runs[0].timings)
    duration_s = sum(run.duration_s for run in runs)
    return decide(replace(runs[0], timings=timings, duration_s=duration_s), min_gain)


def _of(runs: Iterable[Verdict], workload: Workload) -> list[WorkloadTiming]:
    return [timing for run in runs for timing in run.timings if timing.workload == workload]


def _undecided(timings: Sequence[WorkloadTiming], min_gain: float) -> bool:
    """Whether another run may change what is known: after one, if it shows a gain; after two, unless both prove one, or
    neither does and the second does not even show it.
    """
    proven = sum(timing.ratio_floor > 1 + min_gain for timing in timings)
    if len(timings) == 1:
        return _shown(timings[0], min_gain)
    return proven == 1 or (proven == 0 and _shown(timings[1], min_gain))


def _shown(timing: WorkloadTiming, min_gain: float) -> bool:
    """Whether its ratio is nearer to a gain than to none."""
    return timing.ratio > 1 + min_gain / 2


def _together(timings: Sequence[WorkloadTiming], min_gain: float) -> WorkloadTiming:
    """Of three runs the second by what is proven, or what their mean proves if each shows a gain; of two the lower."""
    middle = sorted(timings, key=lambda timing: timing.ratio_floor)[(len(timings) - 1) // 2]
    if len(timings) < RUNS or not all(_shown(timing, min_gain) for timing in timings):
        return middle
    return replace(middle, ratio_floor=max(middle.ratio_floor, min(middle.ratio, _floor_of_mean(timings))))


def _floor_of_mean(timings: Sequence[WorkloadTiming]) -> float:
    """What is proven of the geometric mean of independent runs: their margins add up as errors do."""
    if min(timing.ratio_floor for timing in timings) <= 0:
        return 0.0
    mean = statistics.fmean(math.log(timing.ratio) for timing in timings)
    margins = (math.log(timing.ratio / timing.ratio_floor) for timing in timings)
    return math.exp(mean - math.hypot(*margins) / len(timings))
