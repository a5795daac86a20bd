"""From what a cycle left behind (profile, verdicts, tables) to the rows that the report and MLflow's pictures show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypedDict

from gristmill import records
from gristmill.kernel_table import Artifact, TableEntry
from gristmill.workload import VARIABLE_AXES, Workload
from kernels.candidate import Candidate
from kernels.profile import RankedOperator, TrafficProfile
from kernels.verdict import Verdict
from tasks.compilation import OperatorSearch
from tasks.report_data import (
    DecisionRow,
    FateRow,
    HeatRow,
    KernelRow,
    LeaderRow,
    ParetoRow,
    SearchRow,
    TimeShareRow,
    TrafficRow,
)

LEADERS = 12
HEAT_ROWS = 24
"""Most that a heat map shows; the others of an operator are one."""
FATE_ROWS = 32


class Judged(Protocol):
    """A candidate and what the judge said: a line of the journal, or of the spool to MLflow."""

    @property
    def candidate(self) -> Candidate: ...
    @property
    def verdict(self) -> Verdict: ...


class SearchSections(TypedDict):
    """Fields of `DemoReport` that follow from the traffic and the verdicts alone."""

    leaders: tuple[LeaderRow, ...]
    heat: tuple[HeatRow, ...]
    time_shares: tuple[TimeShareRow, ...]
    fates: tuple[FateRow, ...]
    pareto: tuple[ParetoRow, ...]


def search_sections(workloads: Sequence[Workload], judged: Sequence[Judged]) -> SearchSections:
    return {
        "leaders": leader_rows(judged),
        "heat": heat_rows(workloads),
        "time_shares": share_rows(workloads, judged),
        "fates": fate_rows(judged),
        "pareto": pareto_rows(judged),
    }


def traffic_rows(profile: TrafficProfile, ranked: Iterable[RankedOperator]) -> tuple[TrafficRow, ...]:
    return tuple(
        TrafficRow(
            r.operator,
            r.dtype,
            sum(w.calls for w in profile.of(r.operator, r.dtype)),
            r.time_share,
            1 / max(1e-9, 1 - r.headroom),
            r.saving_share,
        )
        for r in ranked
    )


def search_row(search: OperatorSearch, judged: Iterable[Judged]) -> SearchRow:
    ratios = tuple(one.verdict.ratio for one in judged if _key(one) == (search.operator, search.dtype))
    faster = search.statuses.get("faster", 0)
    return SearchRow(search.operator, search.dtype, search.budget_s, ratios, faster, search.gain)


def leader_rows(judged: Iterable[Judged]) -> tuple[LeaderRow, ...]:
    won = sorted((one for one in judged if one.verdict.won), key=lambda one: -(one.verdict.ratio or 0.0))
    return tuple(
        LeaderRow(
            *_key(one),
            one.candidate.origin.pattern,
            ", ".join(f"{name} {value}" for name, value in one.candidate.origin.parameters.items()),
            one.verdict.ratio or 0.0,
            min(timing.ratio_low for timing in one.verdict.timings),
            records.short(one.candidate.digest),
        )
        for one in won[:LEADERS]
    )


def kernel_rows(artifacts: Iterable[Artifact], hits: Mapping[str, int]) -> tuple[KernelRow, ...]:
    """Args:
    hits: calls served, by candidate.
    """
    return tuple(
        KernelRow(
            artifact.table.operator,
            artifact.table.dtype,
            range_of(entry),
            float(entry.ratio),
            float(entry.ratio_low),
            records.short(entry.candidate),
            hits.get(entry.candidate, 0),
        )
        for artifact in artifacts
        for entry in artifact.table.entries
    )


def range_of(entry: TableEntry) -> str:
    """`tokens 1 to 8, hidden 1024`."""
    return ", ".join(
        f"{r.name} {r.low}" + (f" to {r.high}" if r.high != r.low else "") for r in reversed(entry.domain.ranges)
    )


def decision_rows(
    artifacts: Iterable[Artifact], declined: Mapping[str, str], published: str
) -> tuple[DecisionRow, ...]:
    """Args:
    declined: tables that were offered and not taken, with the reason.
    published: where the others are served now.
    """
    return tuple(
        DecisionRow(
            artifact.table.name,
            "stays out" if artifact.table.name in declined else "published",
            declined.get(artifact.table.name, published),
            len(artifact.table.entries),
            min((float(entry.ratio_low) for entry in artifact.table.entries), default=1.0),
        )
        for artifact in artifacts
    )


def heat_rows(workloads: Sequence[Workload]) -> tuple[HeatRow, ...]:
    """Time by operator, by what the model fixes, and by what varies, in powers of two. The shares sum to one; where no
    time was measured, calls stand for it. Shapes of little time are one row per operator.
    """
    weights = [w.time_ns for w in workloads] if any(w.time_ns for w in workloads) else [w.calls for w in workloads]
    total = sum(weights)
    if total <= 0:
        return ()
    by_shape: Counter[tuple[str, str]] = Counter()
    for workload, weight in zip(workloads, weights, strict=True):
        by_shape[_shape(workload)] += weight
    kept = {shape for shape, _ in by_shape.most_common(HEAT_ROWS)}
    cells: Counter[tuple[str, int]] = Counter()
    for workload, weight in zip(workloads, weights, strict=True):
        operator, fixed = _shape(workload)
        name = f"{operator} {fixed}".rstrip() if (operator, fixed) in kept else f"{operator}, others"
        cells[name, _power(_extent(workload))] += weight
    ordered = Counter[str]()
    for (name, _), weight in cells.items():
        ordered[name] += weight
    rank = {name: place for place, (name, _) in enumerate(ordered.most_common())}
    found = [HeatRow(name, extent, weight / total) for (name, extent), weight in cells.items()]
    return tuple(sorted(found, key=lambda row: (rank[row.name], row.extent)))


def _shape(workload: Workload) -> tuple[str, str]:
    fixed = " ".join(f"{name}={extent}" for name, extent in workload.axes.items() if name not in VARIABLE_AXES)
    return f"{workload.operator} {workload.dtype}", fixed


def _extent(workload: Workload) -> int:
    return next((workload.axes[name] for name in VARIABLE_AXES if name in workload.axes), 1)


def _power(extent: int) -> int:
    """The power of two at or below."""
    return 1 << (extent.bit_length() - 1)


def share_rows(workloads: Sequence[Workload], judged: Iterable[Judged]) -> tuple[TimeShareRow, ...]:
    """Time per operator, before and with the best proven candidate for each workload, over all time before."""
    total = sum(w.time_ns for w in workloads)
    if total <= 0:
        return ()
    gains: dict[str, float] = {}
    for one in judged:
        for timing in one.verdict.timings if one.verdict.won else ():
            if timing.ratio_low > 1:
                digest = timing.workload.digest
                gains[digest] = max(gains.get(digest, 1.0), timing.ratio)
    before: Counter[tuple[str, str]] = Counter()
    after: dict[tuple[str, str], float] = defaultdict(float)
    for w in workloads:
        before[w.operator, w.dtype] += w.time_ns
        after[w.operator, w.dtype] += w.time_ns / gains.get(w.digest, 1.0)
    return tuple(TimeShareRow(*key, time / total, after[key] / total) for key, time in before.most_common())


def fate_rows(judged: Iterable[Judged]) -> tuple[FateRow, ...]:
    """What became of the candidates of each pattern or model, the most candidates first."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for one in judged:
        origin = one.candidate.origin
        found[f"{one.candidate.operator}: {origin.pattern or origin.model or origin.agent or 'by hand'}"][
            one.verdict.status.value
        ] += 1
    ordered = sorted(found.items(), key=lambda item: -item[1].total())
    return tuple(FateRow(name, dict(statuses)) for name, statuses in ordered[:FATE_ROWS])


