"""Shelves: how what was learned is merged, bounded and forgotten. Pure; `tasks/memory_shelves.py` does the reading.

Merging is commutative and associative, within the bounds and up to the rounding of sums, so it does not matter which of
many searches wrote first, nor who folded what.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from agents import lesson
from agents.bandit import evidence_of, faded
from agents.memory import (
    GAIN_EDGES,
    SCHEMA,
    CandidateEntry,
    Contents,
    Evidence,
    Folded,
    Lesson,
    PatternRecord,
    Segment,
    Shelf,
)
from gristmill import records
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming

MAX_RECORDS = 1000
MAX_LESSONS = 400
MAX_CANDIDATES = 120
"""In a shelf; the oldest give way."""
CANDIDATES_PER_SEARCH = 12
"""Of one operator, dtype and hardware; the rest is never asked for."""
TIMINGS_PER_CANDIDATE = 16
FOLDED_NAMES = 2000
UNUSED_FOR_MS = 86_400_000
"""So long a source without an entry is kept: whoever wrote it may be about to write the entry."""

MOST = 1 << 53
"""Of any count."""
LAST_MS = 253_402_300_799_999
"""Since the epoch: of the last day that has a date."""

T = TypeVar("T")
K = TypeVar("K")


def learned(candidate: Candidate, verdict: Verdict, hardware: str, now_ms: int) -> Contents:
    """What one verdict adds to memory. A candidate that won on no workload leaves its record and lessons only."""
    entries = (_entry(candidate, verdict, hardware, now_ms),) if verdict.won else ()
    return Contents(
        (_record(candidate, verdict, hardware, now_ms),),
        lesson.lessons_of(candidate, verdict, hardware, now_ms),
        entries,
    )


def merged(one: Contents, other: Contents) -> Contents:
    """What is known from both."""
    return Contents(
        _merged_by(lambda r: (r.operator, r.hardware, r.pattern), _merged_records, one.records, other.records),
        _merged_by(lambda found: found.key, lesson.merged, one.lessons, other.lessons),
        _merged_by(lambda e: (e.candidate, e.hardware), _merged_entries, one.candidates, other.candidates),
    )


def bounded(contents: Contents) -> Contents:
    """The part that is worth its room: recent records, useful lessons, and candidates that lead on some workload."""
    latest = sorted(contents.records, key=lambda r: (-r.as_of_ms, r.operator, r.hardware, r.pattern))[:MAX_RECORDS]
    useful = sorted(contents.lessons, key=lambda found: (-_lasting(found), found.key))[:MAX_LESSONS]
    groups: defaultdict[tuple[str, str, str], list[CandidateEntry]] = defaultdict(list)
    for entry in contents.candidates:
        groups[entry.operator, entry.dtype, entry.hardware].append(entry)
    leading = [entry for group in groups.values() for entry in _leading(group)]
    kept = sorted(leading, key=lambda e: (-e.judged_ms, e.candidate, e.hardware))[:MAX_CANDIDATES]
    return Contents(
        tuple(sorted(latest, key=lambda r: (r.operator, r.hardware, r.pattern))),
        tuple(sorted(useful, key=lambda found: found.key)),
        tuple(sorted(kept, key=lambda e: (e.candidate, e.hardware))),
    )


def fold(shelf: Shelf, segments: Iterable[tuple[str, Segment]]) -> Shelf:
    """The shelf with these named segments in it; those that it already holds, or that are too old to say, are not
    counted again.
    """
    held = {folded.name for folded in shelf.folded}
    contents, added = shelf.contents, []
    for name, segment in sorted(segments):
        if name not in held and segment.written_ms > shelf.horizon_ms:
            contents = merged(contents, segment.contents)
            held.add(name)
            added.append(Folded(name, segment.written_ms))
    if not added:
        return shelf
    latest = sorted([*shelf.folded, *added], key=lambda folded: (-folded.written_ms, folded.name))
    kept, dropped = latest[:FOLDED_NAMES], latest[FOLDED_NAMES:]
    horizon_ms = max([shelf.horizon_ms, *(folded.written_ms for folded in dropped)])
    return replace(shelf, contents=bounded(contents), folded=tuple(kept), horizon_ms=horizon_ms)


def complaint(contents: Contents) -> str:
    """What of contents that were read cannot be counted with, in a few words; empty if nothing does."""
    for record in contents.records:
        if len(record.gains) != len(GAIN_EDGES) + 1:
            return f"{len(record.gains)} bars of gains, expected {len(GAIN_EDGES) + 1}"
    times_ms = [
        *(record.as_of_ms for record in contents.records),
        *(found.last_ms for found in contents.lessons),
        *(entry.judged_ms for entry in contents.candidates),
    ]
    counts = [
        *(n for r in contents.records for n in (r.tried, r.built, r.correct, r.won, *r.gains)),
        *(found.seen for found in contents.lessons),
        *(weight for r in contents.records for weight in (r.evidence.tried, r.evidence.correct)),
    ]
    sums = [part for r in contents.records for part in (r.evidence.log_ratios, r.evidence.squares)]
    if not all(abs(part) <= MOST for part in sums):
        return f"evidence beyond {MOST}"
    if not all(0 <= number <= MOST for number in counts):
        return f"a count that is not from 0 to {MOST}"
    if not all(0 <= time_ms <= LAST_MS for time_ms in times_ms):
        return f"a time that is not from 0 to {LAST_MS} ms"
    return ""


def complaint_of_shelf(shelf: Shelf) -> str:
    """The same of a shelf. With a horizon behind what it holds it would take in nothing any more."""
    if shelf.horizon_ms > min((folded.written_ms for folded in shelf.folded), default=0):
        return f"a horizon of {shelf.horizon_ms} ms, behind segments that it holds"
    return complaint(shelf.contents)


def holds(shelf: Shelf, name: str, written_ms: int) -> bool:
    """Whether the shelf needs nothing more of a segment."""
    return written_ms <= shelf.horizon_ms or any(folded.name == name for folded in shelf.folded)


def without(shelf: Shelf, forget: Callable[[str, str], bool]) -> Shelf:
    """The shelf without what was learned of some operators and hardware, by `(operator, hardware key)`."""
    known = shelf.contents
    return replace(
        shelf,
        contents=Contents(
            tuple(r for r in known.records if not forget(r.operator, r.hardware)),
            tuple(found for found in known.lessons if not forget(found.operator, found.hardware)),
            tuple(e for e in known.candidates if not forget(e.operator, e.hardware)),
        ),
    )


def swept(shelf: Shelf, stored: Iterable[str], now_ms: int) -> tuple[Shelf, tuple[str, ...]]:
    """The shelf without entries whose source is not stored, and the stored sources that can go: those that no entry
    has named for a day. The shelf remembers since when.
    """
    there = set(stored)
    entries = tuple(entry for entry in shelf.contents.candidates if entry.candidate in there)
    idle = sorted(there - {entry.candidate for entry in entries})
    since = {digest: shelf.unused.get(digest, now_ms) for digest in idle}
    gone = tuple(digest for digest, first_ms in since.items() if now_ms - first_ms >= UNUSED_FOR_MS)
    unused = {digest: first_ms for digest, first_ms in since.items() if digest not in gone}
    return replace(shelf, contents=replace(shelf.contents, candidates=entries), unused=unused), gone


def empty(family: str) -> Shelf:
    """Of a family that nobody has searched."""
    return Shelf(SCHEMA, family)


def _record(candidate: Candidate, verdict: Verdict, hardware: str, now_ms: int) -> PatternRecord:
    ratio = verdict.ratio
    bars = [0] * (len(GAIN_EDGES) + 1)
    if ratio is not None:
        bars[bisect_right(GAIN_EDGES, ratio)] = 1
    return PatternRecord(
        operator=candidate.operator,
        hardware=hardware,
        pattern=lesson.line(candidate.origin.pattern, lesson.MAX_NAME),
        tried=1,
        built=int(verdict.status not in (Status.REJECTED, Status.BUILD_FAILED)),
        correct=int(ratio is not None),
        won=int(verdict.won),
        gains=tuple(bars),
        best=ratio or 0.0,
        evidence=evidence_of(ratio),
        as_of_ms=now_ms,
    )


def _entry(candidate: Candidate, verdict: Verdict, hardware: str, now_ms: int) -> CandidateEntry:
    return CandidateEntry(
        candidate=candidate.digest,
        operator=candidate.operator,
        dtype=candidate.domain.dtype,
        hardware=hardware,
        pattern=lesson.line(candidate.origin.pattern, lesson.MAX_NAME),
        ratio=verdict.ratio or 0.0,
        timings=_timings(verdict.timings),
        judged_ms=now_ms,
    )


def _merged_by(
    key: Callable[[T], K], merge: Callable[[T, T], T], one: Sequence[T], other: Sequence[T]
) -> tuple[T, ...]:
    """Both sequences with what has the same key merged; neither holds a key twice."""
    found = {key(item): item for item in one}
    for item in other:
        known = found.get(key(item))
        found[key(item)] = item if known is None else merge(known, item)
    return tuple(found.values())


def _merged_records(one: PatternRecord, other: PatternRecord) -> PatternRecord:
    as_of_ms = max(one.as_of_ms, other.as_of_ms)
    return replace(
        one,
        tried=one.tried + other.tried,
        built=one.built + other.built,
        correct=one.correct + other.correct,
        won=one.won + other.won,
        gains=tuple(map(sum, zip(one.gains, other.gains, strict=True))),
        best=max(one.best, other.best),
        evidence=_at(one, as_of_ms) + _at(other, as_of_ms),
        as_of_ms=as_of_ms,
    )


def _at(record: PatternRecord, now_ms: int) -> Evidence:
    return faded(record.evidence, record.as_of_ms, now_ms)


def _merged_entries(one: CandidateEntry, other: CandidateEntry) -> CandidateEntry:
    """The later judgement's ratio. Of two timings of a workload the lower one is believed: the higher had more luck."""
    later = max((one, other), key=lambda entry: (entry.judged_ms, entry.ratio, entry.pattern))
    timings = _merged_by(
        lambda timing: timing.workload.digest,
        lambda a, b: min(a, b, key=lambda timing: (timing.ratio_low, records.canonical_json(timing))),
        one.timings,
        other.timings,
    )
    return replace(later, timings=_timings(timings))


