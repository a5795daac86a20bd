"""Who goes first while something is measured: the judge, then what it measures, then everybody else on this host.

Without it a busy neighbour decides the timings: a thread that wakes may wait for the next clock tick, and a kernel
whose threads meet at a barrier waits for the slowest. The judge's own thread has it for a whole judgement, a candidate
only while it is measured, after it was found correct; where the host does not permit it, timings are as noisy as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# pathlib costs more than the files here, which are read before each workload:
# ruff: noqa: PTH123, PTH208

MEASURED_PRIORITY = 1
JUDGE_PRIORITY = 2
"""Above what it measures, so that a deadline always comes."""
REAL_TIME = "real-time"
"""What a verdict says of the host's scheduling where the priority was granted."""


def hasten(pid: int) -> None:
    """Gives all threads of a process real-time priority; threads that they start inherit it."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(MEASURED_PRIORITY))


@contextlib.contextmanager
def measuring() -> Iterator[bool]:
    """Real-time priority for the calling thread, for as long as the context lasts; yields whether it was granted.

    Contexts may be nested.
    """
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


@contextlib.contextmanager
def measuring_itself() -> Iterator[bool]:
    """Real-time priority for all threads of this process, for as long as the context lasts; yields whether it was
    granted. For measuring what the machine can do, with trusted code only: others get the cores when it is done.
    """
    with measuring() as granted:
        if granted:
            hasten(os.getpid())
        try:
            yield granted
        finally:
            if granted:
                _relax(os.getpid())


def _relax(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


@contextlib.contextmanager
def on_the_same_core(pids: Sequence[int], choice: random.Random) -> Iterator[Callable[[], None]]:
    """Yields what has to be called before each pair: of two pairs in a row both sides run on the same core.

    Each process stays on the core where it is while nothing drives it away, and cores differ by some per cent, with
    their neighbours: what lasts as long as the run looks like a gain. Only the first thread of each process is moved,
    those that it keeps (OpenMP's) stay free. Where one starts threads for each call, which would inherit its
    place, none is moved. On exit all may run anywhere again.
    """
    cores = os.sched_getaffinity(0)
    if len(cores) == 1 or any(starts_threads(pid) for pid in pids):
        yield lambda: None
        return
    pairs = itertools.count()

    def move() -> None:
        if next(pairs) % 2 == 0:
            _place(pids, {choice.choice(sorted(cores))})

    try:
        yield move
    finally:
        _place(pids, cores)


def starts_threads(pid: int) -> bool:
    """Whether threads that have ended did some of the work of a process so far: more than a twentieth."""
    try:
        whole_ns = worked_ns(pid)
        living_ns = sum(_ran_ns(f"/proc/{pid}/task/{task}/schedstat") for task in os.listdir(f"/proc/{pid}/task"))
    except OSError:  # a thread, or the process, has ended meanwhile; or the kernel does not count
        return True
    return whole_ns - living_ns > whole_ns / 20


def wants_a_core(pid: int) -> bool:
    """Whether a thread of another process runs at this moment, or waits for a core to run on.

    Raises:
        OSError: it, or a thread of it, has ended.
    """
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", "rb", buffering=0) as file:
            if file.read(256).rpartition(b")")[2].split()[0] == b"R":
                return True
    return False


def worked_ns(pid: int) -> int:
    """Processor time of another process so far, its ended threads included.

    Raises:
        OSError: it has ended.
    """
    return time.clock_gettime_ns(_cpu_clock(pid))


def _ran_ns(schedstat: str) -> int:
    with open(schedstat, "rb", buffering=0) as file:
        return int(file.read(64).split()[0])


def _cpu_clock(pid: int) -> int:
    """The clock of another process, its ended threads included, as `clock_getcpuclockid(3)` makes it on Linux."""
    return (~pid << 3) | 2


def _place(pids: Sequence[int], cores: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, cores)
