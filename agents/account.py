"""Accounts: where a search, or a day, stands with its budget, as a ledger tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.caps import Caps
from agents.spending import Amount


@dataclass(frozen=True)
class Account:
    """Where one search, or one day, stands."""

    name: str
    """Id of the search, or the day."""
    caps: Caps
    """As they were last set."""
    spent: Amount
    """What was abandoned included."""
    in_flight: Amount
    abandoned: Amount
    """Set aside for calls whose process died before it could say what they cost."""
    calls: int = 0
    """Settled."""
    calls_in_flight: int = 0
    calls_abandoned: int = 0

    @property
    def remaining(self) -> Caps:
        return self.caps.left(self.spent + self.in_flight)


@dataclass(frozen=True)
class Counted:
    """An open reservation, as others see it."""

    search: str
    day: str
    purpose: str
    amount: Amount
    abandoned: bool


def account(name: str, caps: Caps, spent: Mapping[str, tuple[Amount, int]], reservations: Sequence[Counted]) -> Account:
    """Of one search or day.

    Args:
        spent: what was settled, and in how many calls, by name.
        reservations: its own that are open.
    """
    settled, calls = spent.get(name, (Amount(), 0))
    gone, flying = ([entry.amount for entry in reservations if entry.abandoned is state] for state in (True, False))
    abandoned = sum(gone, Amount())
    return Account(name, caps, settled + abandoned, sum(flying, Amount()), abandoned, calls, len(flying), len(gone))
