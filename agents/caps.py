"""Caps: what a search, and a day, may spend at most. None is no cap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from agents.errors import CapError
from agents.spending import Amount

NO_CAP = "none"
"""How a cap is switched off where text is read."""


@dataclass(frozen=True)
class Caps:
    """What may be spent in one scope: spent and in flight together."""

    usd: float | None = None
    tokens: int | None = None
    device_s: float | None = None
    wall_s: float | None = None

    def left(self, taken: Amount) -> Caps:
        """What remains of each cap, never below 0."""
        tokens = None if self.tokens is None else max(0, self.tokens - taken.tokens)
        return Caps(
            _left(self.usd, taken.usd), tokens, _left(self.device_s, taken.device_s), _left(self.wall_s, taken.wall_s)
        )


RESOURCES = tuple(entry.name for entry in fields(Caps))
"""What is counted, in the order in which it is shown; `Amount` has the same fields."""
UNITS = {"usd": "USD", "tokens": "tokens", "device_s": "device seconds", "wall_s": "seconds"}


@dataclass(frozen=True)
class BudgetCaps:
    """The caps of one search, and those of each UTC day over all searches.

    Money has caps by default, because it is the one thing that nobody gets back.
    """

    search: Caps = field(default=Caps(usd=5.0))
    day: Caps = field(default=Caps(usd=20.0))
    money_asked: tuple[str, ...] = field(default=(), compare=False)
    """Scopes whose cap on money somebody asked for, rather than being the default."""

    def with_values(self, scope: str, values: Mapping[str, float | None]) -> BudgetCaps:
        """These caps with some of one scope (`search` or `day`) replaced."""
        asked = self.money_asked
        if "usd" in values:
            kept = tuple(one for one in asked if one != scope)
            asked = kept if values["usd"] is None else (*kept, scope)
        return replace(self, **{scope: replace(getattr(self, scope), **values)}, money_asked=asked)


def cap(resource: str, value: object, where: str) -> float | None:
    """A cap from what a file, a variable or an option says: a number from 0 on, or `none`.

    Raises:
        CapError: it is neither; the message begins with `where`, if that is not empty.
    """
    if isinstance(value, str) and value.strip().lower() == NO_CAP:
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    whole = resource != "tokens" or number.is_integer()
    if not (math.isfinite(number) and 0 <= number < 1e15 and whole):
        kind = "whole number" if resource == "tokens" else "number"
        place = f"{where}: " if where else ""
        raise CapError(f"{place}found {value!r}, expected a {kind} of {UNITS[resource]} from 0 on, or {NO_CAP!r}")
    return int(number) if resource == "tokens" else number


def _left(limit: float | None, taken: float) -> float | None:
    return None if limit is None else max(0.0, limit - taken)
