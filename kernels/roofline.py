"""The roofline: how fast this machine could run a workload at best (Williams, Waterman, Patterson, CACM 52(4), 2009).

Two answers, for two uses. `roofline_ns` is the honest estimate from what torch reaches on this machine; it ranks work.
`floor_ns` is a time that no correct kernel can beat; the judge convicts by it, so every doubt goes to the accused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError
from gristmill.hardware import CPUINFO, Hardware, local_cpu
from gristmill.workload import ITEM_BYTES, Workload
from kernels.definition import Definition
from kernels.layouts import distinct_bytes

CEILING_MARGIN = 1.5
"""What a floor allows above the architectural ceilings: a clock that boosts beyond what cpuinfo states."""
MEMORY_MARGIN = 3.0
"""What a floor allows above the measured memory bandwidth: the measurement may have shared the memory with other
processes, torch may not saturate it, and a cache may serve some reads although the inputs rotate. Rotate over four
times the last level. A cheat that skips the work is faster by far more.
"""
SCHEMA_VERSION = 1
CACHE_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")
FALLBACK_CLOCK_GHZ = 4.0
"""Where cpuinfo states no clock (Arm)."""
VECTOR_BYTES = {"avx512f": 64, "sve": 64, "avx2": 32, "asimd": 32}
"""Bytes of the widest vector register by CPU flag, widest first; Arm's counts double: it comes on four ports."""
FMA_PORTS = 2
"""Vector multiply-adds that a core starts per cycle at most."""
LOAD_PORTS = 3
"""Vector loads, likewise."""
MATRIX_GAIN = {"amx_bf16": 16, "avx512_bf16": 2, "asimd": 4}
"""Multiply-adds in bfloat16 per one in float32, by CPU flag; Arm's matrix extension has no flag in our list."""

STREAM_BYTES = 256 << 20
CACHE_RESIDENT_BYTES = 256 << 10
GEMM_SIZE = 768
MEASUREMENT_S = 0.25
"""Time spent on each of the measurements."""


@dataclass(frozen=True)
class Peaks:
    """What one machine can do. Rates are totals over all its cores."""

    hardware: str
    """`Hardware.key`."""
    cores: int
    memory_bandwidth_gb_s: float
    """Measured: best of reading, copying and filling a buffer that no cache holds."""
    cache_bandwidth_gb_s: float
    """Measured: reading a buffer that the private caches hold."""
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
    schema_version: int = field(default=SCHEMA_VERSION)


def roofline_ns(definition: Definition, workload: Workload, peaks: Peaks, *, cached: bool = False) -> float:
    """Estimated best time of one call: the longer of computing at peak and moving the bytes at peak bandwidth."""
    read, written, flops = _demand(definition, workload)
    bandwidth = peaks.cache_bandwidth_gb_s if cached else peaks.memory_bandwidth_gb_s
    return max(flops / peaks.gflops[workload.dtype], (read + written) / bandwidth)


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
    """The peaks kept in that file; measured (and kept) when the file is missing, unreadable or from other hardware.

    The file appears by rename, so that a killed process leaves the old one or none.
    """
    hardware = local_cpu()
    try:
        kept = records.parse(Peaks, path.read_bytes(), str(path))
    except (FileNotFoundError, MalformedRecordError):
        kept = None
    if kept and (kept.hardware, kept.cores, kept.schema_version) == (hardware.key, hardware.cores, SCHEMA_VERSION):
        return kept
    peaks = measure_peaks()
    path.parent.mkdir(parents=True, exist_ok=True)
    durable_file.write(path, records.canonical_json(peaks))
    return peaks


def measure_peaks() -> Peaks:
    """Measures this machine with torch's own kernels; about two seconds. Sets no thread count: it takes torch's."""
    hardware = local_cpu()
    measured = _measure_gflops()
    ceilings = ceiling_gflops(hardware, clock_ghz(_cpuinfo()))
    sizes = cache_sizes(CACHE_ROOT)
    cache_bandwidth = _measure_cache_bandwidth()
    return Peaks(
        hardware=hardware.key,
        cores=hardware.cores,
        memory_bandwidth_gb_s=_measure_memory_bandwidth(),
        cache_bandwidth_gb_s=cache_bandwidth,
        cache_ceiling_gb_s=max(cache_bandwidth, ceiling_cache_gb_s(hardware, clock_ghz(_cpuinfo()))),
        gflops=measured,
        gflops_ceiling={dtype: max(measured[dtype], ceilings[dtype]) for dtype in measured},
        l1_bytes=sizes.get(1, 0),
        l2_bytes=sizes.get(2, 0),
        l3_bytes=sizes.get(3, 0),
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


def clock_ghz(cpuinfo: str) -> float:
    """The fastest clock that a Linux `cpuinfo` text states."""
    stated = [line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("cpu MHz")]
    return max((float(text) / 1000 for text in stated), default=FALLBACK_CLOCK_GHZ)


def cache_sizes(root: Path) -> dict[int, int]:
    """Bytes by cache level, data and unified caches only, from sysfs."""
    sizes: dict[int, int] = {}
    for index in sorted(root.glob("index*")):
        facts = {name: (index / name).read_text().strip() for name in ("level", "type", "size")}
        if facts["type"] != "Instruction":
            unit = {"K": 1 << 10, "M": 1 << 20}.get(facts["size"][-1:], 1)
            sizes[int(facts["level"])] = int(facts["size"].rstrip("KM")) * unit
    return sizes


def _cpuinfo() -> str:
    return CPUINFO.read_text() if CPUINFO.exists() else ""


def _measure_memory_bandwidth() -> float:
    import torch

    source = torch.ones(STREAM_BYTES // 8)
    target = torch.empty_like(source)
    size_bytes = source.numel() * source.element_size()
    streams: Mapping[str, tuple[Callable[[], Any], int]] = {
        "read": (source.sum, size_bytes),
        "copy": (lambda: target.copy_(source), 2 * size_bytes),
        "fill": (lambda: target.fill_(1.0), size_bytes),
    }
    threads = torch.get_num_threads()
    try:
        # One thread as well: on a busy host many threads wait for one another, and one core nearly fills the bus.
        torch.set_num_threads(1)
        alone = size_bytes / _best_ns(source.sum)
    finally:
        torch.set_num_threads(threads)
    return max(alone, *(moved / _best_ns(call) for call, moved in streams.values()))


def _measure_cache_bandwidth() -> float:
    """Sums over a buffer that is expanded to be read many times: one call of torch, no start-up cost per pass."""
    import torch

    resident = torch.ones(CACHE_RESIDENT_BYTES // 4)
    repeated = resident.expand(256, -1)
    return repeated.numel() * resident.element_size() / _best_ns(repeated.sum)


def _measure_gflops() -> dict[str, float]:
    import torch

    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=dtype)
        rates[str(dtype).removeprefix("torch.")] = 2 * GEMM_SIZE**3 / _best_ns(partial(torch.mm, square, square))
    return rates


def _best_ns(call: Callable[[], Any]) -> int:
    """The shortest of as many calls as fit into the measurement's time, at least three."""
    times: list[int] = []
    deadline = time.perf_counter_ns() + int(MEASUREMENT_S * 1e9)
    while len(times) < 3 or time.perf_counter_ns() < deadline:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return max(1, min(times))
