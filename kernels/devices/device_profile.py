"""Hardware profiles: what vendors state of a device, one file each in this folder, with the source of every number.

A profile is of one device and of its exact architecture; nothing is taken over from a neighbour, so that a new device
is one new file. What no source states is left out of a file. Peaks that were measured stand elsewhere
(`kernels.roofline`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.hardware import describe_gpu
from kernels.errors import DeviceProfileError

FOLDER = Path(__file__).parent
ARCHITECTURE = re.compile(r"sm_[1-9]\d{1,2}[af]?|gfx[1-9][0-9a-f]{2,3}|(?:x86_64|aarch64)(?:-[A-Za-z0-9]+){3}")
"""As compilers name that of a GPU; of a CPU the first four parts of `Hardware.key`."""
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
DTYPES = ("float32", "bfloat16", "float8", "int8")
"""That peaks are stated for: float16 is as fast as bfloat16, and float8 is any format of eight bits."""
LARGEST_BYTES = 1 << 20
"""Of a file."""


@dataclass(frozen=True)
class CacheLevel:
    """One level of data cache."""

    level: int
    size_bytes: int
    """Of one of them; on NVIDIA's devices the first level holds shared memory as well."""
    count: int
    """How many the device has."""


@dataclass(frozen=True)
class DeviceLimits:
    """What a GPU holds at once: of one multiprocessor (AMD: compute unit), and of one block of threads on it."""

    warp_threads: int
    """Threads of a warp (AMD: wavefront)."""
    warps: int
    """That live at once on a multiprocessor."""
    blocks: int
    """Likewise."""
    block_threads: int
    """Threads of a block, at most."""
    registers: int
    """Of a multiprocessor, of 32 bits; on AMD's devices those of all its SIMDs, accumulators included."""
    thread_registers: int
    """That one thread can have."""
    register_unit: int
    """Registers of a thread are given out in multiples of this."""
    shared_bytes: int
    """Shared memory (AMD: LDS) of a multiprocessor."""
    block_shared_bytes: int
    """At most, for a kernel that asks for it."""
    reserved_shared_bytes: int
    """That the system takes of each block, beside what the kernel asks for."""


@dataclass(frozen=True)
class Source:
    """A public document, and what was read in it."""

    title: str
    """Of the document, with its version or the place in it."""
    url: str
    states: tuple[str, ...]
    """Numbers of the profile, as `gflops.bfloat16`; the name of a group stands for all of it."""


@dataclass(frozen=True)
class DeviceProfile:
    """One device."""

    name: str
    """As commands take it: `h200`. The file is `ARCHITECTURE-NAME.json`."""
    title: str
    """What a person would call it, with the form that the numbers are of."""
    architecture: str
    """Exactly: `sm_90`, `gfx942`; for CPUs the start of `Hardware.key`."""
    reported_as: tuple[str, ...]
    """Names that drivers give it, as torch does."""
    memory_bandwidth_gb_s: float
    """Peak."""
    gflops: dict[str, float]
    """Peak of dense products by dtype, one of `DTYPES`, without sparsity; float32 always, by vector units."""
    sources: tuple[Source, ...]
    """Each number is stated by exactly one."""
    multiprocessors: int | None = None
    """Streaming multiprocessors (AMD: compute units; CPUs: cores)."""
    caches: tuple[CacheLevel, ...] = ()
    """Innermost first, as far as stated."""
    limits: DeviceLimits | None = None
    """CPUs have none."""
    schema_version: int = 1

    @property
    def backend(self) -> str:
        """`cuda`, `hip` (as Triton names them) or `cpu`."""
        return {"sm_": "cuda", "gfx": "hip"}.get(self.architecture[:3], "cpu")

    @property
    def file_name(self) -> str:
        return f"{self.architecture}-{self.name}.json"


@functools.cache
def profiles() -> Mapping[str, DeviceProfile]:
    """Those of this folder by name."""
    return read_folder(FOLDER)


def limits_of(architecture: str) -> DeviceLimits:
    """What any device of exactly that architecture holds at once.

    Raises:
        DeviceProfileError: no profile has its limits. Those of `sm_100` are not those of `sm_103`.
    """
    known = {one.architecture: one.limits for one in profiles().values() if one.limits}
    try:
        return known[architecture]
    except KeyError:
        raise DeviceProfileError(
            f"architecture {architecture!r}: no hardware profile states its limits, expected "
            f"{', '.join(sorted(known))}; add a file to kernels/devices"
        ) from None


def profile_of(key: str) -> DeviceProfile | None:
    """Of the GPU that has this hardware key, if it is the whole of one that is known."""
    for profile in profiles().values():
        known = (describe_gpu(name, profile.architecture, profile.multiprocessors or 0) for name in profile.reported_as)
        if profile.backend != "cpu" and any(one.key == key for one in known):
            return profile
    return None


