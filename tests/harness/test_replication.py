"""What most of three runs prove, or all of them together, and no more."""

from __future__ import annotations

import math
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

    def __init__(self, floors: Sequence[Sequence[float]], wrong_in: int = -1, margin: float = 1.05) -> None:
        self.floors, self.wrong_in, self.margin = floors, wrong_in, margin
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
            WorkloadTiming(w, f * self.margin, f, f * 1.1, 100.0, 105.0 * f, 20, 0.5, 1.0, ratio_floor=f)
            for w, f in ((w, floors[WORKLOADS.index(w)]) for w in workloads)
        )
        return decide(replace(blank, timings=timings), GAIN)


def test_two_runs_that_agree_are_enough() -> None:
    judge = Runs([(1.2, 0.9, 1.0), (1.1, 0.95, 0.95)])
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN)
    assert verdict.status is Status.FASTER and verdict.duration_s == 2
    assert [timing.ratio_floor for timing in verdict.timings] == [1.1, 0.9, 0.95]
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
def test_a_majority_counts_or_a_mean_that_all_runs_show(floors: list[tuple[float, ...]]) -> None:
    margin = 1.05
    verdict = judge_repeatedly(Runs(floors, margin=margin), CANDIDATE, WORKLOADS, GAIN)
    for place, timing in enumerate(verdict.timings):
        of_runs = [run[place] for run in floors]
        votes = [floor > 1 + GAIN for floor in of_runs]
        shown = [floor * margin > 1 + GAIN / 2 for floor in of_runs]
        mean = math.prod(of_runs) ** (1 / 3) * margin / margin ** (1 / math.sqrt(3))
        mean = min(mean, sorted(of_runs)[1] * margin)  # one run that is far off proves nothing
        won = shown[0] and ((votes[0] and votes[1]) or (sum(votes) >= 2) or (all(shown) and mean > 1 + GAIN))
        if abs(mean / (1 + GAIN) - 1) > 1e-9:
            assert (timing.ratio_floor > 1 + GAIN) == won
        assert timing.ratio_floor <= timing.ratio


def test_what_no_run_proves_three_may_prove_together() -> None:
    judge = Runs([(1.01, 0.9, 0.9)] * 3, margin=1.04)
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN)
    assert verdict.status is Status.FASTER
    assert verdict.timings[0].ratio_floor == pytest.approx(1.01 * 1.04 / 1.04 ** (1 / math.sqrt(3)))
    assert len(judge.asked) == RUNS


def test_a_second_run_without_a_sign_of_it_ends_a_gain_that_the_first_did_not_prove() -> None:
    judge = Runs([(1.0, 0.9, 0.9), (0.95, 0.9, 0.9)])
    assert judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN).status is Status.SLOWER and len(judge.asked) == 2


def test_errors_of_runs_that_share_nothing_become_rare() -> None:
    rng = random.Random(0)

    def run(right: float) -> tuple[float, ...]:
        return (1.1 if rng.random() < right else 0.97, 0.9, 0.9)

    shares = [
        sum(judge_repeatedly(Runs([run(p) for _ in range(RUNS)]), CANDIDATE, WORKLOADS, GAIN).won for _ in range(2000))
        for p in (0.05, 0.9)
    ]
    assert shares[0] < 2000 * 0.0125 and shares[1] > 2000 * 0.955
