"""Time as it is charged to a budget: a search's wall time slice by slice, a device's call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from agents.spending import Amount, Budget, Reservation

SLICE_S = 10.0
"""Of wall time: what is set aside at once, and so what a crash charges too much at most."""
FIRST_S = 1.0
"""Of device time: what is set aside for the first call."""
LEAST_S = 0.01
"""Of either: with less than that left a cap counts as spent."""

Clock = Callable[[], float]


class WallTime:
    """Use it as a context manager around a search, and `tick` often. For one thread. The last slice is what is left."""

    def __init__(self, budget: Budget, slice_s: float = SLICE_S, clock: Clock = time.monotonic) -> None:
        self._budget = budget
        self._slice_s = slice_s
        self._clock = clock
        self._started_s = 0.0
        self._slice: Reservation | None = None

    def __enter__(self) -> Self:
        """Raises BudgetSpentError where nothing is left."""
        self._reserve()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()

    def tick(self) -> None:
        """Charges the slice in hand once it is over, and sets the next one aside.

        Raises:
            BudgetSpentError: nothing is left. What was used is charged.
        """
        if self._slice is None or self._clock() - self._started_s >= self._slice.amount.wall_s:
            self._settle()
            self._reserve()

    def _reserve(self) -> None:
        most, least = Amount(wall_s=self._slice_s), Amount(wall_s=LEAST_S)
        self._slice = self._budget.reserve(most, "the search's time", least)
        self._started_s = self._clock()

    def _settle(self) -> None:
        over, self._slice = self._slice, None  # in this order: what an interrupt meets is settled all the same
        if over is not None:
            over.settle(Amount(wall_s=self._clock() - self._started_s))


class DeviceTime:
    """The time of one device, which does one thing at a time. For one thread.

    How long a call will take is not known, so what is set aside is what the longest one took so far, and for the first
    one what is left of a cap, however little. A cap is passed by the last call at most.
    """

    def __init__(self, budget: Budget, clock: Clock = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._longest_s = 0.0

    @contextmanager
    def charge(self, purpose: str) -> Iterator[list[float]]:
        """Charges the time that the block takes, also if it fails; without the seconds that it adds to the list it is
        given: those in which the device was free, and the block waited for something else.

        Raises:
            BudgetSpentError: another call does not fit; the block does not begin.
        """
        least_s = max(self._longest_s, LEAST_S)
        most_s = least_s if self._longest_s else FIRST_S
        reservation = self._budget.reserve(Amount(device_s=most_s), purpose, Amount(device_s=least_s))
        started_s = self._clock()
        waits_s: list[float] = []
        try:
            yield waits_s
        finally:
            taken_s = max(0.0, self._clock() - started_s - sum(waits_s))
            self._longest_s = max(self._longest_s, taken_s)
            reservation.settle(Amount(device_s=taken_s))
