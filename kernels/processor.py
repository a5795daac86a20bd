"""What the system states of its processor: caches, physical cores, clock. Nothing here is measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gristmill.hardware import CPUINFO

CPUS = Path("/sys/devices/system/cpu")
FALLBACK_CLOCK_GHZ = 4.0
"""Where cpuinfo states no clock (Arm)."""
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One level of data cache, as the first core sees it."""

    level: int
    size_bytes: int
    line_bytes: int
    """0 where the system does not say."""
    shared_by: int
    """Logical processors that share one such cache."""


def caches(root: Path = CPUS / "cpu0" / "cache") -> tuple[Cache, ...]:
    """Data and unified caches from sysfs, innermost first; none where the system does not say."""
    found = []
    for index in root.glob("index*"):
        if _stated(index / "type") != "Instruction" and _stated(index / "level").isdigit():
            found.append(
                Cache(
                    level=int(_stated(index / "level")),
                    size_bytes=_size_bytes(_stated(index / "size")),
                    line_bytes=int(_stated(index / "coherency_line_size") or 0),
                    shared_by=count_processors(_stated(index / "shared_cpu_list")) or 1,
                )
            )
    return tuple(sorted(found, key=lambda cache: cache.level))


def physical_cores(root: Path = CPUS) -> int:
    """Cores behind the logical processors that this process may use; as many as these where the system does not say."""
    usable = os.sched_getaffinity(0)
    siblings = {_stated(root / f"cpu{number}" / "topology" / "thread_siblings_list") for number in usable}
    return len(usable) if "" in siblings else len(siblings)


def clock_ghz(cpuinfo: str) -> float:
    """The fastest clock that a Linux `cpuinfo` text states."""
    stated = [line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("cpu MHz")]
    return max((float(text) / 1000 for text in stated), default=FALLBACK_CLOCK_GHZ)


def local_clock_ghz() -> float:
    """The same of this machine."""
    return clock_ghz(CPUINFO.read_text() if CPUINFO.exists() else "")


def count_processors(listed: str) -> int:
    """How many processors a list like `0-3,8` names; 0 for an empty one."""
    total = 0
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _size_bytes(text: str) -> int:
    digits = text.rstrip("KMG")
    return int(digits) * UNITS.get(text[len(digits) :], 1) if digits.isdigit() else 0


def _stated(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
