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
    """Correct, and proven faster on at least one workload: its `ratio_floor` lies above 1 by the least gain."""


@dataclass(frozen=True)
class ErrorBin:
    """One bar of an error histogram."""

    label: str
    """Error over what is allowed, e.g. `10 to 100`."""
    elements: int


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
    """Shape of the damage: see `harness/damage.py`, or `nan`."""
    call: int = 0
    """Which of the calls that were compared at once."""
    rows: tuple[int, ...] = ()
    """The first wrong rows, numbered over all dimensions but the last."""
    wrong_rows: int = 0
    total_rows: int = 0
    columns: tuple[int, ...] = ()
    """The first wrong places along the last dimension."""
    wrong_columns: int = 0
    total_columns: int = 0
    magnitudes: str = ""
    """Which expected values go wrong, where that tells them from the right ones: `only where |expected| < 1e-06`."""
    histogram: tuple[ErrorBin, ...] = ()
    """Elements by error over what is allowed, smallest first; empty bars are left out."""


@dataclass(frozen=True)
class InputRow:
    """Some values of one input, along its last dimension: those that feed a wrong element, at most eight."""

    tensor: str
    index: tuple[int, ...]
    """Of the row: all dimensions but the last."""
    length: int
    positions: tuple[int, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class FailingCase:
    """One call with a wrong answer: its sizes, the worst element, and what goes into it."""

    workload: str
    """Label of the workload."""
    axes: dict[str, int]
    layouts: tuple[str, ...]
    """Per input that is not dense: `x_TH 4x1024 in steps of 2048x1`."""
    regime: str
    output: str
    index: tuple[int, ...]
    found: str
    expected: str
    error_ratio: str
    inputs: tuple[InputRow, ...] = ()
    diagnosis: str = ""
    """Which mistake gives exactly these answers, if one is known."""


@dataclass(frozen=True)
class ObjectReport:
    """What the compiler made of a candidate: counts over `gm_run` and what it calls within the object."""

    architecture: str
    """`x86-64` or `aarch64`; empty if there was no disassembly."""
    instructions: int = 0
    loop_instructions: int = 0
    """Of those, in innermost loops."""
    vector_bits: int = 0
    """Of the widest register of arithmetic in innermost loops (anywhere, if there is no loop); 0 means scalar."""
    scalable: bool = False
    """Whether that register is one of SVE, whose width the machine decides."""
    fma: bool = False
    serial_sums: int = 0
    """Innermost loops that add one element after another, where no loop adds vectors."""
    gathers: int = 0
    loop_divisions: int = 0
    """Divisions and square roots in innermost loops."""
    loop_calls: int = 0
    spills: int = 0
    """Vector registers stored to the stack in innermost loops."""
    note: str = ""
    """Why there is no report."""
    hint: str = ""
    """One line: what to try."""


@dataclass(frozen=True)
class PairNoise:
    """How pairs of one workload differed from one another: what the ratio's interval had to be made from."""

    variation: float
    """Robust standard deviation of the ratios' logarithms: 0.05 means that a pair is off by some 5 %."""
    dependence: float
    """How much wider the ratio is than it would be if pairs were independent of one another, as a variance."""
    spikes: float
    """Share of pairs that are off by a factor of 1.5 and more."""
    drift: float
    """By how much the baseline's time grew from the first third of the run to the last, as a share."""
    pair_s: float
    """Seconds that a pair took, with all that the judge does around it."""


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
    ratio_floor: float = 0.0
    """The ratio that is proven: however often and on however many workloads one looks, the true one lies above it."""
    noise: PairNoise | None = None
    link_share: float = 0.0
    """Of its time, what the candidate could have saved itself of the judge's own work; `ratio_floor` allows for it."""


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
    failing: tuple[FailingCase, ...] = ()
    """Of an `incorrect` candidate: up to three, the smallest workloads first."""
    build_log: str = ""
    """What the static rules saw, and all that the compiler said."""
    build_errors: str = ""
    """The compiler's first errors with their source lines, and nothing else; empty if it built."""
    object_report: ObjectReport | None = None
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
    """Of the whole judgement."""
    build_s: float = 0.0
    """Of it, spent waiting for the compiler."""
    run_s: float = 0.0
    """Of it, spent in runners: setup, checked and timed calls, and the baseline's. 0 if it was not measured."""

    @property
    def won(self) -> bool:
        return self.status is Status.FASTER
