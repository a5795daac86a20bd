"""How fast canary hosts are beside the rest: a ratio with its interval, from a bootstrap over hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ROUNDS = 2000
CONFIDENCE_PERCENT = 95.0


@dataclass(frozen=True)
class Comparison:
    """Speed of the canary hosts over that of the rest: above 1 they are faster."""

    what: str
    canary_hosts: int
    rest_hosts: int
    ratio: float
    """Of the medians over hosts."""
    ratio_low: float
    ratio_high: float
    least: float
    """What it must be at least."""


def compare(what: str, canary: Sequence[float], rest: Sequence[float], least: float, seed: int) -> Comparison:
    """Compares the speeds of hosts. All are positive, and there is one of each kind at least.

    The interval is the percentile bootstrap of the ratio of medians, hosts drawn again within their kind (Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). One host of three or more that says what it likes
    can make it wider, but can't lift its lower end above what the honest hosts alone could give, nor press its upper
    end below that: both are medians that honest hosts take part in. With the same seed, slower canary hosts never give
    a larger ratio, whatever their order.
    """
    import numpy

    generator = numpy.random.default_rng(seed)

    def medians(speeds: Sequence[float]) -> Any:
        drawn = generator.choice(numpy.sort(numpy.asarray(speeds, dtype=float)), size=(ROUNDS, len(speeds)))
        return numpy.median(drawn, axis=1)

    drawn = medians(canary) / medians(rest)
    tail = (100.0 - CONFIDENCE_PERCENT) / 2
    low, high = numpy.percentile(drawn, (tail, 100.0 - tail))
    ratio = float(numpy.median(canary) / numpy.median(rest))
    return Comparison(what, len(canary), len(rest), ratio, float(low), float(high), least)
