"""The promotion gate: pure decisions from evidence, without IO.

`form_table` turns re-judged candidates into a kernel table that claims exactly what was measured; `decide_promotion`
and `decide_table` say whether a candidate, or a table, may replace what is current; `decide_approval` whether stable
may serve a table without a person having looked at it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gristmill import records
from gristmill.domain import AxisRange, Domain, Layout
from gristmill.kernel_table import WIDEST_GAP, FileRef, KernelTable, TableEntry
from gristmill.workload import VARIABLE_AXES
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming
from registry.errors import TableConflictError

_DECIMALS = 4


@dataclass(frozen=True)
class PromotionPolicy:
    """What a gain must be to be worth a change."""

    min_ratio_low: float = 1.02
    """The lower end of the interval of baseline time over candidate time must lie above this on every workload."""
    min_improvement: float = 1.0
    """How many times the gain of what is current a replacement must have, more than."""


@dataclass(frozen=True)
class ApprovalPolicy:
    """Which gains stable may serve without a person having looked at them."""

    min_ratio_low: float = 1.02
    """Every range's lower bound must lie above this."""
    max_ratio: float = 1000.0
    """A gain above this is a mistake of the measurement rather than a kernel. Where the engine's own kernel is many
    short calls, one kernel gains 40 and more."""
    new_operators: bool = True
    """Whether an operator and dtype for which stable serves nothing may pass."""

    def __str__(self) -> str:
        new = "new operators too" if self.new_operators else "known operators only"
        return f"gains from {self.min_ratio_low} to {self.max_ratio}, {new}"


@dataclass(frozen=True)
class Decision:
    """What the gate says, and why."""

    promote: bool
    reason: str


@dataclass(frozen=True)
class Judged:
    """A candidate with its verdict from the re-judgement, and what a host would load."""

    candidate: Candidate
    verdict: Verdict
    object: FileRef
    sources: tuple[FileRef, ...]


DEFAULT_POLICY = PromotionPolicy()
DEFAULT_APPROVAL = ApprovalPolicy()


def decide_promotion(evidence: Verdict, current: TableEntry | None, policy: PromotionPolicy) -> Decision:
    """Whether a re-judged candidate may be used where `current` is, or where nothing is.

    Against a current entry only the timings inside its domain count; both were measured against the same baseline.
    """
    if evidence.status is not Status.FASTER:
        return Decision(False, f"the judge says {evidence.status.value}: {evidence.reason}")
    if current is not None and current.candidate == evidence.candidate:
        return Decision(False, "it is what is current")
    gains = [t for t in evidence.timings if _rounded_down(t.ratio_low) > policy.min_ratio_low]
    if not gains:
        return Decision(False, f"no workload's lower bound lies above {policy.min_ratio_low}")
    best = max(timing.ratio_low for timing in gains)
    if current is None:
        return Decision(True, f"lower bound {best:.3f} on its best of {len(gains)} workloads")
    rivals = [timing for timing in evidence.timings if current.domain.admits(timing.workload)]
    if not rivals:
        return Decision(True, f"lower bound {best:.3f}, where nothing is used yet")
    new, old = min(t.ratio_low for t in rivals), float(current.ratio_low)
    if not new > old * policy.min_improvement:
        return Decision(False, f"lower bound {new:.3f}, but what is current has {old:.3f}")
    return Decision(True, f"lower bound {new:.3f} instead of {old:.3f}")


def decide_table(table: KernelTable, current: KernelTable | None, policy: PromotionPolicy = DEFAULT_POLICY) -> Decision:
    """Whether a table may replace the current one as a whole: for `registry.publication.publish`."""
    if not table.entries:
        return Decision(False, "the table has no entries: nothing was proven faster")
    weak = [e.ratio_low for e in table.entries if not float(e.ratio_low) > policy.min_ratio_low]
    if weak:
        return Decision(False, f"an entry's lower bound is {weak[0]}, expected above {policy.min_ratio_low}")
    new = _log_gain(table)
    if current is None or not current.entries:
        return Decision(True, f"lower bounds above {policy.min_ratio_low} over {len(table.entries)} ranges")
    if _kernels(table) == _kernels(current):
        return Decision(False, "the same kernels in the same ranges are current")
    old = _log_gain(current)
    if not math.exp(new - old) > policy.min_improvement:
        return Decision(False, f"gain over all ranges {math.exp(new):.3f}, but what is current has {math.exp(old):.3f}")
    return Decision(True, f"gain over all ranges {math.exp(new):.3f} instead of {math.exp(old):.3f}")


