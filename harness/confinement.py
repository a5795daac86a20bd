"""What a sandboxed process may see and use, and how a zygote is asked for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from harness import confine

SYSTEM_PATHS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
"""What a program needs of the host to be linked and loaded. Those that are links stay links."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Resource limits of one sandboxed process and all that it starts."""

    memory_bytes: int = 4096 * MEBIBYTE
    """Address space."""
    resident_bytes: int = 3072 * MEBIBYTE
    """Memory that it fills itself, its /tmp included, where this host has control groups for it."""
    cpu_s: int = 300
    files: int = 64
    processes: int = 128
    """Threads included."""
    file_bytes: int = 64 * MEBIBYTE
    scratch_bytes: int = 64 * MEBIBYTE
    """Size of the private /tmp, which is memory."""


class Filter(StrEnum):
    """Which system calls are refused, and by whom the filter is installed."""

    PROGRAMS = confine.PROGRAMS
    """For compilers: other programs may be started."""
    KERNEL = confine.KERNEL
    """Threads may be started, and nothing else."""
    HANDED_OVER = confine.HANDED_OVER
    """As `KERNEL`, installed by the program: its last argument is the number of a descriptor from which it reads an
    array of `struct sock_filter`, or -1 where this host has no such filter."""


@dataclass(frozen=True)
class Confinement:
    """What a sandboxed process may see and use."""

    limits: Limits = Limits()
    visible: tuple[tuple[str, str], ...] = ()
    """Host paths and where they appear, read-only, besides the system's own."""
    proc: bool = False
    nice: int = 0
    cwd: str = "/"
    trusted: bool = False
    """Our own code: no walls, only the watch that ends it with the judge."""
    filter: Filter | None = None
    """None means `KERNEL` for a runner and `PROGRAMS` for an argv."""


def request(
    confinement: Confinement,
    argv: Sequence[str] | None,
    program: Mapping[str, Any] | None,
    keep: Sequence[int],
    environment: Mapping[str, str] | None,
    stdout: int,
    stderr: int,
) -> tuple[dict[str, Any], list[int]]:
    """A zygote's request, and the descriptors that go with it, besides the lifeline."""
    kind = confinement.filter or (Filter.KERNEL if argv is None else Filter.PROGRAMS)
    if kind is (Filter.HANDED_OVER if argv is None else Filter.KERNEL):
        raise ValueError(f"filter {kind} does not go with {'a runner' if argv is None else 'an argv'}")
    redirected = {number: fd for number, fd in ((1, stdout), (2, stderr)) if fd >= 0}
    spec = {
        "numbers": [*redirected, *keep],
        "argv": list(argv) if argv is not None else None,
        "program": dict(program or {}),
        "environment": dict(environment or {}),
        "visible": [[path, path] for path in SYSTEM_PATHS] + [list(pair) for pair in confinement.visible],
        "proc": confinement.proc,
        "nice": confinement.nice,
        "trusted": confinement.trusted,
        "cwd": confinement.cwd,
        "filter": kind.value,
        "limits": asdict(confinement.limits),
    }
    return spec, [*redirected.values(), *keep]
