"""The traffic profile: what one fleet really ran over one window, and what follows from it.

Pure decisions on it: which operators are worth optimising (`rank`), for how long each (`split_budget`), and whether
traffic has left what the last search compiled for (`drift`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from gristmill.sequence import NO_STEPS, Edge, StepTimes
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.errors import EmptyProfileError
from kernels.roofline import Peaks, roofline_ns

SCHEMA_VERSION = 2
"""1 had neither times of steps nor totals of requests; it is read, and these are empty."""
DRIFT_PSI = 0.25
"""Population stability index from which a distribution counts as another one; the usual reading, 0.1 is a small
change.
"""
DRIFT_OCTAVES = 1.0
"""Mean move of an axis that counts as drift: extents doubled or halved."""
MISSING_SHARE = 1e-4
"""Share given to a bin that one side never saw, so that its logarithm exists."""


@dataclass(frozen=True)
class Quantiles:
    """Spread of a count of tokens. All zero where there was no request."""

    p10: int = 0
    p50: int = 0
    p90: int = 0
    p99: int = 0
    maximum: int = 0


@dataclass(frozen=True)
class RequestStatistics:
    """The requests that arrived in the window."""

    count: int = 0
    prompt_tokens: Quantiles = Quantiles()
    generated_tokens: Quantiles = Quantiles()
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    """Of the prompts' tokens, those that a cache held."""
    drafts: int = 0
    """Drafts of a speculation that were verified."""
    accepted: tuple[int, ...] = ()
    """By position in the draft: how many drafts were accepted at least so far."""
    dropped: int = 0
    """Requests that hosts counted and then lost; they are not in `count`."""


@dataclass(frozen=True)
class TrafficProfile:
    """Weighted workloads of one fleet, model and hardware over one window."""

    fleet: str
    model: str
    hardware: str
    """`Hardware.key` of the hosts."""
    window_start_utc: str
    """ISO 8601."""
    window_end_utc: str
    versions: dict[str, str]
    """Engine versions by package; several, joined by commas, while a fleet is being upgraded."""
    workloads: tuple[Workload, ...]
    """With calls and time; the most time first."""
    requests: RequestStatistics
    dropped: int
    """Samples that the hosts could not keep; the others' counts are not scaled up for them."""
    schema_version: int = SCHEMA_VERSION
    edges: tuple[Edge, ...] = ()
    """Which operator's output was which operator's input, in the steps that hosts traced; the most calls first."""
    steps: StepTimes = NO_STEPS
    """Of these steps, how long they took, and how much of that the sampled operators."""

    @property
    def time_ns(self) -> int:
        """Time in all sampled operators."""
        return sum(w.time_ns for w in self.workloads)

    @property
    def operator_share(self) -> float | None:
        """Of the engine's steps, what the sampled operators take; None if no step was traced."""
        return self.steps.operator_ns / self.steps.step_ns if self.steps.step_ns else None

    def of(self, operator: str, dtype: str) -> tuple[Workload, ...]:
        """The workloads of one operator and dtype, the most time first, without those that no kernel can be called for:
        strided tensors with more dimensions than the operator's, which hosts leave to the engine.
        """
        definition = catalogue.operator(operator)
        return tuple(
            w for w in self.workloads if (w.operator, w.dtype) == (operator, dtype) and inputs.is_valid(definition, w)
        )


@dataclass(frozen=True)
class RankedOperator:
    """What optimising one operator could save."""

    operator: str
    dtype: str
    time_share: float
    """Of the time in all sampled operators."""
    headroom: float
    """1 - roofline time / measured time: the part of its time that a perfect kernel would not need."""
    saving_share: float
    """`time_share * headroom`: the part of all sampled time that a perfect kernel would save (Amdahl)."""
    workloads: int


def rank(profile: TrafficProfile, peaks: Peaks) -> tuple[RankedOperator, ...]:
    """Operators by what they could save, most first.

    Raises:
        EmptyProfileError: if no time was spent in any workload.
        UnknownOperatorError: if a workload's operator is not in the catalogue.
    """
    total_ns = profile.time_ns
    if total_ns <= 0:
        raise EmptyProfileError(
            f"traffic profile of fleet {profile.fleet!r}, model {profile.model!r}, {profile.window_start_utc} to "
            f"{profile.window_end_utc}: no timed operator calls; "
            "let the fleet serve with sampling on, then capture again"
        )
    ranked = [
        _ranked(operator, dtype, workloads, total_ns, peaks)
        for (operator, dtype), workloads in by_operator(profile.workloads).items()
    ]
    return tuple(sorted(ranked, key=lambda r: (-r.saving_share, r.operator, r.dtype)))


def _ranked(operator: str, dtype: str, workloads: Sequence[Workload], total_ns: int, peaks: Peaks) -> RankedOperator:
    definition = catalogue.operator(operator)
    time_ns = sum(w.time_ns for w in workloads)
    best_ns = sum(min(float(w.time_ns), w.calls * roofline_ns(definition, w, peaks)) for w in workloads)
    headroom = 1 - best_ns / time_ns if time_ns else 0.0
    share = time_ns / total_ns
    return RankedOperator(operator, dtype, share, headroom, share * headroom, len(workloads))


