"""Who goes first while something is measured: the judge, then what it measures, then everybody else on this host.

Without it a busy neighbour decides the timings: a thread that wakes may wait for the next clock tick, and a kernel
whose threads meet at a barrier waits for the slowest. Only while measuring, and only after a candidate was found
correct; where the host does not permit it, timings are as noisy as the host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MEASURED_PRIORITY = 1
JUDGE_PRIORITY = 2
"""Above what it measures, so that a deadline always comes."""


def hasten(pid: int) -> None:
    """Gives all threads of a process real-time priority; threads that they start inherit it."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(MEASURED_PRIORITY))


@contextlib.contextmanager
def measuring() -> Iterator[bool]:
    """Real-time priority for the calling thread, for as long as the context lasts; yields whether it was granted."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(JUDGE_PRIORITY))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, parameters)
