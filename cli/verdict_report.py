"""A verdict as a person reads it: the status and its reason, then whatever evidence there is, section by section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cli.table import compact_table
from kernels.evidence import case_text, mismatch_text, object_text
from kernels.verdict import Status, Verdict, WorkloadTiming


def render(verdict: Verdict) -> str:
    """The whole report, without a newline at its end."""
    sections = [f"{verdict.status.value}: {verdict.reason}", *_sections(verdict), _footer(verdict)]
    return "\n\n".join(section for section in sections if section)


def _sections(verdict: Verdict) -> Iterator[str]:
    if verdict.timings:
        yield timing_table(verdict.timings)
    if verdict.setup_ns:
        rows = [[label, f"{spent / 1e3:.1f} us"] for label, spent in verdict.setup_ns.items()]
        yield compact_table(rows, ["setup of one set of weights", "takes"])
    for mismatch in verdict.mismatches:
        yield mismatch_text(mismatch)
    if verdict.failing:
        yield "smallest failing calls\n" + "\n".join(case_text(case) for case in verdict.failing)
    if verdict.object_report is not None:
        yield object_text(verdict.object_report)
    if verdict.status is Status.BUILD_FAILED and verdict.build_errors:
        yield verdict.build_errors
    elif verdict.build_log:
        yield verdict.build_log.rstrip()


def timing_table(timings: Sequence[WorkloadTiming]) -> str:
    """One row per workload that was timed."""
    rows = [
        [
            " ".join(f"{name}={extent}" for name, extent in timing.workload.axes.items()),
            f"{timing.ratio:.2f}x",
            f"{timing.ratio_low:.2f} to {timing.ratio_high:.2f}",
            f"{timing.candidate_ns / 1e3:.1f} us",
            f"{timing.baseline_ns / 1e3:.1f} us",
            f"{timing.bandwidth_gb_s:.1f} GB/s",
            f"{timing.roofline_fraction:.0%}",
        ]
        for timing in timings
    ]
    return compact_table(rows, ["workload", "ratio", "95 %", "candidate", "baseline", "bandwidth", "of roofline"])


def _footer(verdict: Verdict) -> str:
    layers = ", ".join(verdict.isolation) or "nothing was run"
    return f"seed {verdict.seed}, {verdict.duration_s:.1f} s, isolation: {layers}"
