"""The roofline: how fast this machine could run a workload at best (Williams, Waterman, Patterson, CACM 52(4), 2009).

Two answers, for two uses. `roofline_ns` is the honest estimate from what torch reaches on this machine; it ranks work.
`floor_ns` is a time that no correct kernel can beat; the judge convicts by it, so every doubt goes to the accused.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError
from gristmill.hardware import Hardware, local_cpu
from gristmill.workload import ITEM_BYTES, Workload
from kernels import peak_measurement
from kernels.definition import Definition
from kernels.layouts import distinct_bytes
from kernels.processor import Cache, caches, local_clock_ghz

CEILING_MARGIN = 1.5
"""What a floor allows above the architectural ceilings: a clock that boosts beyond what cpuinfo states."""
MEMORY_MARGIN = 3.0
"""What a floor allows above the measured memory bandwidth: the measurement may have shared the memory with other
processes, torch may not saturate it, and a cache may serve some reads although the inputs rotate. Rotate over four
times the last level. A cheat that skips the work is faster by far more.
"""
SCHEMA_VERSION = 2
KEPT_FOR = timedelta(weeks=4)
"""Then peaks are measured anew: firmware, memory and neighbours change."""
VECTOR_BYTES = {"avx512f": 64, "sve": 64, "avx2": 32, "asimd": 32}
"""Bytes of the widest vector register by CPU flag, widest first; Arm's counts double: it comes on four ports."""
FMA_PORTS = 2
"""Vector multiply-adds that a core starts per cycle at most."""
LOAD_PORTS = 3
"""Vector loads, likewise."""
MATRIX_GAIN = {"amx_bf16": 16, "avx512_bf16": 2, "asimd": 4}
"""Multiply-adds in bfloat16 per one in float32, by CPU flag; Arm's matrix extension has no flag in our list."""


@dataclass(frozen=True)
class Peaks:
    """What one machine can do. Rates are totals over all its cores."""

    hardware: str
    """`Hardware.key`."""
    cores: int
    memory_bandwidth_gb_s: float
    """Measured: best of reading, copying and filling a buffer that no cache holds."""
    cache_bandwidth_gb_s: float
    """Measured: reading what the private caches hold."""
    cache_ceiling_gb_s: float
    """Every core loading full vectors on every port in every cycle."""
    gflops: dict[str, float]
    """Measured matrix product by dtype."""
    gflops_ceiling: dict[str, float]
    """Every core starting fused multiply-adds on every port in every cycle; never below what was measured."""
    l1_bytes: int
    """Data cache of one core; 0 where the system does not say."""
    l2_bytes: int
    """Of one core."""
    l3_bytes: int
    """Last level, shared."""
    shared_cache_gb_s: float = 0.0
    """Measured: reading what the last level holds; 0 where there is none."""
    caches: tuple[Cache, ...] = ()
    """All levels, innermost first."""
    vector_bytes: int = 0
    """Of the widest vector register."""
    measured_at: str = ""
    """When, in UTC; empty peaks were not measured, and do not expire."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of what measured them."""
    schema_version: int = field(default=SCHEMA_VERSION)


def roofline_ns(definition: Definition, workload: Workload, peaks: Peaks, *, rotated_bytes: int | None = None) -> float:
    """Estimated best time of one call: the longer of computing at peak and moving the bytes at peak bandwidth.

    Args:
        rotated_bytes: over how much memory the inputs of calls in a row rotate, which says what of them the caches
            still hold; if not given, nothing.
    """
    read, written, flops = _demand(definition, workload)
    bandwidth = peaks.memory_bandwidth_gb_s if rotated_bytes is None else reachable_gb_s(peaks, rotated_bytes)
    return max(flops / peaks.gflops[workload.dtype], (read + written) / bandwidth)


def reachable_gb_s(peaks: Peaks, rotated_bytes: int) -> float:
    """Bandwidth of reading that much again and again: of the level that holds it, or of what the last level and memory
    give together."""
    if rotated_bytes <= peaks.l2_bytes * peaks.cores:
        return max(peaks.cache_bandwidth_gb_s, peaks.memory_bandwidth_gb_s)
    shared = max(peaks.shared_cache_gb_s or peaks.cache_bandwidth_gb_s, peaks.memory_bandwidth_gb_s)
    held = min(1.0, peaks.l3_bytes / rotated_bytes)
    return 1 / (held / shared + (1 - held) / peaks.memory_bandwidth_gb_s)


def floor_ns(definition: Definition, workload: Workload, peaks: Peaks, *, cached: bool) -> float:
    """A time that a correct call cannot beat, by a margin below the limits of the machine.

    `cached` says that the inputs may lie in a cache when the call starts. Without it they come from memory, while
    outputs may still stay in the caches, as far as these can hold them.
    """
    read, written, flops = _demand(definition, workload)
    ceilings_ns = (flops / peaks.gflops_ceiling[workload.dtype], (read + written) / peaks.cache_ceiling_gb_s)
    floor = max(ceilings_ns) / CEILING_MARGIN
    if not cached:
        spilled = max(0, written - peaks.l3_bytes)
        floor = max(floor, (read + spilled) / peaks.memory_bandwidth_gb_s / MEMORY_MARGIN)
    return floor


