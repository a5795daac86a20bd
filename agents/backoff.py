"""How long a provider is left alone after failures in a row: the one schedule of attempts, fallbacks and outages."""

from __future__ import annotations

from dataclasses import dataclass

from agents.errors import ModelError, RateLimitedError

LONGEST_ASKED_S = 60.0
"""A provider that asks to be left alone for longer is asked once a minute all the same: limits are mostly per minute,
and a header that is wrong by a factor must not end a search.
"""


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from failure to failure."""

    first_s: float
    longest_s: float
    drawn: float = 0.0
    """Which share of a pause is drawn, so that callers who failed together do not come back together."""

    def pause_s(self, failures: int, error: ModelError, draw: float = 1.0) -> float:
        """The pause after so many failures in a row (1: the first), or what the provider asked for, if that is longer.
        Either way no longer than the longest.

        Args:
            error: the last of the failures.
            draw: from 0 to 1.
        """
        doubled_s = min(self.first_s * 2.0 ** min(failures - 1, 64), self.longest_s)
        return min(max(doubled_s * (1 - self.drawn * (1 - draw)), asked_s(error)), self.longest_s)


def asked_s(error: ModelError) -> float:
    """What the provider's `Retry-After` gets, which is no more than `LONGEST_ASKED_S`; 0 where it asked for nothing."""
    return min(error.retry_after_s or 0.0, LONGEST_ASKED_S) if isinstance(error, RateLimitedError) else 0.0
