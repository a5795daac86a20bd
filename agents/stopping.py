"""When a search may end before its budget does: at the roofline, or when the next candidate costs more than it brings.

The second rule weighs what one more candidate is expected to save against the device seconds that it costs.

What is expected of it: candidates that improve on all before them are the records of a sequence. The n-th of
independent draws is a record with probability 1/n (Renyi 1962); where the draws get better, as in a search that learns,
with theta/n (the F-alpha scheme: Yang 1975; Nevzorov, Records: Mathematical Theory, 2001, lecture 25). About
theta ln 2 records then fall into the later half of the candidates, so with k of them there, and a gamma prior of mean
and shape 1, theta is (k + 1) / (ln 2 + 1). By how much a record exceeds the last is the same on average all along
where the tail of the logarithms is exponential, and shrinks where it is lighter; so the later half of the records says
how large the next one will be. A search without any is taken to find the least gain that it can prove.

    expected log-gain of the next candidate = theta / (n + 1) * mean log-gain of the later half of the records

What it is worth: it shortens the time that devices still spend in the operator, `Stakes.worth_s` times the share that
is left. The search goes on while that saves more seconds than a candidate costs. Looking one candidate ahead is the
best rule where the gains to be expected only shrink, as here with no record in sight (the monotone case: Chow, Robbins,
Siegmund, Great Expectations, 1971, chapter 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agents.brief import Brief
from agents.standing import Standing
from kernels.verdict import Verdict

ROOFLINE = 0.95
"""Of the roofline, over all traffic: what is left is within the roofline's own uncertainty."""
LEAST_GAIN = 0.02
"""That a search proves (`harness.policy.search`)."""


@dataclass(frozen=True)
class Stakes:
    """What a search is for."""

    worth_s: float = 86_400.0
    """Seconds that devices will spend in the operator, at the engine's speed, while what is found is in use: a device
    for a day, or a fleet of ten for a day and a tenth of its time."""


def expected_gain(log_gains: Sequence[float]) -> float:
    """Of the next candidate, as the logarithm of time before over time after.

    Args:
        log_gains: of each candidate so far, in order; 0 of one that improved nothing.
    """
    later = log_gains[len(log_gains) // 2 :]
    records = [gain for gain in log_gains if gain > 0]
    recent = records[len(records) // 2 :] or [LEAST_GAIN]
    theta = (sum(gain > 0 for gain in later) + 1) / (math.log(2) + 1)
    return theta / (len(log_gains) + 1) * math.fsum(recent) / len(recent)


class Stopping:
    """Both rules, over the course of one search."""

    def __init__(self, base: Brief, stakes: Stakes | None = None) -> None:
        self.standing = Standing(base)
        self._stakes = stakes or Stakes()
        self._log_gains: list[float] = []
        self._costs_s: list[float] = []

    def learn(self, verdict: Verdict) -> None:
        """Takes in a verdict; those of an earlier life count as they did then."""
        before = self.standing.time()
        self.standing.learn(verdict)
        self._log_gains.append(math.log(before / self.standing.time()))
        self._costs_s.append(verdict.duration_s)

    def enough(self) -> str:
        """Why to stop, in a few words; empty while it pays to go on."""
        fraction = self.standing.roofline_fraction
        if fraction >= ROOFLINE:
            return f"the traffic runs at {fraction:.0%} of the roofline"
        if not self._costs_s:
            return ""
        later = self._costs_s[len(self._costs_s) // 2 :]
        cost_s = math.fsum(later) / len(later)
        saved_s = expected_gain(self._log_gains) * self.standing.time() * self._stakes.worth_s
        if saved_s >= cost_s:
            return ""
        return f"another candidate costs {cost_s:.2g} s and is expected to save {saved_s:.2g} s"