def decide_approval(table: KernelTable, current: KernelTable | None, policy: ApprovalPolicy) -> Decision:
    """Whether a table may be approved for stable, which serves `current`, without a person."""
    if not table.entries:
        return Decision(False, "the table has no entries: there is nothing to approve")
    low = [entry.ratio_low for entry in table.entries if not float(entry.ratio_low) > policy.min_ratio_low]
    if low:
        return Decision(False, f"a lower bound of {low[0]} waits for a person, above {policy.min_ratio_low} passes")
    high = [entry.ratio for entry in table.entries if not float(entry.ratio) <= policy.max_ratio]
    if high:
        return Decision(False, f"a gain of {high[0]} waits for a person, up to {policy.max_ratio} passes")
    if current is None and not policy.new_operators:
        return Decision(False, f"{table.name} is new on stable and waits for a person")
    return Decision(True, f"policy: {policy}")


def form_table(
    operator: str, dtype: str, hardware: str, judged: Sequence[Judged], policy: PromotionPolicy = DEFAULT_POLICY
) -> KernelTable:
    """The table that these verdicts prove.

    At each measured point the candidate with the best lower bound wins, if that lies above the policy's threshold; the
    baseline keeps everything else. A range ends at the outermost measured extents, and spans the gap
    between two neighbours only if the same candidate won both and they are at most `WIDEST_GAP` apart. Entries never
    overlap. A candidate that is not `faster` is ignored.

    Raises:
        TableConflictError: a verdict is another candidate's, or for another operator, dtype or hardware.
    """
    for one in judged:
        _check(one, operator, dtype, hardware)
    points: dict[_Rest, dict[int, list[_Measurement]]] = defaultdict(lambda: defaultdict(list))
    for measurement in _measurements(judged):
        points[measurement.rest][measurement.extent].append(measurement)
    entries = [
        _entry(operator, dtype, rest, run)
        for rest, by_extent in sorted(points.items())
        for run in _runs({extent: _winner(found, policy) for extent, found in by_extent.items()})
    ]
    return KernelTable(operator, dtype, hardware, tuple(entries))


_Rest = tuple[tuple[str, int], ...]
"""Axes but the variable one, with their extents, in order of name; then the name of the variable axis with -1."""


@dataclass(frozen=True)
class _Measurement:
    """One candidate at one point: the worst over the point's workloads, which differ in strides only."""

    judged: Judged
    rest: _Rest
    extent: int
    timings: tuple[WorkloadTiming, ...]

    @property
    def ratio_low(self) -> float:
        return min(_rounded_down(timing.ratio_low) for timing in self.timings)


def _check(one: Judged, operator: str, dtype: str, hardware: str) -> None:
    found = (one.candidate.operator, one.candidate.domain.dtype, one.verdict.operator)
    if found != (operator, dtype, operator):
        raise TableConflictError(
            f"table {operator}.{dtype}: candidate {records.short(one.candidate.digest)} is for {found[:2]}"
        )
    if one.verdict.candidate != one.candidate.digest:
        raise TableConflictError(
            f"table {operator}.{dtype}: the verdict is on candidate {records.short(one.verdict.candidate)}"
        )
    if one.verdict.host.get("hardware", hardware) != hardware:
        raise TableConflictError(
            f"table {operator}.{dtype} for {hardware}: measured on {one.verdict.host['hardware']}; judge it here"
        )