def pareto_rows(judged: Iterable[Judged]) -> tuple[ParetoRow, ...]:
    """Ratios of every timed candidate over what varies, and whether no other is at least as good everywhere and better
    somewhere.
    """
    rows = [_ratios_of(one) for one in judged if one.verdict.timings]
    return tuple(
        ParetoRow(operator, dtype, candidate, points, not any(_beats(other, row) for other in rows))
        for row in rows
        for operator, dtype, candidate, points in [row]
    )


Ratios = tuple[str, str, str, tuple[tuple[int, float], ...]]


def _ratios_of(one: Judged) -> Ratios:
    """By extent: what calls of that extent take before, over what they take with the candidate."""
    before: dict[int, float] = defaultdict(float)
    after: dict[int, float] = defaultdict(float)
    for timing in one.verdict.timings:
        extent, calls = _extent(timing.workload), max(1, timing.workload.calls)
        before[extent] += calls * timing.ratio * timing.candidate_ns
        after[extent] += calls * timing.candidate_ns
    points = tuple((extent, before[extent] / after[extent]) for extent in sorted(before))
    return (*_key(one), records.short(one.candidate.digest), points)


def _beats(one: Ratios, other: Ratios) -> bool:
    """On every extent of the other, and on one of them by more than nothing."""
    if one[:2] != other[:2]:
        return False
    mine, theirs = dict(one[3]), dict(other[3])
    if not theirs.keys() <= mine.keys():
        return False
    return all(mine[e] >= theirs[e] for e in theirs) and any(mine[e] > theirs[e] for e in theirs)


def _key(one: Judged) -> tuple[str, str]:
    return one.candidate.operator, one.candidate.domain.dtype
