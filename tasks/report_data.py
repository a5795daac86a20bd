"""What the report of one turn of the mill says, as records: a flow fills them, `tasks.report` draws them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrafficRow:
    """One operator of the traffic profile. Shares are of the engine's time, between 0 and 1."""

    operator: str
    dtype: str
    calls: int
    share: float
    headroom: float
    """Time now over time at the roofline; 1 leaves nothing to gain."""
    saving: float
    """Share of all time that would go if the operator ran at its roofline: what the ranking is by."""


@dataclass(frozen=True)
class SearchRow:
    """The search of one operator."""

    operator: str
    dtype: str
    budget_s: float
    ratios: tuple[float | None, ...]
    """Per candidate in the order judged; None where it was not timed."""
    faster: int
    """How many were proven faster."""
    gain: float = 1.0
    """On the search's traffic, with the best candidate for each workload."""


@dataclass(frozen=True)
class LeaderRow:
    """One of the best candidates."""

    operator: str
    dtype: str
    pattern: str
    parameters: str
    ratio: float
    ratio_low: float
    candidate: str


@dataclass(frozen=True)
class KernelRow:
    """One promoted range."""

    operator: str
    dtype: str
    range: str
    """`tokens 1 to 8`."""
    ratio: float
    ratio_low: float
    candidate: str
    hits: int
    """Calls it served in the live process."""


@dataclass(frozen=True)
class ConcurrencyRow:
    """The paired A/B at one number of concurrent requests."""

    concurrency: int
    off_tokens_s: float
    on_tokens_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    pairs: int


@dataclass(frozen=True)
class OperatorTimeRow:
    """Time that the serving process spent in one operator while it replayed the same requests."""

    operator: str
    before_ms: float
    after_ms: float


@dataclass(frozen=True)
class HeatRow:
    """One cell of the traffic's heat map."""

    name: str
    """Operator, dtype and what the model fixes."""
    extent: int
    """Of the axis that varies: from here to just below twice as much."""
    share: float
    """Of the sampled time."""


@dataclass(frozen=True)
class TimeShareRow:
    """One operator's part of all time before: with the engine's own kernels, and with the best proven candidates."""

    operator: str
    dtype: str
    before: float
    after: float


@dataclass(frozen=True)
class FateRow:
    """What became of the candidates of one pattern or model."""

    name: str
    statuses: dict[str, int]
    """Candidates by `kernels.verdict.Status`."""


@dataclass(frozen=True)
class ParetoRow:
    """One timed candidate over the range of the traffic."""

    operator: str
    dtype: str
    candidate: str
    points: tuple[tuple[int, float], ...]
    """Extent of the axis that varies, and the ratio there."""
    efficient: bool
    """Whether none is at least as good everywhere and better somewhere."""


@dataclass(frozen=True)
class DecisionRow:
    """What was decided about one kernel table."""

    table: str
    decision: str
    reason: str
    ranges: int
    ratio_low: float
    """The lower end of the interval, of the range that gains least."""


@dataclass(frozen=True)
class DemoReport:
    """Everything that the page shows of one cycle; an empty tuple leaves its section out."""

    title: str
    created_utc: str
    host: str
    """Hardware and cores, never the machine's name."""
    facts: dict[str, str]
    """Of the trace, the model and the versions: label to value."""
    traffic: tuple[TrafficRow, ...] = ()
    searches: tuple[SearchRow, ...] = ()
    leaders: tuple[LeaderRow, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    concurrency: tuple[ConcurrencyRow, ...] = ()
    operator_times: tuple[OperatorTimeRow, ...] = ()
    tokens_equal: bool | None = None
    """Whether greedy decoding gave the same tokens; None if that was not compared."""
    token_comparison: str = ""
    """How that was found, or where they part and why."""
    latencies_ms: dict[str, float] | None = None
    """`swap`, `rollback`, ...: from the channel's move to the first call served differently."""
    heat: tuple[HeatRow, ...] = ()
    time_shares: tuple[TimeShareRow, ...] = ()
    fates: tuple[FateRow, ...] = ()
    pareto: tuple[ParetoRow, ...] = ()
    decisions: tuple[DecisionRow, ...] = ()
    phases_s: dict[str, float] | None = None
    """Wall time per phase, in order."""
    commands: dict[str, str] | None = None
    """What to run next: purpose to command."""