def split_budget(ranked: Sequence[RankedOperator], total_s: float, minimum_s: float) -> dict[tuple[str, str], float]:
    """Seconds of search per (operator, dtype), in proportion to the saving share, summing to the total.

    Nobody gets less than `minimum_s`, because a search that cannot finish one round finds nothing: what does not fit at
    that size gets nothing, the smallest savings first. A total below the minimum goes whole to the first.
    """
    worthwhile = [r for r in sorted(ranked, key=lambda r: -r.saving_share) if r.saving_share > 0]
    if total_s <= 0 or not worthwhile:
        return {}
    affordable = len(worthwhile) if minimum_s <= 0 else int(total_s / minimum_s)
    funded = worthwhile[: max(1, affordable)]
    raised: set[int] = set()
    while True:
        rest_s = total_s - minimum_s * len(raised)
        weight = sum(r.saving_share for i, r in enumerate(funded) if i not in raised)
        shares = [minimum_s if i in raised else rest_s * (r.saving_share / weight) for i, r in enumerate(funded)]
        short = {i for i, share in enumerate(shares) if share < minimum_s and i != 0}
        if short <= raised:
            break
        raised |= short
    shares[0] = total_s - math.fsum(shares[1:])
    return {(r.operator, r.dtype): share for r, share in zip(funded, shares, strict=True)}


def by_operator(workloads: Iterable[Workload]) -> dict[tuple[str, str], list[Workload]]:
    """Workloads by operator and dtype."""

    def key(workload: Workload) -> tuple[str, str]:
        return workload.operator, workload.dtype

    return {name: list(group) for name, group in groupby(sorted(workloads, key=key), key)}


@dataclass(frozen=True)
class OperatorDrift:
    """How far one operator's traffic moved between two profiles. Both measures are 0 for equal traffic, and
    symmetric.
    """

    operator: str
    dtype: str
    psi: float
    """Population stability index of the calls over shapes, extents binned by powers of two."""
    octaves: float
    """Mean distance (Wasserstein-1) that the calls moved on the log2 of the axis that moved most; 0 if one side has
    none.
    """


@dataclass(frozen=True)
class Drift:
    """The drift of every operator that either profile holds, largest index first."""

    operators: tuple[OperatorDrift, ...]

    def exceeds(self, psi: float = DRIFT_PSI, octaves: float = DRIFT_OCTAVES) -> bool:
        """Whether any operator moved so far that what was compiled for the old traffic may no longer fit."""
        return any(o.psi > psi or o.octaves > octaves for o in self.operators)


def drift(old: TrafficProfile, new: TrafficProfile) -> Drift:
    """Compares the traffic of two windows, operator by operator, by calls."""
    before, after = by_operator(old.workloads), by_operator(new.workloads)
    found = [
        OperatorDrift(
            operator=key[0],
            dtype=key[1],
            psi=_stability_index(_binned(before.get(key, ())), _binned(after.get(key, ()))),
            octaves=_octaves(before.get(key, ()), after.get(key, ())),
        )
        for key in sorted({*before, *after})
    ]
    return Drift(tuple(sorted(found, key=lambda o: -o.psi)))


def _binned(workloads: Iterable[Workload]) -> Counter[str]:
    """Calls by shape, every extent rounded down to a power of two. No calls at all is a bin of its own."""
    bins: Counter[str] = Counter()
    for w in workloads:
        bins[" ".join(f"{name}={extent.bit_length()}" for name, extent in sorted(w.axes.items()))] += w.calls
    return bins if bins.total() else Counter({"no calls": 1})


def _stability_index(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """`sum((q - p) ln(q / p))` over bins (Siddiqi, Credit Risk Scorecards, 2006)."""
    total_before, total_after = sum(before.values()), sum(after.values())
    index = 0.0
    for name in sorted({*before, *after}):
        p = max(before.get(name, 0) / total_before, MISSING_SHARE)
        q = max(after.get(name, 0) / total_after, MISSING_SHARE)
        index += (q - p) * math.log(q / p)
    return index


def _octaves(before: Sequence[Workload], after: Sequence[Workload]) -> float:
    names = sorted({name for w in (*before, *after) for name in w.axes})
    if not sum(w.calls for w in before) or not sum(w.calls for w in after):
        return 0.0
    return max((_transport(_log_extents(before, n), _log_extents(after, n)) for n in names), default=0.0)


def _log_extents(workloads: Iterable[Workload], axis: str) -> dict[float, float]:
    """Share of the calls by log2 of one axis."""
    calls: Counter[float] = Counter()
    for w in workloads:
        calls[math.log2(max(1, w.axes.get(axis, 1)))] += w.calls
    total = calls.total()
    return {position: count / total for position, count in calls.items()}


def _transport(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """Wasserstein-1 distance on the line: the area between the two cumulative distributions."""
    positions = sorted({*before, *after})
    area = ahead = 0.0
    for here, there in pairwise(positions):
        ahead += before.get(here, 0.0) - after.get(here, 0.0)
        area += abs(ahead) * (there - here)
    return area