def read_folder(folder: Path) -> dict[str, DeviceProfile]:
    """All profiles of a folder by name, in the order of their names.

    Raises:
        DeviceProfileError: a file is no profile or is not named after it, or two contradict each other.
    """
    found: dict[str, DeviceProfile] = {}
    for path in sorted(folder.glob("*.json")):
        with path.open("rb") as file:
            profile = parse(file.read(LARGEST_BYTES), path.name)
        if path.name != profile.file_name:
            raise DeviceProfileError(
                f"{path.name}: holds {profile.name} of {profile.architecture}; name it {profile.file_name}"
            )
        if profile.name in found:
            raise DeviceProfileError(f"{path.name}: {found[profile.name].file_name} holds a {profile.name} already")
        found[profile.name] = profile
    _check_agreement(found.values())
    return dict(sorted(found.items()))


def parse(content: bytes | str, where: str) -> DeviceProfile:
    """A profile from its file.

    Raises:
        DeviceProfileError: with the place, what was found and what was expected.
    """
    try:
        profile = records.parse(DeviceProfile, content, where)
    except (MalformedRecordError, UnicodeDecodeError) as error:
        raise DeviceProfileError(str(error)) from None
    for problem in _problems(profile):
        raise DeviceProfileError(f"{where}: {problem}")
    return profile


def _problems(profile: DeviceProfile) -> Iterator[str]:
    if not NAME.fullmatch(profile.name):
        yield f"name is {profile.name!r}, expected lower-case words such as h200, joined by -"
    if not ARCHITECTURE.fullmatch(profile.architecture):
        yield f"architecture is {profile.architecture!r}, expected sm_90, gfx942 or x86_64-VENDOR-FAMILY-MODEL"
    if profile.schema_version != 1:
        yield f"schema_version is {profile.schema_version}, expected 1"
    unknown = sorted(set(profile.gflops) - set(DTYPES))
    if unknown or "float32" not in profile.gflops:
        named = ", ".join(profile.gflops) or "nothing"
        yield f"gflops is of {named}, expected float32 and any of {', '.join(DTYPES[1:])}"
    numbers = dict(_numbers(profile))
    for path, number in numbers.items():
        if number < 0 or (number == 0 and path != "limits.reserved_shared_bytes"):
            yield f"{path} is {number}, expected a number above 0"
    levels = [cache.level for cache in profile.caches]
    if levels != sorted(set(levels)):
        yield f"caches are of levels {levels}, expected each once, innermost first"
    if profile.limits is not None:
        yield from _limit_problems(profile.limits)
    if (profile.limits is None) != (profile.backend == "cpu"):
        yield f"limits: expected for GPUs and for no CPU, and {profile.architecture} is for {profile.backend}"
    yield from _source_problems(profile, numbers)


def _limit_problems(limits: DeviceLimits) -> Iterator[str]:
    if limits.warps * limits.warp_threads < limits.block_threads:
        yield f"limits.warps is {limits.warps}: a block of {limits.block_threads} threads needs more"
    if limits.block_shared_bytes + limits.reserved_shared_bytes > limits.shared_bytes:
        yield f"limits.block_shared_bytes is {limits.block_shared_bytes}: with what is reserved it exceeds shared_bytes"
    if limits.thread_registers * limits.warp_threads > limits.registers:
        yield f"limits.thread_registers is {limits.thread_registers}: not even one warp fits in {limits.registers}"


def _source_problems(profile: DeviceProfile, numbers: Mapping[str, float]) -> Iterator[str]:
    if any(not source.title.strip() or not source.url.startswith("https://") for source in profile.sources):
        yield "sources: expected a title and an address that starts with https:// in each"
    stated = [path for source in profile.sources for path in source.states]
    for path in stated:
        if not any(_covers(path, number) for number in numbers):
            yield f"sources: {path!r} is stated and is no number of this file"
    for number in numbers:
        times = sum(_covers(path, number) for path in stated)
        if times != 1:
            yield f"{number}: {'no source states it' if not times else 'more than one source states it'}, expected one"


def _covers(stated: str, number: str) -> bool:
    return number == stated or number.startswith(f"{stated}.")


def _numbers(profile: DeviceProfile) -> Iterator[tuple[str, float]]:
    """All that need a source, by path."""
    encoded = records.encode(profile)
    del encoded["schema_version"], encoded["sources"]
    caches = {f"l{cache['level']}": cache["size_bytes"] for cache in encoded.pop("caches")}
    yield from _leaves({**encoded, "caches": caches}, "")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, int | float):
        yield path, value


def _check_agreement(found: Iterable[DeviceProfile]) -> None:
    """Devices of one architecture hold the same at once, and no two are reported by one name."""
    first: dict[str, DeviceProfile] = {}
    reported: dict[str, str] = {}
    for profile in found:
        other = first.setdefault(profile.architecture, profile)
        if other.limits != profile.limits:
            raise DeviceProfileError(
                f"{profile.file_name}: its limits are not those of {other.file_name}, of the same architecture"
            )
        for name in profile.reported_as:
            if reported.setdefault(name, profile.name) != profile.name:
                raise DeviceProfileError(f"{profile.file_name}: {name!r} is what {reported[name]} is reported as")
