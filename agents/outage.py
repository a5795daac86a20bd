"""A model that gives no answer for a while: how long to pause before it is asked again, and when to give it up."""

from __future__ import annotations

from dataclasses import dataclass

from agents.errors import ModelError, RateLimitedError, RequestRefusedError

LONGEST_ASKED_S = 60.0
"""A provider that asks to be left alone for longer is asked once a minute all the same: limits are mostly per minute,
and a header that is wrong by a factor must not end a search.
"""


@dataclass(frozen=True)
class Patience:
    """With a model that may come back."""

    first_pause_s: float = 1.0
    """Doubled after each failure in a row."""
    longest_pause_s: float = 60.0
    outage_s: float = 600.0
    """So long without an answer, and the agent leaves."""


@dataclass(frozen=True)
class Outage:
    """Failures in a row, on whatever clock its caller has."""

    began_s: float
    """When the first of them was known."""
    failures: int = 1

    def lasted_s(self, now_s: float) -> float:
        return now_s - self.began_s


def after_failure(outage: Outage | None, now_s: float) -> Outage:
    """The outage with one more failure; None: the last call was answered."""
    return Outage(now_s) if outage is None else Outage(outage.began_s, outage.failures + 1)


def asked_s(error: ModelError) -> float:
    """What the provider's `Retry-After` gets, which is no more than `LONGEST_ASKED_S`; 0 where it asked for nothing."""
    return min(error.retry_after_s or 0.0, LONGEST_ASKED_S) if isinstance(error, RateLimitedError) else 0.0


def pause_s(outage: Outage, error: ModelError, patience: Patience, now_s: float, draw: float) -> float | None:
    """How long to wait before the model is asked again; None: it is not to be asked any more.

    The pause is a random part of a time that doubles, at least half of it, so that agents which failed together do not
    come back together; or what the provider asked for, if that is longer. Either way it is within the longest pause.

    Args:
        error: the last of the failures.
        draw: from 0 to 1.
    """
    if isinstance(error, RequestRefusedError) or outage.lasted_s(now_s) >= patience.outage_s:
        return None
    doubled_s = patience.first_pause_s * 2.0 ** min(outage.failures - 1, 64)
    return min(max(doubled_s * (1 + draw) / 2, asked_s(error)), patience.longest_pause_s)


def farewell(outage: Outage, error: ModelError, now_s: float) -> str:
    """Why an agent leaves whose model is not to be asked any more."""
    if isinstance(error, RequestRefusedError):
        return str(error)
    return f"no answer for {lasting(outage.lasted_s(now_s))}, {outage.failures} calls in a row; the last: {error}"


def lasting(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
