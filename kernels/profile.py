"""The traffic profile: what one fleet really ran over one window, and what follows from it.

Pure decisions on it: which operators are worth optimising (`rank`), and for how long each (`split_budget`). Whether
traffic has left what the last search compiled for is told by `kernels.drift`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.sequence import NO_STEPS, Edge, StepTimes
from gristmill.workload import ITEM_BYTES, Workload
from kernels import catalogue, inputs
from kernels.errors import EmptyProfileError, ProfileVersionError, UnknownOperatorError
from kernels.roofline import Peaks, roofline_ns
from kernels.sketch import NO_SKETCH, SketchRecord

SCHEMA_VERSION = 3
"""1 had neither times of steps nor totals of requests, 2 no sketch; both are read, and these are empty."""


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
    """With calls and time; the most time first. Where there would be too many, one stands for those with nearly as many
    tokens; see `kernels.joined_workloads`.
    """
    requests: RequestStatistics
    dropped: int
    """Samples that the hosts could not keep; the others' counts are not scaled up for them."""
    schema_version: int = SCHEMA_VERSION
    edges: tuple[Edge, ...] = ()
    """Which operator's output was which operator's input, in the steps that hosts traced; the most calls first."""
    steps: StepTimes = NO_STEPS
    """Of these steps, how long they took, and how much of that the sampled operators."""
    sketch: SketchRecord = NO_SKETCH
    """When in the window what was called: what drift is told by."""

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


def parse(content: bytes, name: str) -> TrafficProfile:
    """The profile that was kept under a name, of this version or an older one.

    Raises:
        ProfileVersionError: it is of a version that is not known here.
        MalformedRecordError: it is no profile.
    """
    try:
        kept = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedRecordError(f"{name}: not JSON ({error})") from None
    version = kept.get("schema_version") if isinstance(kept, dict) else None
    if type(version) is int and not 1 <= version <= SCHEMA_VERSION:
        raise ProfileVersionError(
            f"traffic profile {name}: version {version}, this release reads 1 to {SCHEMA_VERSION}; give all machines "
            "that capture and compile the same release of Gristmill, or delete the profile and capture again"
        )
    return records.decode(TrafficProfile, kept, name)


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
    """Operators by what they could save, most first; without those that are not known here, which a host with a newer
    release may sample (see `unknown`).

    Raises:
        EmptyProfileError: if no time was spent in any workload, or none in an operator that is known.
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
        for (operator, dtype), workloads in by_operator(filter(_is_known, profile.workloads)).items()
    ]
    if not ranked:
        raise EmptyProfileError(
            f"traffic profile of fleet {profile.fleet!r}, model {profile.model!r}: nothing that this release can "
            f"compile (./mill operators lists it) takes time; what does is {', '.join(unknown(profile))}"
        )
    return tuple(sorted(ranked, key=lambda r: (-r.saving_share, r.operator, r.dtype)))


def unknown(profile: TrafficProfile) -> dict[str, float]:
    """Share of the time by operator and dtype that this release knows nothing of, the largest first."""
    total_ns = profile.time_ns
    strange = by_operator(one for one in profile.workloads if not _is_known(one))
    shares = {
        f"{operator} {dtype}": sum(w.time_ns for w in workloads) / total_ns if total_ns else 0.0
        for (operator, dtype), workloads in strange.items()
    }
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _is_known(workload: Workload) -> bool:
    try:
        definition = catalogue.operator(workload.operator)
    except UnknownOperatorError:
        return False
    return workload.dtype in ITEM_BYTES and workload.axes.keys() == set(definition.axes)


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