def _measurements(judged: Iterable[Judged]) -> Iterator[_Measurement]:
    for one in judged:
        if one.verdict.status is not Status.FASTER:
            continue
        at: dict[tuple[_Rest, int], list[WorkloadTiming]] = defaultdict(list)
        for timing in one.verdict.timings:
            if one.candidate.domain.admits(timing.workload):
                at[_split(timing.workload.axes)].append(timing)
        for (rest, extent), timings in at.items():
            yield _Measurement(one, rest, extent, tuple(timings))


def _split(axes: Mapping[str, int]) -> tuple[_Rest, int]:
    variable = next((name for name in VARIABLE_AXES if name in axes), "")
    rest = tuple(sorted((name, extent) for name, extent in axes.items() if name != variable))
    return (*rest, (variable, -1)), axes.get(variable, -1)


def _winner(found: Sequence[_Measurement], policy: PromotionPolicy) -> _Measurement | None:
    """The best at one point, by lower bound, then digest; None is the baseline.

    A candidate that was measured for fewer of the point's layouts than another may still win: its entry then holds
    for the layouts that it was measured with.
    """
    best = max(found, key=lambda one: (one.ratio_low, one.judged.candidate.digest))
    return best if best.ratio_low > policy.min_ratio_low else None


def _runs(winners: Mapping[int, _Measurement | None]) -> Iterator[list[_Measurement]]:
    """Neighbouring extents that one candidate won, with the same layout, without too wide a gap."""
    run: list[_Measurement] = []
    for extent, winner in sorted(winners.items()):
        if run and (winner is None or not _continues(run[-1], winner, extent)):
            yield run
            run = []
        if winner is not None:
            run.append(winner)
    if run:
        yield run


def _continues(last: _Measurement, winner: _Measurement, extent: int) -> bool:
    same = last.judged.candidate.digest == winner.judged.candidate.digest and _layout([last]) is _layout([winner])
    return same and extent <= WIDEST_GAP * last.extent


def _entry(operator: str, dtype: str, rest: _Rest, run: Sequence[_Measurement]) -> TableEntry:
    judged = run[0].judged
    *fixed, (variable, _) = rest
    ranges = [AxisRange(name, extent, extent) for name, extent in fixed]
    if variable:
        multiple = math.lcm(*(r.multiple for r in judged.candidate.domain.ranges if r.name == variable))
        ranges.append(AxisRange(variable, run[0].extent, run[-1].extent, multiple))
    timings = [timing for one in run for timing in one.timings]
    return TableEntry(
        domain=Domain(operator, dtype, tuple(ranges), _layout(run)),
        candidate=judged.candidate.digest,
        object=judged.object,
        needs_setup=judged.candidate.needs_setup,
        sources=judged.sources,
        ratio=f"{statistics.median(timing.ratio for timing in timings):.{_DECIMALS}f}",
        ratio_low=f"{min(one.ratio_low for one in run):.{_DECIMALS}f}",
    )


def _layout(run: Sequence[_Measurement]) -> Layout:
    """The strictest layout that admits every measured call."""
    inputs = [tensor for one in run for timing in one.timings for tensor in timing.workload.inputs]
    return next(layout for layout in Layout if all(layout.admits(tensor) for tensor in inputs))


def _rounded_down(ratio: float) -> float:
    """To the decimals that a table states, so that the gate decides on what will be read there."""
    scale: int = 10**_DECIMALS
    return math.floor(ratio * scale) / scale if math.isfinite(ratio) else 0.0


def _log_gain(table: KernelTable) -> float:
    """Logarithm of the lower bounds multiplied over all ranges, each once per octave of its variable axis.

    The baseline counts as 1, so that a table gains by covering more as well as by being faster.
    """
    return sum(math.log(float(entry.ratio_low)) * (1 + _octaves(entry.domain)) for entry in table.entries)


def _octaves(domain: Domain) -> float:
    return sum(math.log2(r.high / r.low) for r in domain.ranges if r.name in VARIABLE_AXES and r.low > 0)


def _kernels(table: KernelTable) -> set[tuple[Domain, str]]:
    return {(entry.domain, entry.object.sha256) for entry in table.entries}
