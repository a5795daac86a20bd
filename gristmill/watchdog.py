"""The watchdog: runs kernels on a thread that can be left behind, for nobody can end a call that does not come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gristmill.errors import NativeKernelError

T = TypeVar("T")
TICKS = 60
"""For one call at a smoke test's size, or for packing one weight."""
TICK_S = 1.0
"""Ticks are counted rather than a clock read: a process that was stopped for an hour has lost one of them."""


class OverdueError(NativeKernelError):
    """A call has not come back."""


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Callable[[], None]], T]) -> None:
        self._work = work
        self.done = threading.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None
        self.ticks = 0

    def beat(self) -> None:
        self.ticks = 0

    def run(self) -> None:
        try:
            self.results.append(self._work(self.beat))
        except BaseException as error:
            self.error = error
        self.done.set()


class Watchdog:
    """Runs one piece of work after the other for one caller. `close` it; what hangs then is left behind."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job[object] | None] | None = None

    def run(self, work: Callable[[Callable[[], None]], T]) -> T:
        """What `work` returns or raises; it is given a function to call at each step, after which it has all its time
        again.

        Raises:
            OverdueError: it has not come back, and goes on by itself.
        """
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_obey, args=(self._jobs,), name="gristmill-trial", daemon=True).start()
        job = _Job(work)
        self._jobs.put(job)  # type: ignore[arg-type]
        while not job.done.wait(TICK_S):
            job.ticks += 1
            if job.ticks >= TICKS:
                self.close()
                raise OverdueError(f"has not come back for {TICKS * TICK_S:.0f} s; its thread is left behind")
        if job.error is not None:
            raise job.error
        return job.results[0]

    def close(self) -> None:
        """Ends its thread, once that is free."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _obey(jobs: queue.SimpleQueue[_Job[object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
