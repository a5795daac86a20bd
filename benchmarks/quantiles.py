"""The interval of a percentile, whatever the distribution: between two order statistics."""

from __future__ import annotations

from collections.abc import Sequence

from harness.significance import binomial_tail

ERROR = 0.025
"""On either side."""


def quantile_interval(samples: Sequence[float], share: float) -> tuple[float, float]:
    """95 % interval of the value below which this share lies.

    Where there are too few samples for an end, as below 72 for the upper end of a 95th percentile, it is the outermost.
    """
    ordered, count = sorted(samples), len(samples)
    ranks = range(1, count + 1)
    below = max((rank for rank in ranks if binomial_tail(count, share, rank) >= 1 - ERROR), default=1)
    above = min((rank for rank in ranks if binomial_tail(count, share, rank) <= ERROR), default=count)
    return ordered[below - 1], ordered[above - 1]
