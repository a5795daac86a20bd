"""A judgement in fresh processes, again: what differs between two runners for as long as they live is not a gain.

Which pages a process got, and what else of its surroundings lasts, makes equals differ by some per cent in every pair
of a run, and no statistic over its pairs can see that. Another run draws it anew. So a gain is proven if most of
three runs prove it: where one run in twenty is wrong, fewer than one of a hundred such majorities is.
"""

from __future__ import annotations

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
    """The verdict of up to three runs: of one where there is no sign of a gain, of the third where two disagree.

    Each timing is the middle one of its runs, by what is proven; where two agree, the lower. A run that finds the
    candidate wrong ends it with that verdict.
    """
    runs: list[Verdict] = []
    open_workloads = list(workloads)
    while len(runs) < RUNS and open_workloads:
        found = judge.judge(candidate, open_workloads, edges=edges and not runs, baseline=baseline)
        if not found.timings:
            return found
        runs.append(found)
        open_workloads = [w for w in open_workloads if _undecided(_of(runs, w), min_gain)]
    timings = tuple(_middle(_of(runs, timing.workload)) for timing in runs[0].timings)
    duration_s = sum(run.duration_s for run in runs)
    return decide(replace(runs[0], timings=timings, duration_s=duration_s), min_gain)


def _of(runs: Iterable[Verdict], workload: Workload) -> list[WorkloadTiming]:
    return [timing for run in runs for timing in run.timings if timing.workload == workload]


def _undecided(timings: Sequence[WorkloadTiming], min_gain: float) -> bool:
    """After one run: whether its ratio is nearer to a gain than to none. After two: whether they disagree."""
    if len(timings) == 1:
        return timings[0].ratio > 1 + min_gain / 2
    return len({timing.ratio_floor > 1 + min_gain for timing in timings}) > 1


def _middle(timings: Sequence[WorkloadTiming]) -> WorkloadTiming:
    """Of three the second; of two the lower."""
    return sorted(timings, key=lambda timing: timing.ratio_floor)[(len(timings) - 1) // 2]
