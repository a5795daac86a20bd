"""From measurements to evidence, and from evidence to `faster` or `slower`. Pure.

A candidate is `faster` if on at least one workload the ratio that is proven lies above 1 plus `min_gain`, and `slower`
if it is right but that is not proven. The 95 % interval is for reading: it may lie above while nothing is proven.
"""

from __future__ import annotations

from dataclasses import replace

from gristmill.workload import ITEM_BYTES
from harness.layout import Layout
from harness.session import Finding
from harness.timing import PairedTiming
from kernels import roofline
from kernels.definition import Definition
from kernels.roofline import Peaks
from kernels.verdict import Status, Verdict, WorkloadTiming

CACHE_SHARE = 4
"""Inputs that rotate over fewer last-level caches than this may partly come from a cache; the floor allows for it."""


def workload_evidence(
    definition: Definition, layout: Layout, paired: PairedTiming, peaks: Peaks, link_ns: float = 0.0
) -> WorkloadTiming:
    """The timing of one workload. What is proven allows for a candidate that saved itself `link_ns` of a call's time.

    Raises:
        Finding: the candidate was faster than this machine can be.
    """
    workload = layout.workload
    rotated = sum(place.room for place in layout.inputs) * layout.sets
    cached = rotated < CACHE_SHARE * peaks.l3_bytes
    floor_ns = roofline.floor_ns(definition, workload, peaks, cached=cached)
    candidate_ns = paired.candidate_ns
    if candidate_ns < floor_ns:
        reason = f"{workload.label}: {candidate_ns:.0f} ns a call, but this machine needs {floor_ns:.0f} ns at least"
        raise Finding(Status.CHEATED, reason)
    link_share = link_ns / candidate_ns
    return WorkloadTiming(
        workload=workload,
        ratio=paired.ratio.median,
        ratio_low=paired.ratio.low,
        ratio_high=paired.ratio.high,
        candidate_ns=candidate_ns,
        baseline_ns=paired.baseline_ns,
        pairs=len(paired.pairs),
        roofline_fraction=roofline.roofline_ns(definition, workload, peaks, rotated_bytes=rotated) / candidate_ns,
        bandwidth_gb_s=definition.cost(workload.axes, ITEM_BYTES[workload.dtype]).bytes_moved / candidate_ns,
        ratio_floor=paired.floor / (1 + link_share),
        noise=paired.noise,
        link_share=link_share,
    )


def decide(measured: Verdict, min_gain: float) -> Verdict:
    """The verdict on a candidate that is right and was timed on at least one workload.

    Its `ratio` is that of all calls together, from the paired ratios of the workloads: always among them.
    """
    timings = measured.timings
    spent_ns = [max(1, timing.workload.calls) * timing.candidate_ns for timing in timings]
    ratio = sum(ns * timing.ratio for ns, timing in zip(spent_ns, timings, strict=True)) / sum(spent_ns)
    best = max(timings, key=lambda timing: (timing.ratio_floor, timing.ratio_low))
    status = Status.FASTER if best.ratio_floor > 1 + min_gain else Status.SLOWER
    word = "proven" if status is Status.FASTER else "not proven"
    reason = (
        f"{word} faster; best on {best.workload.label}: {best.ratio:.2f}x "
        f"({best.ratio_low:.2f} to {best.ratio_high:.2f}), {best.roofline_fraction:.0%} of the roofline"
    )
    if status is Status.SLOWER and best.ratio_low > 1:
        reason += f"; proven is no more than {best.ratio_floor:.2f}x: more pairs may tell (policy proof)"
    return replace(measured, status=status, reason=reason, ratio=ratio)
