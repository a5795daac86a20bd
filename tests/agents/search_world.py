"""A search without a judge: two workloads, candidates and verdicts on them."""

from __future__ import annotations

from agents.brief import Brief
from gristmill.domain import Domain
from gristmill.hardware import Hardware
from gristmill.workload import Workload, dense
from kernels.candidate import Candidate, Language, Origin
from kernels.verdict import Status, Verdict, WorkloadTiming

HARDWARE = Hardware("x86_64-test", "test", 2, ("avx2", "fma"))
BASELINE_NS = 1000.0


def workload(tokens: int, time_ns: int = 1000) -> Workload:
    axes = {"tokens": tokens, "hidden": 64}
    layouts = (dense((tokens, 64), "float32"), dense((64,), "float32"))
    return Workload("rms_norm", "float32", axes, layouts, calls=1, time_ns=time_ns)


DECODE, PREFILL = workload(4), workload(512)


def brief(*workloads: Workload) -> Brief:
    return Brief("rms_norm", "float32", workloads or (DECODE, PREFILL), HARDWARE, 2, 20.0, 100.0)


def candidate(
    number: int, agent: str = "llm:one", *, pattern: str = "rows", model: str = "mock", text: str = ""
) -> Candidate:
    return Candidate(
        "rms_norm",
        Language.CPP,
        {"main.cpp": text or f"int number = {number};\n"},
        Domain("rms_norm", "float32"),
        Origin(agent, pattern, model=model),
    )


def verdict(
    of: Candidate,
    *,
    decode: float | None = None,
    prefill: float | None = None,
    roofline: float = 0.4,
    duration_s: float = 1.0,
) -> Verdict:
    """Right, with these ratios; an interval of 5 % on both sides."""
    ratios = [(timed, ratio) for timed, ratio in ((DECODE, decode), (PREFILL, prefill)) if ratio is not None]
    timings = tuple(
        WorkloadTiming(
            timed, ratio, ratio * 0.95, ratio * 1.05, BASELINE_NS / ratio, BASELINE_NS, 9, roofline, 12.0, ratio * 0.94
        )
        for timed, ratio in ratios
    )
    status = Status.FASTER if any(t.ratio_low > 1 for t in timings) else Status.SLOWER
    mean = sum(t.ratio for t in timings) / len(timings)
    return Verdict(status, "measured", of.digest, of.operator, mean, timings, duration_s=duration_s)


def failure(of: Candidate, status: Status = Status.BUILD_FAILED) -> Verdict:
    return Verdict(status, "main.cpp:1: error", of.digest, of.operator, duration_s=0.5)
