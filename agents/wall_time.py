"""The wall time of a search, charged to its budget piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from agents.spending import Amount, Budget, Reservation

SLICE_S = 10.0
"""What is set aside at once, and so what a crash charges too much at most."""


class WallTime:
    """Use it as a context manager around a search, and `tick` often. For one thread."""

    def __init__(self, budget: Budget, slice_s: float = SLICE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._slice_s = slice_s
        self._clock = clock
        self._started_s = 0.0
        self._slice: Reservation | None = None

    def __enter__(self) -> Self:
        """Raises BudgetSpentError where not even the first slice fits."""
        self._reserve()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()

    def tick(self) -> None:
        """Charges the slice in hand once it is over, and sets the next one aside.

        Raises:
            BudgetSpentError: that does not fit any more. What was used is charged.
        """
        if self._clock() - self._started_s >= self._slice_s:
            self._settle()
            self._reserve()

    def _reserve(self) -> None:
        self._slice = self._budget.reserve(Amount(wall_s=self._slice_s), "the search's time")
        self._started_s = self._clock()

    def _settle(self) -> None:
        if self._slice is not None:
            self._slice.settle(Amount(wall_s=self._clock() - self._started_s))
            self._slice = None
