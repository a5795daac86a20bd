"""The seam between who spends and the budget that holds the caps: reserve before, settle after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Amount:
    """Money and time, of one call or of many."""

    usd: float = 0.0
    tokens: int = 0
    device_s: float = 0.0
    """Seconds that a judge was busy."""
    wall_s: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.usd + other.usd,
            self.tokens + other.tokens,
            self.device_s + other.device_s,
            self.wall_s + other.wall_s,
        )


class Reservation(Protocol):
    """What one call may spend. Exactly one of the two ends it; one that nobody ended counts in full."""

    @property
    def amount(self) -> Amount:
        """What was set aside."""
        ...

    def settle(self, actual: Amount) -> None:
        """It was made, and cost this (more than reserved, at worst)."""
        ...

    def cancel(self) -> None:
        """It was never made."""
        ...


class Budget(Protocol):
    """Caps per search and per day over all workers and restarts. Thread-safe, and safe among processes."""

    def reserve(self, most: Amount, purpose: str, least: Amount | None = None) -> Reservation:
        """Sets `most` aside; on disk before it returns. Given `least`, what a cap leaves is enough, if it is so much.

        Raises:
            BudgetSpentError: spent, in flight and `most` (or `least`) together pass a cap; the message names it.
        """
        ...
