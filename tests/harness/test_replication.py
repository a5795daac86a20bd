"""What runs in fresh processes prove together, and no more."""

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
from harness.replication import LEAST_RUNS, PROVEN_SHARE, RUNS, judge_repeatedly
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming

CANDIDATE = probes.probe("rms_norm")
WORKLOADS = probes.workloads()[:3]
GAIN = 0.025


class Runs:
    """A judge whose runs find the ratios they are told to, by run and workload."""

    def __init__(self, ratios: Sequence[Sequence[float]], wrong_in: int = -1, link_share: float = 0.0) -> None:
        self.ratios, self.wrong_in, self.link_share = ratios, wrong_in, link_share
        self.asked: list[tuple[tuple[Workload, ...], bool]] = []

    def judge(
        self, candidate: Candidate, workloads: Sequence[Workload], *, edges: bool, baseline: str | Candidate
    ) -> Verdict:
        number = len(self.asked)
        self.asked.append((tuple(workloads), edges))
        blank = Verdict(Status.INCORRECT, "wrong", candidate.digest, candidate.operator, duration_s=1.0)
        if number == self.wrong_in:
            return blank
        ratios = self.ratios[number]
        timings = tuple(
            WorkloadTiming(w, r, 0.9 * r, 1.1 * r, 100.0, 100.0 * r, 20, 0.5, 1.0, 0.0, None, self.link_share)
            for w, r in ((w, ratios[WORKLOADS.index(w)]) for w in workloads)
        )
        return decide(replace(blank, timings=timings), GAIN)


def drawn(rng: random.Random, ratio: float, spread: float) -> Runs:
    """Runs on the first workload that scatter about a ratio; the others are hopeless."""
    return Runs([(ratio * math.exp(rng.gauss(0, spread)), 0.9, 0.9) for _ in range(RUNS)])


def test_two_runs_prove_a_large_gain_and_one_excludes_what_is_slower() -> None:
    judge = Runs([(1.2, 0.9, 1.3), (1.22, 0.9, 1.1)] + [(9.0, 9.0, 1.2)] * RUNS)
    said: list[str] = []
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN, report=said.append)
    assert said[0].startswith("run 1") and said[1].endswith("2 of 3 workloads are open")
    assert len(said) == len(judge.asked) and verdict.status is Status.FASTER
    assert [timing.ratio for timing in verdict.timings] == pytest.approx(
        [math.sqrt(1.2 * 1.22), 0.9, (1.3 * 1.1 * 1.2 ** (len(judge.asked) - 2)) ** (1 / len(judge.asked))]
    )
    assert [timing.pairs for timing in verdict.timings] == [40, 20, 20 * len(judge.asked)]
    assert judge.asked[:3] == [(WORKLOADS, True), (WORKLOADS[::2], False), (WORKLOADS[2:], False)]
    assert verdict.duration_s == len(judge.asked)


def test_one_lucky_run_proves_nothing() -> None:
    judge = Runs([(1.3, 0.9, 0.9)] + [(1.0, 0.9, 0.9)] * (RUNS - 1))
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN)
    assert verdict.status is Status.SLOWER and verdict.timings[0].ratio_floor < 1


@pytest.mark.parametrize("wrong_in", range(4))
def test_wrong_once_is_wrong(wrong_in: int) -> None:
    judge = Runs([(1.04, 0.9, 0.9)] * RUNS, wrong_in)
    assert judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN).status is Status.INCORRECT


@given(st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 3), min_size=RUNS, max_size=RUNS))
def test_what_is_proven_lies_below_what_is_read_below_the_mean(ratios: list[tuple[float, ...]]) -> None:
    judge = Runs(ratios)
    verdict = judge_repeatedly(judge, CANDIDATE, WORKLOADS, GAIN)
    assert verdict.won == any(timing.ratio_floor > 1 + PROVEN_SHARE * GAIN for timing in verdict.timings)
    for place, timing in enumerate(verdict.timings):
        assert timing.ratio_floor < timing.ratio_low < timing.ratio < timing.ratio_high
        took_part = sum(WORKLOADS[place] in asked for asked, _ in judge.asked)
        of_runs = [run[place] for run in ratios[:took_part]]
        assert min(of_runs) - 1e-9 <= timing.ratio <= max(of_runs) + 1e-9
        assert took_part >= LEAST_RUNS or timing.ratio < 1 + 2 * GAIN


def test_what_the_judge_does_itself_is_not_the_candidates_gain() -> None:
    ratios = [(1.05, 0.9, 0.9)] * RUNS
    proven = judge_repeatedly(Runs(ratios), CANDIDATE, WORKLOADS[:1], GAIN)
    saved = judge_repeatedly(Runs(ratios, link_share=0.04), CANDIDATE, WORKLOADS[:1], GAIN)
    assert proven.won and not saved.won
    assert saved.timings[0].ratio == pytest.approx(1.05)


@pytest.mark.parametrize(
    ("spread", "found"),
    [(0.01, 0.99), (0.018, 0.98), (0.025, 0.95)],
)
def test_five_per_cent_are_found_where_runs_differ_as_they_do(spread: float, found: float) -> None:
    rng = random.Random(0)
    won = [judge_repeatedly(drawn(rng, 1.05, spread), CANDIDATE, WORKLOADS[:1], GAIN).won for _ in range(400)]
    assert sum(won) >= found * len(won)


@pytest.mark.parametrize(("ratio", "spread"), [(1.0, 0.01), (1.0, 0.03), (1.01, 0.02), (0.99, 0.04)])
def test_equals_are_told_to_be_equal_and_soon(ratio: float, spread: float) -> None:
    rng = random.Random(0)
    judges = [drawn(rng, ratio, spread) for _ in range(1000)]
    won = sum(judge_repeatedly(judge, CANDIDATE, WORKLOADS[:1], GAIN).won for judge in judges)
    assert won <= 10
    assert sum(len(judge.asked) for judge in judges) <= RUNS / 2 * len(judges)


def test_one_run_that_is_far_off_neither_proves_a_gain_nor_hides_one() -> None:
    for ratio, off, status in ((1.0, 1.5, Status.SLOWER), (1.05, 0.9, Status.FASTER)):
        judge = Runs([(off if number == 1 else ratio, 0.9, 0.9) for number in range(RUNS)])
        assert judge_repeatedly(judge, CANDIDATE, WORKLOADS[:1], GAIN).status is status
