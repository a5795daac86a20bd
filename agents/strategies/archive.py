"""The archive: the best candidate of every niche and of every workload, whoever proposed it.

A cell of the map (MAP-Elites: Mouret and Clune, arXiv:1504.04909) is a niche: what limits a candidate there, the
technique it uses, and a range of the traffic. A candidate competes in each range that it was timed in, so the one that
is best at decoding does not lose its place to the one that is best at prefill, nor a new technique to an old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agents import comments
from agents.brief import Brief, Parent
from agents.standing import Standing
from gristmill.domain import AxisRange
from gristmill.workload import ITEM_BYTES, VARIABLE_AXES, Workload
from kernels import catalogue
from kernels.candidate import Candidate
from kernels.verdict import Verdict, WorkloadTiming

EDGES = (16, 256)
"""Last extents of the ranges below the open one: decoding, small batches, prefill."""
LARGEST = 1 << 40
UNNAMED = "unnamed"
"""Technique of a candidate that names no pattern."""
EXPLAINED = 0.3
"""Share of a call's time that memory or arithmetic must explain at least; else latency limits it: calls, threads,
dependencies.
"""


class Bound(StrEnum):
    """What limits a candidate."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"


@dataclass(frozen=True)
class Niche:
    """One cell of the archive."""

    bound: Bound
    technique: str
    """Name of the optimisation pattern."""
    range: AxisRange


@dataclass(frozen=True)
class Elite:
    """The best of a niche, or of a workload."""

    parent: Parent
    gain: float
    """Time of the engine's kernels over the time with this one, on the niche's traffic; below 1 if it is slower."""

    @property
    def digest(self) -> str:
        return self.parent.candidate.digest


class Archive:
    """Takes in verdicts in order. What was not right has no place in it."""

    def __init__(self, base: Brief) -> None:
        self._brief = base
        self.standing = Standing(base)
        self.ranges = traffic_ranges(base.workloads)
        """Ranges with traffic in them, ascending."""
        self._niches: dict[Niche, Elite] = {}
        self._specialists: dict[str, Elite] = {}
        self._techniques: dict[str, str] = {}
        """By fingerprint: under which technique a source was first seen."""

    @property
    def niches(self) -> dict[Niche, Elite]:
        return dict(self._niches)

    def add(self, candidate: Candidate, verdict: Verdict) -> tuple[Niche, ...]:
        """The niches in which it is the best now. A source that differs from a known one in comments, white space or
        the name of its pattern only is of the technique that it was first seen with: it opens no niche of its own.
        """
        self.standing.learn(verdict)
        if not verdict.timings:
            return ()
        parent = Parent(candidate, verdict)
        for timing in verdict.timings:
            best = self._specialists.get(timing.workload.digest)
            if best is None or timing.ratio > best.gain:
                self._specialists[timing.workload.digest] = Elite(parent, timing.ratio)
        claimed = candidate.origin.pattern or UNNAMED
        technique = self._techniques.setdefault(fingerprint(candidate), claimed)
        won = []
        for within in self.ranges:
            timings = [timing for timing in verdict.timings if _admits(within, timing.workload)]
            if timings:
                niche = Niche(self._bound(timings), technique, within)
                gain = self.gain(verdict, within)
                held = self._niches.get(niche)
                if held is None or gain > held.gain:
                    self._niches[niche] = Elite(parent, gain)
                    won.append(niche)
        return tuple(won)

    def gain(self, verdict: Verdict, within: AxisRange | None = None) -> float:
        """On the traffic of a range, or on all of it; where it was not timed the engine's kernel stays."""
        ratios = {timing.workload.digest: timing.ratio for timing in verdict.timings}
        shares = {workload.digest: self._brief.weight(workload) for workload in self.workloads(within)}
        after = sum(share / ratios.get(key, 1.0) for key, share in shares.items())
        return sum(shares.values()) / after if after else 1.0

    def elites(self, within: AxisRange | None = None) -> tuple[Elite, ...]:
        """Of all niches of a range, or of all ranges; the best first, each candidate once."""
        found: dict[str, Elite] = {}
        for niche, elite in self._niches.items():
            if within in (None, niche.range) and (elite.digest not in found or elite.gain > found[elite.digest].gain):
                found[elite.digest] = elite
        return tuple(sorted(found.values(), key=lambda elite: -elite.gain))

    def specialist(self, workload: Workload) -> Elite | None:
        """The best on one workload."""
        return self._specialists.get(workload.digest)

    def specialists(self, within: AxisRange | None = None) -> tuple[Elite, ...]:
        """Of the workloads of a range, or of all: those with the most left to save first, each candidate once."""
        ordered = sorted(self.workloads(within), key=lambda workload: -self.standing.headroom([workload]))
        found = [self._specialists[w.digest] for w in ordered if w.digest in self._specialists]
        return _each_once(found)

    def survivors(self, within: AxisRange | None = None) -> tuple[Elite, ...]:
        """Elites of niches, then specialists for workloads, each candidate once."""
        return _each_once((*self.elites(within), *self.specialists(within)))

    def technique(self, elite: Elite) -> str:
        """Under which it is kept."""
        return self._techniques[fingerprint(elite.parent.candidate)]

    def workloads(self, within: AxisRange | None = None) -> tuple[Workload, ...]:
        """The traffic of a range, or all of it."""
        return tuple(w for w in self._brief.workloads if within is None or _admits(within, w))

    def headroom(self, within: AxisRange) -> float:
        """What perfect kernels would still save in a range, as a share of the engine's time in all traffic."""
        return self.standing.headroom(self.workloads(within))

    def _bound(self, timings: Sequence[WorkloadTiming]) -> Bound:
        """What limits it where it spends the most time."""
        timing = max(timings, key=lambda t: self._brief.weight(t.workload) / t.ratio)
        if timing.roofline_fraction < EXPLAINED:
            return Bound.LATENCY
        workload = timing.workload
        cost = catalogue.operator(workload.operator).cost(workload.axes, ITEM_BYTES[workload.dtype])
        computing_ns = cost.flops / self._brief.gflop_s
        moving_ns = cost.bytes_moved / self._brief.bandwidth_gb_s
        return Bound.COMPUTE if computing_ns > moving_ns else Bound.MEMORY


def traffic_ranges(workloads: Sequence[Workload]) -> tuple[AxisRange, ...]:
    """The ranges of the varying axis that hold traffic; all extents of some axis where none varies."""
    axes = workloads[0].axes
    axis = next((name for name in VARIABLE_AXES if name in axes), next(iter(axes)))
    if axis not in VARIABLE_AXES:
        return (AxisRange(axis, 0, LARGEST),)
    lows = (0, *(edge + 1 for edge in EDGES))
    ranges = [AxisRange(axis, low, high) for low, high in zip(lows, (*EDGES, LARGEST), strict=True)]
    return tuple(one for one in ranges if any(_admits(one, workload) for workload in workloads))


def fingerprint(candidate: Candidate) -> str:
    """Of the sources without comments and white space: equal for what a compiler would take for the same."""
    language = candidate.language
    plain = sorted((name, "".join(comments.without(text, language).split())) for name, text in candidate.files.items())
    return hashlib.sha256(repr((candidate.operator, candidate.language, plain)).encode(errors="replace")).hexdigest()


def _each_once(elites: Sequence[Elite]) -> tuple[Elite, ...]:
    """Without later mentions of the same candidate."""
    first: dict[str, Elite] = {}
    for elite in elites:
        first.setdefault(elite.digest, elite)
    return tuple(first.values())


def _admits(within: AxisRange, workload: Workload) -> bool:
    return within.admits(workload.axes[within.name])
