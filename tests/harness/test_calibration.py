"""A calibration is what its trials say, refuses a judge that is wrong, and is kept as long as it holds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness import calibration, probes, scheduling
from harness.calibration import calibrate, judge_equals, share_interval, told_gain
from harness.errors import CalibrationError
from harness.judge import Judge
from harness.timing import Pair, PairedTiming, StopRule, collect
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming


class NoisyJudge:
    """Times nothing: its pairs are drawn, and in every `fault`-th trial, each of which is of another workload than the
    last, the candidate is called faster.
    """

    def __init__(self, noise: float, fault: int = 10**9, offset: float = 0.0) -> None:
        self.noise, self.fault, self.offset = noise, fault, offset
        self.asked: list[tuple[Candidate, Workload]] = []
        self._trials = 0
        self._random = np.random.default_rng(0)

    def judge(
        self, candidate: Candidate, workloads: Sequence[Workload], *, edges: bool, baseline: str | Candidate
    ) -> Verdict:
        assert baseline == candidate and not edges and len(workloads) == 1
        self._trials += not self.asked or self.asked[-1][1] != workloads[0]
        lucky = self._trials % self.fault == 0
        self.asked.append((candidate, workloads[0]))
        return Verdict(
            Status.SLOWER,
            "",
            candidate.digest,
            candidate.operator,
            timings=(self._timing(workloads[0], 0.2 if lucky else 0.0),),
            host={"scheduling": scheduling.REAL_TIME},
        )

    def _timing(self, workload: Workload, luck: float = 0.0) -> WorkloadTiming:
        rule = StopRule(200, 200, 1e9, 0.0, 1.0)
        ratios = iter(np.exp(self.offset + luck + self._random.normal(0, self.noise, 200)))
        clock = iter(np.arange(1000) * 0.004)
        paired: PairedTiming = collect(
            lambda first: Pair(1000.0, 1000.0 * next(ratios)), rule, random.Random(0), lambda: next(clock)
        )
        ratio = paired.ratio
        return WorkloadTiming(
            workload, ratio.median, ratio.low, ratio.high, 1000.0, 1000.0, 200, 0.5, 1.0, 0.0, paired.noise
        )


def test_a_calibration_says_what_its_trials_say() -> None:
    judge, said = NoisyJudge(0.08, fault=7, offset=-0.04), []
    found = calibrate(judge, 18, 0.025, said.append)
    assert (found.trials, found.called_faster, found.real_time) == (18, 2, True)
    assert len(found.workloads) == len(probes.CASES) and all(noise.trials == 3 for noise in found.workloads)
    assert {workload.operator for _, workload in judge.asked} == {operator for operator, _ in probes.CASES}
    for noise in found.workloads:
        assert noise.variation == pytest.approx(0.08, rel=0.25)
        assert noise.offset == pytest.approx(-0.04, abs=0.02)
        assert noise.pair_s == pytest.approx(0.004, rel=0.1)
        assert 0.025 < noise.told["20"] < noise.told["5"] < noise.told["1"]
    assert len(said) == 18 and "2 called faster" not in said[0]
    assert found.hardware == local_cpu().key and found.versions["torch"]
    assert "2 of 18 identical candidates" in found.summary


def test_a_judge_that_finds_a_probe_wrong_cannot_be_calibrated() -> None:
    class Wrong:
        def judge(self, candidate: Candidate, workloads: Sequence[Workload], **_: object) -> Verdict:
            return Verdict(Status.CRASHED, "killed by SIGSYS", candidate.digest, candidate.operator)

    with pytest.raises(CalibrationError, match=r"crashed.*SIGSYS.*doctor"):
        judge_equals(Wrong(), probes.workloads()[0], 0.025)


def test_what_is_told_is_proven() -> None:
    """The told gain is the one that the rule, on noise of that kind, proves in about nine of ten cases."""
    pairs = 600
    noise = NoisyJudge(0.08)._timing(probes.workloads()[0]).noise
    assert noise is not None
    gain = told_gain(0.08, noise.dependence, pairs, 0.025)
    rng = np.random.default_rng(1)
    rule = StopRule(pairs, pairs, 1e9, 0.0, 0.0, gain=0.025)
    proven = 0
    for _ in range(40):
        ratios = iter((1 + gain) * np.exp(rng.normal(0, 0.08, pairs)))
        timed = collect(lambda first: Pair(1.0, next(ratios)), rule, random.Random(0), lambda: 0.0)  # noqa: B023
        proven += timed.floor > 1.025
    assert proven >= 32


@given(st.integers(1, 2000), st.data())
def test_the_interval_of_a_share_holds_it(trials: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, trials))
    low, high = share_interval(count, trials)
    assert 0 <= low <= count / trials + 1e-12 and count / trials - 1e-12 <= high <= 1
    assert share_interval(0, 1000)[1] == pytest.approx(0.0038, abs=1e-4)


def test_it_is_kept_as_long_as_it_holds(tmp_path: Path) -> None:
    assert calibration.kept(tmp_path) is None and calibration.facts(tmp_path) == {}
    found = calibrate(NoisyJudge(0.05), 6, 0.025, lambda text: None)
    calibration.keep(tmp_path, found)
    assert calibration.kept(tmp_path) == found
    assert calibration.facts(tmp_path) == {"noise": found.summary}
    assert calibration.kept(tmp_path, datetime.now(UTC) + calibration.KEPT_FOR + timedelta(days=1)) is None
    for spoilt in (replace(found, hardware="riscv"), replace(found, cores=99), replace(found, measured_at="once")):
        calibration.keep(tmp_path, spoilt)
        assert calibration.kept(tmp_path) is None
    (tmp_path / calibration.FILE_NAME).write_text("{")
    assert calibration.kept(tmp_path) is None


@pytest.mark.parametrize(("operator", "axes"), [probes.CASES[n] for n in (2, 3, 5)])
def test_a_slower_probe_takes_longer_by_that_share(operator: str, axes: dict[str, int], judge: Judge) -> None:
    workload = inputs.workload(catalogue.operator(operator), probes.DTYPE, **axes)
    plain, slower = probes.probe(operator, 0.0), probes.probe(operator, 20.0)
    verdict = judge.judge(plain, [workload], edges=False, baseline=slower)
    assert 3 < verdict.timings[0].ratio < 50, verdict.reason
