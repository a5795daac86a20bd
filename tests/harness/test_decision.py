"""What makes a candidate faster, slower, or too fast to be true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decision import decide, workload_evidence
from harness.layout import lay_out
from harness.session import Finding
from harness.timing import Interval, Pair, PairedTiming
from kernels import catalogue
from kernels.inputs import workload
from kernels.roofline import floor_ns
from kernels.verdict import Status, Verdict, WorkloadTiming

BLANK = Verdict(status=Status.REJECTED, reason="", candidate="c", operator="rms_norm")


def timing(ratio, low, high, *, floor=0.0, candidate_ns=100.0, calls=1):
    made = workload(catalogue.operator("rms_norm"), "float32", tokens=4, hidden=64)
    return WorkloadTiming(
        workload=replace(made, calls=calls),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        candidate_ns=candidate_ns,
        baseline_ns=candidate_ns * ratio,
        pairs=9,
        roofline_fraction=0.5,
        bandwidth_gb_s=10.0,
        ratio_floor=floor,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 0.5)), min_size=1, max_size=6), st.floats(0, 0.2))
def test_faster_means_one_proven_above_one(rows, min_gain):
    timings = tuple(timing(ratio, ratio * 0.99, ratio * 1.1, floor=ratio * (1 - spread)) for ratio, spread in rows)
    verdict = decide(replace(BLANK, timings=timings), min_gain)
    proven = any(row.ratio_floor > 1 + min_gain for row in timings)
    assert verdict.status is (Status.FASTER if proven else Status.SLOWER)
    assert min(row.ratio for row in timings) - 1e-9 <= verdict.ratio <= max(row.ratio for row in timings) + 1e-9


def test_an_interval_above_one_is_not_yet_a_proof():
    verdict = decide(replace(BLANK, timings=(timing(1.5, 1.4, 1.6, floor=1.01),)), 0.02)
    assert verdict.status is Status.SLOWER and verdict.reason.startswith("not proven faster")


def test_the_ratio_is_weighted_by_calls():
    often = timing(2.0, 1.9, 2.1, floor=1.8, calls=99)
    seldom = timing(0.5, 0.4, 0.6, floor=0.3, calls=1)
    verdict = decide(replace(BLANK, timings=(often, seldom)), 0.02)
    assert verdict.ratio == pytest.approx((99 * 200 + 50) / (99 * 100 + 100))
    assert verdict.status is Status.FASTER and "2.00x (1.90 to 2.10)" in verdict.reason


def test_faster_than_the_machine_is_a_cheat(peaks):
    definition = catalogue.operator("rms_norm")
    made = workload(definition, "float32", tokens=64, hidden=4096)
    layout = lay_out(definition, made)
    slow = replace(peaks, memory_bandwidth_gb_s=10.0, cache_ceiling_gb_s=100.0)
    floor = floor_ns(definition, made, slow, cached=True)

    def paired(candidate_ns):
        return PairedTiming((Pair(candidate_ns, 1e6),), Interval(1e6 / candidate_ns, 1.0, 2.0))

    evidence = workload_evidence(definition, layout, paired(1.1 * floor), slow)
    assert evidence.roofline_fraction > 0 and evidence.candidate_ns == pytest.approx(1.1 * floor)
    with pytest.raises(Finding, match="at least") as caught:
        workload_evidence(definition, layout, paired(0.9 * floor), slow)
    assert caught.value.status is Status.CHEATED
