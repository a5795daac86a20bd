"""Which process it was, so that a later one can tell whether it lives: ids are used again, start times are not."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
BOOT_ID = PROC / "sys" / "kernel" / "random" / "boot_id"
DEAD = "ZX"
"""States of processes that run no more, though the kernel still lists them."""


def own() -> str:
    """`boot/pid/start`: differs between any two processes that this host ever runs."""
    pid = os.getpid()
    started = _started(pid)
    assert started, "a process that asks is alive"
    return f"{_boot()}/{pid}/{started}"


def alive(identity: str) -> bool:
    """Whether that process runs here and now. One of another PID namespace does not, as far as can be seen."""
    boot, _, rest = identity.partition("/")
    pid, _, started = rest.partition("/")
    return boot == _boot() and pid.isdecimal() and bool(started) and _started(int(pid)) == started


def _boot() -> str:
    return BOOT_ID.read_text().strip()


def _started(pid: int) -> str:
    """Clock ticks from boot to the start of a process; empty if it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    # The second field is a name in brackets that may hold spaces and brackets.
    state, *others = stat.rpartition(")")[2].split()
    return "" if state in DEAD else others[18]
