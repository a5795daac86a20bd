"""A verdict: what the judge says of a candidate, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gristmill.workload import Workload


class Status(StrEnum):
    """The one word. Order is from caught earliest to best."""

    REJECTED = "rejected"
    """By a static rule or because it does not cover any workload; nothing was run."""
    BUILD_FAILED = "build_failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    INCORRECT = "incorrect"
    CHEATED = "cheated"
    SLOWER = "slower"
    """Correct, but not proven faster than the baseline on any workload."""
    FASTER = "faster"
    """Correct, and proven faster on at least one workload: its interval lies above 1."""


@dataclass(frozen=True)
class Mismatch:
    """Where and how an output differs from the reference."""

    workload: str
    """Label of the workload."""
    output: str
    """Name of the output tensor."""
    worst_index: tuple[int, ...]
    found: str
    expected: str
    error_ratio: str
    """Error over what was allowed, as text (may be `inf`)."""
    wrong_elements: int
    total_elements: int
    pattern: str
    """Shape of the damage: `all`, `tail`, `rows`, `columns`, `scattered`, `nan`."""


@dataclass(frozen=True)
class WorkloadTiming:
    """Paired timing of a candidate and its baseline on one workload. Ratios are baseline time over candidate time."""

    workload: Workload
    ratio: float
    """Median over pairs."""
    ratio_low: float
    """Lower end of the 95 % bootstrap interval."""
    ratio_high: float
    candidate_ns: float
    """Median per call, as the host would pay it."""
    baseline_ns: float
    pairs: int
    roofline_fraction: float
    """Floor over the candidate's time: 1 is the hardware's limit."""
    bandwidth_gb_s: float
    """Bytes of the cost model over the candidate's time."""


@dataclass(frozen=True)
class Verdict:
    """Frozen evidence. `timings` is empty unless the status is `slower` or `faster`."""

    status: Status
    reason: str
    """One line that an agent can act on."""
    candidate: str
    """Digest of the candidate."""
    operator: str
    ratio: float | None = None
    """Traffic-weighted: total baseline time over total candidate time, over the timed workloads."""
    timings: tuple[WorkloadTiming, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    build_log: str = ""
    object_sha256: str = ""
    """Content address of what was built; empty if nothing was."""
    seed: int = 0
    """From which inputs can be drawn again."""
    setup_ns: dict[str, int] = field(default_factory=dict)
    """Cost of the declared setup phase per workload label."""
    isolation: tuple[str, ...] = ()
    """Layers of the sandbox that were active."""
    host: dict[str, str] = field(default_factory=dict)
    """Hardware key and versions that the timings hold for."""
    duration_s: float = 0.0

    @property
    def won(self) -> bool:
        return self.status is Status.FASTER
