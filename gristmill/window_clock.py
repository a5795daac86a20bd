"""The clock of windows: as long as the monotonic clock says, dated by the wall clock, which is read once and checked.

A wall clock that is set back or forward, or a machine that slept, neither stretches nor shrinks a window and never
makes one end before it starts. Where the wall clock stays somewhere else, later windows are dated by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TOLERANCE_NS = 60 * 10**9
"""A wall clock that is off by less is left to whoever keeps it."""


@dataclass(frozen=True)
class Span:
    """One window, in nanoseconds since 1970."""

    start_ns: int
    end_ns: int
    clock_off_ns: int
    """How far the wall clock was from the window's end when that was read."""


class WindowClock:
    """Windows that follow one another. Not thread-safe: its user holds a lock."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self.stamps = 0
        """How often the wall clock was believed: once, and once more for each jump that lasted."""
        self._was_off_ns = self._end_ns = 0
        self._stamp()

    def next(self) -> Span:
        """The window from the end of the last one until now."""
        start_ns = self._end_ns
        self._end_ns = max(self._now_ns(), start_ns + 1)
        off_ns = self._wall_ns() - self._end_ns
        span = Span(start_ns, self._end_ns, off_ns)
        lasted = abs(off_ns) > TOLERANCE_NS and abs(off_ns - self._was_off_ns) <= TOLERANCE_NS
        self._was_off_ns = off_ns
        if lasted:
            self._stamp()
        return span

    def _now_ns(self) -> int:
        return self._stamped_ns + self._steady_ns() - self._steady_then_ns

    def _stamp(self) -> None:
        self._stamped_ns, self._steady_then_ns = self._wall_ns(), self._steady_ns()
        self._end_ns = self._stamped_ns
        self._was_off_ns = 0
        self.stamps += 1