def _timings(timings: Iterable[WorkloadTiming]) -> tuple[WorkloadTiming, ...]:
    """The best ones, without the noise around them, which only the judge had a use for."""
    best = sorted(timings, key=lambda timing: (-timing.ratio_low, timing.workload.digest))
    return tuple(replace(timing, noise=None) for timing in best[:TIMINGS_PER_CANDIDATE])


def _leading(group: Sequence[CandidateEntry]) -> list[CandidateEntry]:
    """The best of one search's candidates: those that lead on most workloads, then the best of each pattern, then the
    highest ratios.
    """
    leads: defaultdict[str, int] = defaultdict(int)
    leader: dict[str, tuple[float, str]] = {}
    for entry in group:
        for timing in entry.timings:
            digest = timing.workload.digest
            leader[digest] = max(leader.get(digest, (-math.inf, "")), (timing.ratio_low, entry.candidate))
    for _, candidate in leader.values():
        leads[candidate] += 1
    best = sorted(group, key=lambda entry: (-entry.ratio, entry.candidate))
    of_pattern = {entry.pattern: entry.candidate for entry in reversed(best)}

    def order(entry: CandidateEntry) -> tuple[int, bool, float, str]:
        first = of_pattern[entry.pattern] == entry.candidate
        return -leads[entry.candidate], not first, -entry.ratio, entry.candidate

    return sorted(group, key=order)[:CANDIDATES_PER_SEARCH]


def _lasting(found: Lesson) -> float:
    """What a lesson is worth to whoever comes, in powers of two."""
    often = 1 + math.log2(max(1, found.seen)) / 4
    return math.log2(max(found.worth, 1e-6) * often) + found.last_ms / lesson.HALF_LIFE_MS
