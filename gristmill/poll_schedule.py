"""When to poll: hosts that start at once do not ask at once, and a store that fails is asked less often."""

from __future__ import annotations

import random
from collections.abc import Callable

JITTER = 0.1
LONGEST_INTERVALS = 8
"""A host that cannot poll waits no longer than this many intervals: what is revoked meanwhile must reach it soon."""


class PollSchedule:
    """The pauses of one host. Not thread-safe."""

    def __init__(self, interval_s: float, draw: Callable[[], float] = random.random) -> None:
        """`draw` gives numbers from 0 to below 1."""
        self._interval_s = interval_s
        self._draw = draw
        self._failures = 0

    def first_s(self) -> float:
        """Seconds from the start to the first poll: anywhere in an interval."""
        return self._interval_s * self._draw()

    def next_s(self, failed: bool) -> float:
        """Seconds from a poll to the next: an interval, more or less; after failures anywhere up to 2, 4, ... of them.

        The first poll that succeeds ends that.
        """
        self._failures = self._failures + 1 if failed else 0
        shortest = 1 - JITTER
        longest = min(2.0 ** min(self._failures, 16), LONGEST_INTERVALS) if failed else 1 + JITTER
        return self._interval_s * (shortest + (longest - shortest) * self._draw())
