"""Memory: what the searches of all hosts have learned, as the next one is told it.

Everything is kept per operator family. A search adds a `Segment`; segments are folded into the family's `Shelf`
(`agents/shelf.py`), from which a search of one operator gets its `Recollection`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gristmill.hardware import Hardware
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming

SCHEMA = 1
"""Stands in every object and in its key. Code of another schema neither reads nor removes what this one wrote."""
GAIN_EDGES = (0.5, 0.8, 0.95, 1.05, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Ratios between the bars of `PatternRecord.gains`."""
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "matrix_product": ("linear", "matmul", "gemm", "mlp"),
    "attention": ("attention", "attend"),
    "row_reduction": ("norm", "softmax", "argmax", "topk", "quantise", "quantize"),
    "elementwise": ("rotary", "silu", "gelu", "mul", "add", "cast", "copy", "write"),
}
"""Words of operator names. The first family that has one has the operator: fused ones go with their hardest part."""


def family_of(operator: str) -> str:
    """Operators of a family are limited by the same things, so that what helped one may help another."""
    words = re.split(r"[_+-]", operator)
    return next((family for family, marks in FAMILIES.items() if any(m in words for m in marks)), operator)


@dataclass(frozen=True)
class Evidence:
    """What judgements say of a pattern, as weighted sums, so that old ones can fade and others be added."""

    tried: float = 0.0
    correct: float = 0.0
    log_ratios: float = 0.0
    """Sum of the natural logarithms of the correct ones' ratios."""
    squares: float = 0.0
    """Sum of the squares of those logarithms."""

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(
            self.tried + other.tried,
            self.correct + other.correct,
            self.log_ratios + other.log_ratios,
            self.squares + other.squares,
        )

    def scaled(self, factor: float) -> Evidence:
        """The same with every judgement weighing `factor` times as much."""
        return Evidence(self.tried * factor, self.correct * factor, self.log_ratios * factor, self.squares * factor)


@dataclass(frozen=True)
class PatternRecord:
    """What became of one pattern's candidates, for one operator on one kind of hardware."""

    operator: str
    hardware: str
    """Hardware key."""
    pattern: str
    tried: int
    built: int
    correct: int
    won: int
    """Of the tried ones; `won` is proven faster than the baseline."""
    gains: tuple[int, ...]
    """The correct ones by traffic-weighted ratio: one bar below, between and above `GAIN_EDGES`."""
    best: float
    """The highest traffic-weighted ratio; 0 if none was correct."""
    evidence: Evidence
    """Of the same trials, faded as of `as_of_ms`."""
    as_of_ms: int
    """Since the epoch."""


@dataclass(frozen=True)
class Lesson:
    """One line worth telling the next search. Lessons with the same `key` are one, told again."""

    operator: str
    hardware: str
    pattern: str
    topic: str
    """What it is about, in a few words that stay the same when numbers change."""
    text: str
    """One line, at most `agents.lesson.MAX_TEXT` characters."""
    source: str
    """`verdict`, or the name of the language model that wrote it: then it is not to be trusted."""
    worth: float
    """How useful one telling is, from 0 to 1."""
    seen: int
    """How often it was learned."""
    last_ms: int
    """When for the last time, since the epoch."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.operator, self.hardware, self.pattern, self.topic


@dataclass(frozen=True)
class CandidateEntry:
    """A candidate that was among the best, and the evidence for it. Its source is an object of its own, by digest."""

    candidate: str
    """Digest."""
    operator: str
    dtype: str
    hardware: str
    pattern: str
    ratio: float
    """Traffic-weighted, as judged last."""
    timings: tuple[WorkloadTiming, ...]
    """The latest one per workload."""
    judged_ms: int
    """Since the epoch."""


@dataclass(frozen=True)
class Contents:
    """What is known, or what was learned: both are the same kind of thing, so that they can be merged."""

    records: tuple[PatternRecord, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    candidates: tuple[CandidateEntry, ...] = ()

    @property
    def size(self) -> int:
        """How many things are known."""
        return len(self.records) + len(self.lessons) + len(self.candidates)


@dataclass(frozen=True)
class Segment:
    """What one search learned of one family in one stretch. Immutable; its name is the digest of all this."""

    schema: int
    family: str
    writer: str
    """Drawn anew by each process that writes, so that no two segments are equal by chance."""
    number: int
    """Counted by the writer."""
    written_ms: int
    """Since the epoch."""
    contents: Contents


@dataclass(frozen=True)
class Folded:
    """A segment that a shelf already holds."""

    name: str
    written_ms: int


@dataclass(frozen=True)
class Shelf:
    """All that is known of one family."""

    schema: int
    family: str
    contents: Contents = field(default_factory=Contents)
    folded: tuple[Folded, ...] = ()
    """The latest segments in it: a copy that arrives late is not counted again."""
    horizon_ms: int = 0
    """Segments written up to then, and not named above, are too old to be told from copies: they are left out."""
    unused: dict[str, int] = field(default_factory=dict)
    """Digests of sources that no entry names any more, and since when."""


@dataclass(frozen=True)
class Remembered:
    """A candidate of an earlier search with its source."""

    candidate: Candidate
    entry: CandidateEntry

    @property
    def verdict(self) -> Verdict:
        """As an agent or a strategy may learn it: what was measured then, there, on those workloads."""
        return Verdict(
            Status.FASTER if any(timing.ratio_low > 1 for timing in self.entry.timings) else Status.SLOWER,
            f"remembered from an earlier search on {self.entry.hardware}",
            self.entry.candidate,
            self.entry.operator,
            self.entry.ratio,
            self.entry.timings,
        )


@dataclass(frozen=True)
class Recollection:
    """What memory tells a search of one operator and dtype on one kind of hardware."""

    operator: str
    dtype: str
    hardware: str
    records: tuple[PatternRecord, ...] = ()
    """Of every family and all hardware: what is near counts more, see `agents/bandit.py`."""
    lessons: tuple[Lesson, ...] = ()
    """Of the family, the most useful for this search first."""
    candidates: tuple[Remembered, ...] = ()
    """Of the same operator and dtype; those of the same hardware first, then by ratio."""


class Memory(Protocol):
    """Thread-safe. Nothing here fails or waits for long: what the store does not give is not known, what it does not
    take is kept on disk and sent later.
    """

    def recall(self, operator: str, dtype: str, hardware: Hardware) -> Recollection:
        """What is known by now; empty for an operator that nobody has searched."""
        ...

    def record(self, candidate: Candidate, verdict: Verdict) -> None:
        """Takes in a verdict that was just reached; replayed ones were taken in when they were new."""
        ...

    def search(self, query: str, limit: int = 8) -> tuple[str, ...]:
        """Lines about lessons, patterns and candidates that the words of `query` fit, the best first. The same memory
        and query give the same lines.
        """
        ...


class NoMemory:
    """The memory of a search that has none."""

    def recall(self, operator: str, dtype: str, hardware: Hardware) -> Recollection:
        return Recollection(operator, dtype, hardware.key)

    def record(self, candidate: Candidate, verdict: Verdict) -> None: ...

    def search(self, query: str, limit: int = 8) -> tuple[str, ...]:
        return ()
