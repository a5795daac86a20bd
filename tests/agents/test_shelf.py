"""Folding: any order gives the same, nothing counts twice, and a shelf stays within its bounds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import shelf as shelves
from agents.bandit import HALF_LIFE_MS
from agents.memory import GAIN_EDGES, SCHEMA, Contents, Evidence, Segment, Shelf, family_of
from gristmill import records
from gristmill.domain import Domain
from gristmill.workload import Workload, dense
from kernels.candidate import Candidate, Language, Origin
from kernels.verdict import Status, Verdict, WorkloadTiming

NOW_MS = 1_790_000_000_000
OPERATORS, HARDWARE, PATTERNS = ("rms_norm", "softmax"), ("here", "there"), ("rows", "online")


def workload(tokens: int, operator: str = "rms_norm") -> Workload:
    return Workload(operator, "float32", {"tokens": tokens}, (dense((tokens, 8), "float32"),), 1, 1)


def candidate(number: int, operator: str = "rms_norm", pattern: str = "rows") -> Candidate:
    files = {"main.cpp": f"// {number}"}
    return Candidate(operator, Language.CPP, files, Domain(operator, "float32"), Origin("a", pattern))


def verdict(of: Candidate, ratios: dict[int, float]) -> Verdict:
    """By tokens; without any it did not build."""
    timings = tuple(
        WorkloadTiming(workload(t, of.operator), r, r - 0.01, r + 0.01, 1.0, r, 9, 0.1, 1.0) for t, r in ratios.items()
    )
    if not timings:
        return Verdict(Status.BUILD_FAILED, "main.cpp:1: error: expected ';'", of.digest, of.operator)
    status = Status.FASTER if max(ratios.values()) > 1.01 else Status.SLOWER
    mean = sum(ratios.values()) / len(ratios)
    return Verdict(status, "measured", of.digest, of.operator, mean, timings)


@st.composite
def learnings(draw: st.DrawFn) -> Contents:
    one = candidate(draw(st.integers(0, 4)), draw(st.sampled_from(OPERATORS)), draw(st.sampled_from(PATTERNS)))
    ratios = draw(st.dictionaries(st.sampled_from([1, 4, 16]), st.sampled_from([0.5, 1.2, 2.0, 3.5]), max_size=3))
    at_ms = NOW_MS - draw(st.sampled_from([0, 1, 86_400_000, 30 * 86_400_000]))
    return shelves.learned(one, verdict(one, ratios), draw(st.sampled_from(HARDWARE)), at_ms)


def equal(one: Contents, other: Contents) -> bool:
    """Up to the order, and to the rounding of sums."""
    one, other = shelves.bounded(one), shelves.bounded(other)
    sums = [[v for r in c.records for v in dataclasses.astuple(r.evidence)] for c in (one, other)]
    plain = [tuple(dataclasses.replace(r, evidence=Evidence()) for r in c.records) for c in (one, other)]
    exact = (plain[0], one.lessons, one.candidates) == (plain[1], other.lessons, other.candidates)
    return exact and sums[0] == pytest.approx(sums[1])


def joined(parts: Sequence[Contents]) -> Contents:
    total = Contents()
    for part in parts:
        total = shelves.merged(total, part)
    return total


@settings(max_examples=60, deadline=None)
@given(st.lists(learnings(), min_size=2, max_size=10), st.randoms(), st.integers(1, 9))
def test_any_order_and_any_grouping_gives_the_same(parts: list[Contents], chance: random.Random, cut: int) -> None:
    straight = joined(parts)
    shuffled = parts[:]
    chance.shuffle(shuffled)
    grouped = shelves.merged(joined(shuffled[:cut]), joined(shuffled[cut:]))
    assert equal(straight, grouped)
    assert sum(record.tried for record in straight.records) == len(parts)


def segment(number: int, contents: Contents, written_ms: int = NOW_MS) -> tuple[str, Segment]:
    made = Segment(SCHEMA, "row_reduction", "w", number, written_ms, contents)
    return f"{written_ms:015d}-{records.digest(made)[:32]}", made


@settings(max_examples=40, deadline=None)
@given(st.lists(learnings(), min_size=1, max_size=8), st.randoms(), st.data())
def test_segments_fold_once_however_often_and_in_whatever_order_they_come(
    parts: list[Contents], chance: random.Random, data: st.DataObject
) -> None:
    named = [segment(number, part) for number, part in enumerate(parts)]
    once = shelves.fold(shelves.empty("row_reduction"), named)
    shelf = shelves.empty("row_reduction")
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(named), max_size=6))
        shelf = shelves.fold(shelf, dict(chosen).items())
    shelf = shelves.fold(shelf, named)
    assert equal(once.contents, shelf.contents)
    assert all(shelves.holds(shelf, name, made.written_ms) for name, made in named)
    assert records.parse(Shelf, records.canonical_json(shelf)) == shelf


def test_a_record_counts_what_happened() -> None:
    good, slow = candidate(1), candidate(2)
    known = joined(
        [
            shelves.learned(good, verdict(good, {1: 3.5}), "here", NOW_MS),
            shelves.learned(slow, verdict(slow, {1: 0.7}), "here", NOW_MS),
            shelves.learned(slow, verdict(slow, {}), "here", NOW_MS),
        ]
    )
    (record,) = known.records
    assert (record.tried, record.built, record.correct, record.won, record.best) == (3, 2, 2, 1, 3.5)
    assert sum(record.gains) == 2 and len(record.gains) == len(GAIN_EDGES) + 1
    assert (record.gains[1], record.gains[8]) == (1, 1)
    assert [entry.candidate for entry in known.candidates] == [good.digest]


def test_old_outcomes_count_less_than_new_ones() -> None:
    one = candidate(1)
    old = shelves.learned(one, verdict(one, {1: 2.0}), "here", NOW_MS - int(HALF_LIFE_MS))
    new = shelves.learned(one, verdict(one, {1: 2.0}), "here", NOW_MS)
    (record,) = shelves.merged(old, new).records
    assert (record.tried, record.evidence.tried, record.as_of_ms) == (2, pytest.approx(1.5), NOW_MS)


def test_of_two_timings_the_lower_is_believed() -> None:
    one = candidate(1)
    lucky = shelves.learned(one, verdict(one, {1: 3.0, 4: 2.0}), "here", NOW_MS)
    later = shelves.learned(one, verdict(one, {1: 2.0}), "here", NOW_MS + 1)
    (entry,) = shelves.merged(lucky, later).candidates
    assert {t.workload.axes["tokens"]: t.ratio for t in entry.timings} == {1: 2.0, 4: 2.0}
    assert (entry.ratio, entry.judged_ms) == (2.0, NOW_MS + 1)


def test_specialists_survive_the_bound() -> None:
    """A hundred good all-rounders do not push out the one that is best at 16 tokens."""
    crowd = [candidate(number) for number in range(100)]
    learned = [
        shelves.learned(c, verdict(c, {1: 2 + n / 100, 4: 2 + n / 100}), "here", NOW_MS) for n, c in enumerate(crowd)
    ]
    special = candidate(1000)
    rare = candidate(1001, pattern="online")
    learned.append(shelves.learned(special, verdict(special, {16: 1.1}), "here", NOW_MS))
    learned.append(shelves.learned(rare, verdict(rare, {1: 1.5}), "here", NOW_MS))
    kept = {entry.candidate for entry in shelves.bounded(joined(learned)).candidates}
    assert len(kept) == shelves.CANDIDATES_PER_SEARCH
    assert {crowd[-1].digest, special.digest, rare.digest} <= kept


def test_a_shelf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "MAX_LESSONS", 5)
    monkeypatch.setattr(shelves, "MAX_RECORDS", 4)
    monkeypatch.setattr(shelves, "MAX_CANDIDATES", 3)
    monkeypatch.setattr(shelves, "FOLDED_NAMES", 2)
    shelf = shelves.empty("row_reduction")
    for number in range(12):
        one = candidate(number, pattern=f"p{number}")
        part = shelves.learned(one, verdict(one, {number + 1: 2.0}), f"h{number}", NOW_MS + number)
        shelf = shelves.fold(shelf, [segment(number, part, NOW_MS + number)])
    known = shelf.contents
    assert (len(known.records), len(known.lessons), len(known.candidates), len(shelf.folded)) == (4, 5, 3, 2)
    assert {record.pattern for record in known.records} == {"p8", "p9", "p10", "p11"}
    assert shelf.horizon_ms == NOW_MS + 9
    late = segment(99, known, NOW_MS + 3)
    assert shelves.fold(shelf, [late]) is shelf, "too old to be told from a copy"


def test_forgetting_leaves_no_trace_of_what_matches() -> None:
    parts = []
    for operator in OPERATORS:
        for hardware in HARDWARE:
            one = candidate(1, operator)
            parts.append(shelves.learned(one, verdict(one, {1: 2.0}), hardware, NOW_MS))
    shelf = dataclasses.replace(shelves.empty("row_reduction"), contents=joined(parts))
    left = shelves.without(shelf, lambda operator, hardware: operator == "rms_norm" or hardware == "there").contents
    everything = [*left.records, *left.lessons, *left.candidates]
    assert {(one.operator, one.hardware) for one in everything} == {("softmax", "here")} and len(everything) == 3


@pytest.mark.parametrize(
    ("operator", "family"),
    [
        ("rms_norm", "row_reduction"),
        ("fused_add_rms_norm", "row_reduction"),
        ("softmax", "row_reduction"),
        ("silu_and_mul", "elementwise"),
        ("rotary_embedding", "elementwise"),
        ("skinny_linear", "matrix_product"),
        ("rms_norm+skinny_linear", "matrix_product"),
        ("residual_add++rms_norm", "row_reduction"),
        ("mystery", "mystery"),
    ],
)
def test_families(operator: str, family: str) -> None:
    assert family_of(operator) == family
