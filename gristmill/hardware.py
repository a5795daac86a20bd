"""Which hardware this is: the key under which kernels are proven, published and loaded."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER, AMD_DRIVER = Path("/dev/nvidiactl"), Path("/dev/kfd")
"""There where a GPU can be used; without them no tool is asked for any."""
NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
AMD_QUERY = ("rocminfo",)
QUERY_S = 20.0
AMD_ARCHITECTURE = re.compile(r"gfx[0-9a-f]{3,4}(?![0-9a-z])")
VECTOR_FLAGS = (
    *("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_bf16"),
    *("asimd", "sve"),
)
"""CPU flags that object code may depend on, narrowest first; the widest one present ends the key."""


@dataclass(frozen=True)
class Hardware:
    """The identity of an execution device, without anything that names the machine itself."""

    key: str
    """Of a CPU: architecture, vendor, family, model and vector features, `x86_64-AuthenticAMD-25-17-avx512_bf16`. Of a
    GPU: its exact architecture and the name that its driver gives it, `sm_90-NVIDIA_H200`; on AMD's, which can be split
    without a change of name, with the compute units, `gfx942-AMD_Instinct_MI300X-304`.
    """
    description: str
    """What a person would call it."""
    cores: int
    """Logical processors this process may use; a GPU's multiprocessors, 0 where nobody said."""
    vector_flags: tuple[str, ...]
    """The members of `VECTOR_FLAGS` that the CPU has; none on a GPU."""


@functools.cache
def local_cpu() -> Hardware:
    """The CPU this process runs on."""
    return describe_cpu(CPUINFO.read_text() if CPUINFO.exists() else "", platform.machine(), _usable_cores())


def local_hardware() -> Hardware:
    """The first GPU of this host; the CPU where there is none, or none that says what it is."""
    return local_gpu() or local_cpu()


def hardware_of(device_type: str) -> Hardware:
    """What computes on tensors of that torch device type in this process."""
    return local_hardware() if device_type == "cuda" else local_cpu()  # torch calls AMD's so as well


def device_type(model: Any) -> str:
    """Of the device that a torch model's weights are on; `cpu` if it has none."""
    return next((str(parameter.device.type) for parameter in model.parameters()), "cpu")


def local_gpu() -> Hardware | None:
    """The GPU that torch uses in this process, or, while it uses none, the first that the drivers' tools name. Torch is
    not asked before, because asking makes the process hold the device.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return gpu_of_properties(torch.cuda.get_device_properties(torch.cuda.current_device()))
    return next(iter(_listed_gpus()), None)


@functools.cache
def _listed_gpus() -> tuple[Hardware, ...]:
    nvidia = gpus_of_nvidia_smi(_said(NVIDIA_QUERY)) if NVIDIA_DRIVER.exists() else ()
    return nvidia or (gpus_of_rocminfo(_said(AMD_QUERY)) if AMD_DRIVER.exists() else ())


def _said(command: Sequence[str]) -> str:
    import subprocess  # hosts without a GPU need not wait for it

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def describe_gpu(name: str, architecture: str, multiprocessors: int = 0) -> Hardware:
    """A GPU by what is reported of it.

    Args:
        architecture: as compilers name it, without features that do not change which code runs: `sm_90`, `gfx942`.
    """
    key = f"{architecture}-{re.sub(r'[^A-Za-z0-9.]+', '_', name).strip('_') or 'unknown'}"
    if architecture.startswith("gfx") and multiprocessors:
        key = f"{key}-{multiprocessors}"
    return Hardware(key=key, description=name, cores=multiprocessors, vector_flags=())


def gpu_of_properties(properties: Any) -> Hardware:
    """Of what `torch.cuda.get_device_properties` returns, in a build for CUDA or for ROCm."""
    amd = AMD_ARCHITECTURE.match(str(getattr(properties, "gcnArchName", "")))
    architecture = amd.group() if amd else f"sm_{properties.major}{properties.minor}"
    return describe_gpu(properties.name, architecture, properties.multi_processor_count)


def gpus_of_nvidia_smi(text: str) -> tuple[Hardware, ...]:
    """Of what `NVIDIA_QUERY` prints, one GPU a line. It does not tell parts (MIG) from the whole; torch does."""
    found = (re.fullmatch(r"(.+), *([0-9]+)\.([0-9]+)", line.strip()) for line in text.splitlines())
    return tuple(describe_gpu(one[1].strip(), f"sm_{one[2]}{one[3]}") for one in found if one)


def gpus_of_rocminfo(text: str) -> tuple[Hardware, ...]:
    """Of what `rocminfo` prints: a block per agent, of which CPUs are some."""
    return tuple(
        describe_gpu(
            facts.get("Marketing Name") or facts["Name"], facts["Name"], _number(facts.get("Compute Unit", ""))
        )
        for block in re.split(r"^Agent \d+", text, flags=re.MULTILINE)[1:]
        if (facts := _facts(block)).get("Device Type") == "GPU" and AMD_ARCHITECTURE.fullmatch(facts.get("Name", ""))
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _facts(block: str) -> dict[str, str]:
    """The lines `Name: value` of a block; of a name that comes again (there are blocks within) the first."""
    facts: dict[str, str] = {}
    for line in block.splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    return facts


def kind_of_key(key: str) -> str:
    """`cuda`, `rocm` or `cpu`: keys of NVIDIA's devices start with `sm_` or `cuda`, those of AMD's with `gfx` or
    `rocm`, CPUs' with neither.
    """
    prefixes = {"sm_": "cuda", "cuda": "cuda", "gfx": "rocm", "rocm": "rocm"}
    return next((found for prefix, found in prefixes.items() if key.startswith(prefix)), "cpu")


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
