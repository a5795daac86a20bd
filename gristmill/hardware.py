"""Which hardware this is: the key under which kernels are proven, published and loaded."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
VECTOR_FLAGS = (
    *("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_bf16"),
    *("asimd", "sve"),
)
"""CPU flags that object code may depend on, narrowest first; the widest one present ends the key."""


@dataclass(frozen=True)
class Hardware:
    """The identity of an execution device, without anything that names the machine itself."""

    key: str
    """Architecture, vendor, family, model and vector features: `x86_64-AuthenticAMD-25-17-avx512_bf16`."""
    description: str
    """What a person would call it."""
    cores: int
    """Logical processors this process may use."""
    vector_flags: tuple[str, ...]
    """The members of `VECTOR_FLAGS` that the CPU has."""


@functools.cache
def local_cpu() -> Hardware:
    """The CPU this process runs on."""
    return describe_cpu(CPUINFO.read_text() if CPUINFO.exists() else "", platform.machine(), _usable_cores())


def describe_cpu(cpuinfo: str, machine: str, cores: int) -> Hardware:
    """Reads the first processor of a Linux `cpuinfo` text."""
    facts: dict[str, str] = {}
    for line in cpuinfo.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    features = (facts.get("flags") or facts.get("Features") or "").split()
    vector_flags = tuple(flag for flag in VECTOR_FLAGS if flag in features)
    vendor = facts.get("vendor_id") or facts.get("CPU implementer") or "unknown"
    family = facts.get("cpu family") or facts.get("CPU architecture") or "0"
    model = facts.get("model") or facts.get("CPU part") or "0"
    widest = vector_flags[-1] if vector_flags else "scalar"
    return Hardware(
        key=f"{machine}-{vendor}-{family}-{model}-{widest}",
        description=facts.get("model name") or machine,
        cores=cores,
        vector_flags=vector_flags,
    )


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
