"""Tuning of fused experts: from measured launch configurations to what an engine may be told, for the traffic there is.

Measuring needs the engine on its device; what comes of it is a `MoeMeasurement`. From there on everything is decided
here, purely: a configuration is claimed for what it was measured on, as kernel tables claim it, and all other numbers
of tokens keep what the engine takes by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gristmill.kernel_table import WIDEST_GAP
from gristmill.tuned_table import DTYPES, LARGEST_TOKENS, TOKENS, BaselineKey, Configuration, TunedFile, TunedRange
from kernels.errors import MoeMeasurementError
from kernels.profile import TrafficProfile

STANDING = ("fused_add_rms_norm", "silu_and_mul", "rms_norm")
"""Operators that a layer calls once or twice with all tokens of a step: the first that was sampled stands for the
experts, which engines call as often.
"""
LEAST_RATIO_LOW = 1.02
BETWEEN_MEDIANS = 1.01
"""How far a bound on the ratios of pairs may lie above the ratio of two medians."""
COVERED = 0.95
"""Share of the calls whose numbers of tokens are worth measuring."""


@dataclass(frozen=True)
class MeasuredRow:
    """The fastest configuration that was found for one number of tokens, beside what the engine takes by itself."""

    tokens: int
    configuration: Configuration
    time_ns: float
    """Median of one call."""
    default_time_ns: float
    """Of the engine's own configuration, measured in turn with the other."""
    ratio_low: float
    """Lower end of the 95 % interval of the engine's own time over this one."""

    @property
    def ratio(self) -> float:
        return self.default_time_ns / self.time_ns


@dataclass(frozen=True)
class MoeMeasurement:
    """What was measured of one file of the engine's on one device."""

    file_name: str
    """As the engine looks for it: see `gristmill.adapters.vllm_tuned.file_name`."""
    dtype: str
    """One of `gristmill.tuned_table.DTYPES`."""
    axes: dict[str, int]
    """`experts`, `intermediate` (of one expert on one device), `hidden`, `top_k`."""
    hardware: str
    """`Hardware.key`."""
    versions: dict[str, str]
    """Of `vllm` and `triton`."""
    rows: tuple[MeasuredRow, ...]
    baseline: tuple[BaselineKey, ...]
    """What the engine takes by itself: see `gristmill.adapters.vllm_tuned.engine_baseline`."""
    measured_utc: str
    schema_version: int = 1


@dataclass(frozen=True)
class RangeGain:
    """One range that is claimed, with what it gains."""

    range: TunedRange
    ratio: float
    """Of its rows' times, weighted by the traffic's calls; unweighted where none of the rows itself is called."""
    ratio_low: float
    """The smallest of its rows."""
    calls: int
    """In the traffic."""


def token_counts(profile: TrafficProfile) -> dict[int, int]:
    """How often the fleet's experts are called with how many tokens; empty if nothing stands for them."""
    for operator in STANDING:
        calls: Counter[int] = Counter()
        for workload in profile.workloads:
            if workload.operator == operator and TOKENS in workload.axes:
                calls[workload.axes[TOKENS]] += workload.calls
        if calls:
            return dict(sorted(calls.items()))
    return {}


def worth_measuring(counts: Mapping[int, int], most: int) -> tuple[int, ...]:
    """Numbers of tokens to measure, ascending: those called most, until nearly all calls are covered."""
    total, covered = sum(counts.values()), 0
    chosen: list[int] = []
    for tokens, calls in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) >= most or covered >= COVERED * total:
            break
        if 1 <= tokens <= LARGEST_TOKENS:
            chosen.append(tokens)
        covered += calls
    return tuple(sorted(chosen))


def check(measurement: MoeMeasurement) -> None:
    """Whether it can be believed.

    Raises:
        MoeMeasurementError: a row or the baseline is none, two rows are of one number, or a version is missing.
    """
    where = f"measurement of {measurement.file_name}"
    if measurement.dtype not in DTYPES or not {"vllm", "triton"} <= measurement.versions.keys():
        raise MoeMeasurementError(
            f"{where}: expected a dtype of {', '.join(DTYPES)}, and the versions of vllm and triton"
        )
    if not measurement.baseline or any(key.tokens < 1 for key in measurement.baseline):
        raise MoeMeasurementError(f"{where}: expected what the engine takes by itself for 1 token and more")
    numbers = [row.tokens for row in measurement.rows]
    if len(set(numbers)) < len(numbers):
        raise MoeMeasurementError(f"{where}: measures {max(numbers, key=numbers.count)} tokens twice")
    for row in measurement.rows:
        times = (row.time_ns, row.default_time_ns, row.ratio_low)
        if (
            not 1 <= row.tokens <= LARGEST_TOKENS
            or not row.configuration
            or not all(0 < one < math.inf for one in times)
        ):
            raise MoeMeasurementError(
                f"{where}: the row of {row.tokens} tokens, expected 1 to {LARGEST_TOKENS}, a configuration and times "
                "above 0"
            )
        if row.ratio_low > BETWEEN_MEDIANS * row.ratio:
            raise MoeMeasurementError(
                f"{where}: {row.tokens} tokens gain {row.ratio:.3f}, and at the least more than that"
            )


def gains(measurement: MoeMeasurement, counts: Mapping[int, int]) -> tuple[RangeGain, ...]:
    """The ranges worth claiming, ascending: each row of them is faster beyond doubt, and the fleet calls some of it.

    Raises:
        MoeMeasurementError: as `check`.
    """
    check(measurement)
    found = []
    for run in _runs(sorted(measurement.rows, key=lambda row: row.tokens)):
        low, high = run[0].tokens, run[-1].tokens
        called = sum(calls for tokens, calls in counts.items() if low <= tokens <= high)
        if called:
            weights = [counts.get(row.tokens, 0) for row in run]
            weights = weights if any(weights) else [1] * len(run)
            default = math.fsum(w * row.default_time_ns for w, row in zip(weights, run, strict=True))
            ratio = default / math.fsum(w * row.time_ns for w, row in zip(weights, run, strict=True))
            lowest = min(row.ratio_low for row in run)
            found.append(RangeGain(TunedRange(low, high, run[0].configuration), ratio, lowest, called))
    return tuple(found)


def tuned_file(measurement: MoeMeasurement, claimed: Sequence[RangeGain]) -> TunedFile:
    """What hosts are given."""
    ranges = tuple(one.range for one in claimed)
    return TunedFile(measurement.file_name, measurement.versions, ranges, measurement.baseline)


def _runs(rows: Sequence[MeasuredRow]) -> Iterator[list[MeasuredRow]]:
    """Neighbours among the measured that share a configuration, without those that are not faster."""
    run: list[MeasuredRow] = []
    for row in rows:
        if run and (not _faster(row) or row.configuration != run[-1].configuration or _far(run[-1], row)):
            yield run
            run = []
        if _faster(row):
            run.append(row)
    if run:
        yield run


def _faster(row: MeasuredRow) -> bool:
    return row.ratio_low > LEAST_RATIO_LOW


def _far(lower: MeasuredRow, upper: MeasuredRow) -> bool:
    return upper.tokens > WIDEST_GAP * lower.tokens
