"""Tallies: samples of a fleet's operators and requests, added up, and the traffic profile that they make.

Adding is associative and commutative, so samples may arrive late, in any order, and be added in parts.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from gristmill import records
from gristmill.sequence import NO_STEPS, Edge, StepTimes
from gristmill.workload import TensorLayout, Workload
from kernels import joined_workloads
from kernels.errors import EmptyProfileError, SpoolObjectError
from kernels.profile import Quantiles, RequestStatistics, TrafficProfile
from kernels.sketch import Sketch


class Source(NamedTuple):
    """Where samples come from: they are never mixed across these."""

    fleet: str
    model: str
    hardware: str


class Pattern(NamedTuple):
    """One call pattern, hashable: axes and layouts as canonical JSON."""

    operator: str
    dtype: str
    axes: str
    layouts: str


class Ends(NamedTuple):
    """What an edge joins, hashable: axes as canonical JSON."""

    producer: str
    producer_axes: str
    output: int
    consumer: str
    consumer_axes: str
    input: int
    dtype: str
    uses: int


@dataclass(slots=True)
class Counts:
    """Sums over the samples of one call pattern."""

    calls: int = 0
    timed_calls: int = 0
    timed_ns: int = 0

    def add(self, other: Counts) -> None:
        self.calls += other.calls
        self.timed_calls += other.timed_calls
        self.timed_ns += other.timed_ns

    @property
    def time_ns(self) -> int:
        """Time of all calls, estimated from the timed ones; 0 if none was timed."""
        return self.calls * self.timed_ns // self.timed_calls if self.timed_calls else 0


@dataclass
class Tally:
    """The sum of some spool files of one source. Every field is itself a sum, a minimum, a maximum or a union."""

    source: Source
    start_ns: int
    end_ns: int
    versions: frozenset[tuple[str, str]] = frozenset()
    patterns: dict[Pattern, Counts] = field(default_factory=dict)
    prompt_tokens: Counter[int] = field(default_factory=Counter)
    """Requests by number of tokens."""
    generated_tokens: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    edges: Counter[Ends] = field(default_factory=Counter)
    """Calls by what the edge joins."""
    cached_tokens: int = 0
    """Of the prompts, found in a cache."""
    drafts: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    """Drafts that were accepted at least so far, by position."""
    dropped_requests: int = 0
    steps: StepTimes = NO_STEPS
    sketch: Sketch = field(default_factory=Sketch)

    def add(self, other: Tally) -> None:
        """Counts the samples of another tally of this source as well; that one stays as it is."""
        self.start_ns = min(self.start_ns, other.start_ns)
        self.end_ns = max(self.end_ns, other.end_ns)
        self.versions |= other.versions
        for pattern, counts in other.patterns.items():
            self.patterns.setdefault(pattern, Counts()).add(counts)
        self.prompt_tokens.update(other.prompt_tokens)
        self.generated_tokens.update(other.generated_tokens)
        self.dropped += other.dropped
        self.edges.update(other.edges)
        self.cached_tokens += other.cached_tokens
        self.drafts += other.drafts
        self.accepted.update(other.accepted)
        self.dropped_requests += other.dropped_requests
        self.steps += other.steps
        self.sketch.add(other.sketch)

    def profile(self) -> TrafficProfile:
        """The traffic profile of these samples."""
        workloads = joined_workloads.joined(
            [_workload(pattern, counts) for pattern, counts in self.patterns.items() if counts.calls]
        )
        return TrafficProfile(
            **self.source._asdict(),
            window_start_utc=_utc(self.start_ns),
            window_end_utc=_utc(self.end_ns),
            versions=_joined(self.versions),
            workloads=tuple(sorted(workloads, key=lambda w: (-w.time_ns, -w.calls, w.digest))),
            requests=RequestStatistics(
                count=self.prompt_tokens.total(),
                prompt_tokens=_quantiles(self.prompt_tokens),
                generated_tokens=_quantiles(self.generated_tokens),
                prompt_tokens_total=sum(tokens * count for tokens, count in self.prompt_tokens.items()),
                cached_tokens_total=self.cached_tokens,
                drafts=self.drafts,
                accepted=tuple(self.accepted[position] for position in range(max(self.accepted, default=-1) + 1)),
                dropped=self.dropped_requests,
            ),
            dropped=self.dropped,
            edges=tuple(_edge(ends, calls) for ends, calls in sorted(self.edges.items(), key=lambda e: (-e[1], e[0]))),
            steps=self.steps,
            sketch=self.sketch.record(),
        )


def total(tallies: Iterable[tuple[str, Tally]]) -> Tally:
    """The sum of tallies, given as (name, tally); of single objects, or of parts that were folded elsewhere.

    Raises:
        SpoolObjectError: naming one from another fleet, model or hardware than the first.
        EmptyProfileError: if there is none.
    """
    result: Tally | None = None
    for name, one in tallies:
        if result is None:
            result = Tally(one.source, one.start_ns, one.end_ns)
        if one.source != result.source:
            other, expected = ("/".join(t.source) for t in (one, result))
            raise SpoolObjectError(
                f"spool object {name}: from {other}, but the others are from {expected}: fold them apart"
            )
        result.add(one)
    if result is None:
        raise EmptyProfileError(
            "the spool holds no object: let the fleet serve with sampling on (./mill serve), then capture again"
        )
    return result


def _workload(pattern: Pattern, counts: Counts) -> Workload:
    return Workload(
        operator=pattern.operator,
        dtype=pattern.dtype,
        axes=json.loads(pattern.axes),
        inputs=layouts_of(pattern.layouts),
        calls=counts.calls,
        time_ns=counts.time_ns,
    )


def _edge(ends: Ends, calls: int) -> Edge:
    axes = {name: json.loads(text) for name, text in ends._asdict().items() if name.endswith("_axes")}
    return Edge(**{**ends._asdict(), **axes}, calls=calls)


@lru_cache(maxsize=1 << 16)
def layouts_of(text: str) -> tuple[TensorLayout, ...]:
    """
    Raises:
        MalformedRecordError: it is not the JSON of layouts.
    """
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        found = json.loads(text)
        plain = [layout for one in found if (layout := _layout(**one))]
        if len(plain) == len(found):
            return tuple(plain)
    return records.parse(tuple[TensorLayout, ...], text, "list")  # of another form, or none: there it is told what


def _layout(shape: Any, strides: Any, dtype: Any) -> TensorLayout | None:
    """The layout of exactly these; None if one of them is of another kind. There are as many as call patterns."""
    if type(shape) is type(strides) is list and type(dtype) is str and all(type(n) is int for n in (*shape, *strides)):
        return TensorLayout(tuple(shape), tuple(strides), dtype)
    return None


def _joined(versions: Iterable[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for package, version in sorted(versions):
        joined[package] = f"{joined[package]}, {version}" if package in joined else version
    return joined


def _quantiles(counts: Counter[int]) -> Quantiles:
    """The smallest value that at least that share of the requests does not exceed."""
    values = sorted(counts.elements())
    if not values:
        return Quantiles()

    def at(percent: int) -> int:
        return values[max(0, -(-percent * len(values) // 100) - 1)]

    return Quantiles(p10=at(10), p50=at(50), p90=at(90), p99=at(99), maximum=values[-1])


def _utc(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 10**9)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=rest_ns // 1000)
    return moment.isoformat(timespec="microseconds")
