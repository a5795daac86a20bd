"""What most of three runs prove, and no more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.workload import Workload
from harness import probes
from harness.decision import decide
from harness.replication import RUNS, judge_repeatedly
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming

CANDIDATE = probes.probe("rms_norm")
WORKLOADS = probes.workloads()[:3]
GAIN = 0.02


class Runs:
    """A judge whose runs prove what they are told to, by run and workload."""

    def __init__(self, floors: Sequence[Sequence[float]], wrong_in: int = -1) -> None:
        self.floors, self.wrong_in = floors, wrong_in
        self.asked: list[tuple[tuple[Workload, ...], bool]] = []

    def judge(
        self, candidate: Candidate, workloads: Sequence[Workload], *, edges: bool, baseline: str | Candidate
    ) -> Verdict:
        number = len(self.asked)
        self.asked.append((tuple(workloads), edges))
        blank = Verdict(Status.INCORRECT, "wrong", candidate.digest, candidate.operator, duration_s=1.0)
        if number == self.wrong_in:
            return blank
        floors = self.floors[number]
        timings = tuple(
            WorkloadTiming(w, f * 1.05, f, f * 1.1, 100.0, 105.0 * f, 20, 0.5, 1.0, ratio_floor=f)
            for w, f in ((w, floors[WORKLOADS.index(w)]) for w in workloads)
        )
        return decide(replace(blank, timings=timings), GAIN)


def test_two_runs_that_agree_are_enough() -> None:
    judge = Runs([(1.2, 0.9, 1.0), (1.1, 0.95, 0.99)])
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN)
    assert verdict.status is Status.FASTER and verdict.duration_s == 2
    assert [timing.ratio_floor for timing in verdict.timings] == [1.1, 0.9, 0.99]
    assert judge.asked == [(WORKLOADS, True), (WORKLOADS[::2], False)], "edges are checked once, and losers timed once"


def test_a_third_run_decides_where_two_disagree() -> None:
    judge = Runs([(1.2, 0.9, 1.2), (0.9, 0.9, 1.2), (1.1, 9.9, 9.9)])
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN)
    assert [timing.ratio_floor for timing in verdict.timings] == [1.1, 0.9, 1.2]
    assert judge.asked[2] == (WORKLOADS[:1], False)


def test_one_lucky_run_proves_nothing() -> None:
    verdict = judge_repeatedly(Runs([(1.3, 0.9, 0.9), (0.9, 0.9, 0.9), (1.0, 1.0, 1.0)]), CANDIDATE, WORKLOADS, GAIN)
    assert verdict.status is Status.SLOWER and verdict.timings[0].ratio_floor == 1.0


@pytest.mark.parametrize("wrong_in", range(RUNS))
def test_wrong_once_is_wrong(wrong_in: int) -> None:
    floors = [(1.2, 0.9, 0.9), (0.9, 0.9, 0.9), (1.2, 0.9, 0.9)]
    assert judge_repeatedly(Runs(floors, wrong_in), CANDIDATE, WORKLOADS, GAIN).status is Status.INCORRECT


@given(st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 3), min_size=RUNS, max_size=RUNS))
def test_it_is_the_majority_that_counts(floors: list[tuple[float, ...]]) -> None:
    verdict = judge_repeatedly(Runs(floors), CANDIDATE, WORKLOADS, GAIN)
    for place, timing in enumerate(verdict.timings):
        votes = sum(run[place] > 1 + GAIN for run in floors)
        sign = floors[0][place] * 1.05 > 1 + GAIN / 2
        assert (timing.ratio_floor > 1 + GAIN) == (sign and votes >= 2)


def test_errors_of_runs_that_share_nothing_become_rare() -> None:
    rng = random.Random(0)

    def run(right: float) -> tuple[float, ...]:
        return (1.1 if rng.random() < right else 0.97, 0.9, 0.9)

    shares = [
        sum(judge_repeatedly(Runs([run(p) for _ in range(RUNS)]), CANDIDATE, WORKLOADS, GAIN).won for _ in range(2000))
        for p in (0.05, 0.9)
    ]
    assert shares[0] < 2000 * 0.0125 and shares[1] > 2000 * 0.955