def _demand(definition: Definition, workload: Workload) -> tuple[int, int, int]:
    """Bytes read, bytes written and operations; expanded inputs are read once."""
    cost = definition.cost(workload.axes, ITEM_BYTES[workload.dtype])
    distinct = sum(distinct_bytes(layout) for layout in workload.inputs)
    return min(cost.bytes_read, distinct), cost.bytes_written, cost.flops


def cached_peaks(path: Path) -> Peaks:
    """The peaks kept in that file; measured (and kept) when the file is missing, unreadable, expired, or from other
    hardware. The file appears by rename, so that a killed process leaves the old one or none.
    """
    return kept_peaks(path) or keep_peaks(path, measure_peaks())


def kept_peaks(path: Path, now: datetime | None = None) -> Peaks | None:
    """The peaks in that file, if they are this machine's and not too old."""
    hardware = local_cpu()
    try:
        kept = records.parse(Peaks, path.read_bytes(), str(path))
        measured_at = datetime.fromisoformat(kept.measured_at) if kept.measured_at else None
    except (FileNotFoundError, MalformedRecordError, ValueError):
        return None
    ours = (kept.hardware, kept.cores, kept.schema_version) == (hardware.key, hardware.cores, SCHEMA_VERSION)
    fresh = measured_at is None or measured_at + KEPT_FOR > (now or datetime.now(UTC))
    return kept if ours and fresh else None


def keep_peaks(path: Path, measured: Peaks) -> Peaks:
    """Writes these peaks, or, for each rate, the best of these and the kept ones: a busy host only ever hides some."""
    kept = kept_peaks(path)
    peaks = measured if kept is None else best_of(kept, measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable_file.write(path, records.canonical_json(peaks))
    return peaks


def best_of(earlier: Peaks, later: Peaks) -> Peaks:
    """The later facts with the better of each measured rate."""
    return replace(
        later,
        memory_bandwidth_gb_s=max(earlier.memory_bandwidth_gb_s, later.memory_bandwidth_gb_s),
        cache_bandwidth_gb_s=max(earlier.cache_bandwidth_gb_s, later.cache_bandwidth_gb_s),
        shared_cache_gb_s=max(earlier.shared_cache_gb_s, later.shared_cache_gb_s),
        cache_ceiling_gb_s=max(earlier.cache_ceiling_gb_s, later.cache_ceiling_gb_s),
        gflops=_best_rates(earlier.gflops, later.gflops),
        gflops_ceiling=_best_rates(earlier.gflops_ceiling, later.gflops_ceiling),
    )


def _best_rates(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    return {dtype: max(earlier.get(dtype, 0.0), later.get(dtype, 0.0)) for dtype in {**earlier, **later}}


def measure_peaks() -> Peaks:
    """Measures this machine; some seconds, longer on a busy one. Sets no thread count for good: it takes torch's."""
    hardware, clock = local_cpu(), local_clock_ghz()
    levels = caches()
    sizes = {cache.level: cache.size_bytes for cache in levels}
    measured = peak_measurement.gflops()
    ceilings = ceiling_gflops(hardware, clock)
    private = peak_measurement.private_cache_gb_s()
    last_bytes = sizes.get(3, 0)
    beyond_private = 4 * hardware.cores * sizes.get(2, 0)
    return Peaks(
        hardware=hardware.key,
        cores=hardware.cores,
        memory_bandwidth_gb_s=peak_measurement.memory_gb_s(),
        cache_bandwidth_gb_s=private,
        cache_ceiling_gb_s=max(private, ceiling_cache_gb_s(hardware, clock)),
        gflops=measured,
        gflops_ceiling={dtype: max(measured[dtype], ceilings[dtype]) for dtype in measured},
        l1_bytes=sizes.get(1, 0),
        l2_bytes=sizes.get(2, 0),
        l3_bytes=last_bytes,
        shared_cache_gb_s=peak_measurement.shared_cache_gb_s(min(beyond_private, last_bytes // 2))
        if last_bytes
        else 0.0,
        caches=levels,
        vector_bytes=_vector_bytes(hardware),
        measured_at=records.utc_now(),
        versions={"python": platform.python_version(), "torch": version("torch"), "kernel": platform.release()},
    )


def ceiling_gflops(hardware: Hardware, clock: float) -> dict[str, float]:
    """Operations per nanosecond by dtype if every port started a multiply-add in every cycle."""
    float32 = hardware.cores * clock * FMA_PORTS * 2 * _vector_bytes(hardware) / ITEM_BYTES["float32"]
    gain = next((gain for flag, gain in MATRIX_GAIN.items() if flag in hardware.vector_flags), 1)
    return {"float32": float32, "bfloat16": float32 * gain}


def ceiling_cache_gb_s(hardware: Hardware, clock: float) -> float:
    """Bytes per nanosecond if every port loaded a full vector in every cycle."""
    return hardware.cores * clock * LOAD_PORTS * _vector_bytes(hardware)


def _vector_bytes(hardware: Hardware) -> int:
    return next((width for flag, width in VECTOR_BYTES.items() if flag in hardware.vector_flags), 16)
