from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.errors import MalformedRecordError
from kernels import sketch
from kernels.sketch import CELL_NS, PROMPTS, Observation, Sketch, SketchRecord, Stream, from_record, sketched
from tests.kernels.test_profile import call_pattern

NORM = Stream("rms_norm", "float32", "tokens", '{"hidden":64}')
WIDE = Stream("rms_norm", "float32", "tokens", '{"hidden":128}')

observations = st.lists(
    st.tuples(
        st.sampled_from([NORM, WIDE, PROMPTS]),
        st.integers(1, 1 << 17),
        st.integers(0, 200 * CELL_NS),
        st.integers(0, 9),
        st.integers(0, 10**9),
    ),
    max_size=40,
)
parts = st.lists(observations, min_size=1, max_size=6)


def summed(*sketches: Sketch) -> Sketch:
    whole = Sketch()
    for one in sketches:
        whole.add(one)
    return whole


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that sums of a few observations are too large for the finest grid."""
    monkeypatch.setattr(sketch, "MAX_ENTRIES", 16)
    monkeypatch.setattr(sketch, "MAX_CELLS", 90)


@given(parts, st.randoms(use_true_random=False))
def test_whoever_adds_in_whatever_order_comes_to_one_sketch(seen: list[list[Observation]], rng: random.Random) -> None:
    whole = sketched(one for part in seen for one in part)
    sketches = [sketched(part) for part in seen]
    assert summed(*sketches) == whole
    while len(sketches) > 1:
        one, other = (sketches.pop(rng.randrange(len(sketches))) for _ in range(2))
        assert summed(one, other) == summed(other, one)
        sketches.append(summed(one, other))
    assert sketches[0] == whole
    assert sketches[0].record() == whole.record()


@given(parts)
def test_no_call_is_lost_and_there_is_no_more_than_there_is_room_for(seen: list[list[Observation]]) -> None:
    whole = summed(*map(sketched, seen))
    calls: Counter[Stream] = Counter()
    time_ns: Counter[Stream] = Counter()
    for stream, _, _, count, ns in (one for part in seen for one in part):
        calls[stream] += count
        time_ns[stream] += ns if count else 0
    for found in (whole.counts, {key: amounts[0] for key, amounts in whole.totals.items()}):
        sums: Counter[Stream] = Counter()
        for key, count in found.items():
            sums[key[0]] += count
        assert +sums == +calls
    assert sum(ns for _, ns in whole.totals.values()) == time_ns.total()
    bins = len({(stream, bin_) for stream, _, bin_ in whole.counts})
    assert len(whole.counts) <= max(sketch.MAX_ENTRIES, bins)
    assert len(whole.cells) <= sketch.MAX_CELLS


@given(observations)
def test_what_is_kept_is_what_was_seen(seen: list[Observation]) -> None:
    whole = sketched(seen)
    kept = records.parse(SketchRecord, records.canonical_json(whole.record()))
    assert from_record(kept) == whole


def test_tokens_are_exact_where_kernels_differ_and_within_an_eighth_above() -> None:
    assert [sketch.bucket(tokens) for tokens in range(257)] == list(range(257))
    for tokens in range(257, 20_000, 7):
        assert sketch.bucket(tokens) <= tokens < sketch.bucket(tokens) * 1.125
    assert sketch.bucket(4095) == 3840


def test_a_coarser_bucket_joins_whole_finer_ones() -> None:
    for exact, bits in ((16, 4), (8, 3), (1, 1)):
        joined = {}
        for tokens in range(1, 5000):
            joined.setdefault(sketch.bucket(tokens), set()).add(sketch.bucket(tokens, exact, bits))
        assert all(len(coarse) == 1 for coarse in joined.values())


def test_cells_between_are_quiet_and_lie_on_one_grid() -> None:
    late = sketched([(NORM, 4, 7 * CELL_NS + 5, 3, 10)])
    early = sketched([(NORM, 4, 2 * CELL_NS, 2, 10)])
    assert summed(early, late).cells == range(2, 8)
    assert not Sketch().cells
    assert summed(early, Sketch()) == early


def test_a_day_of_many_shapes_is_small() -> None:
    """With the room that there really is."""
    rng = random.Random(0)
    streams = [Stream("skinny_linear", "bfloat16", "tokens", f'{{"out_features":{n}}}') for n in range(10)]
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(sketch, "MAX_ENTRIES", 20_000)
        context.setattr(sketch, "MAX_CELLS", 16_384)
        hours = [
            sketched((s, rng.randrange(1, 8192), t * CELL_NS, 10**6, 10**12) for s in streams for _ in range(99))
            for t in range(0, 8640, 60)
        ]
        day = summed(*hours)
    assert day.level > 0
    assert len(records.canonical_json(day.record())) < 1 << 19


def test_a_century_between_two_calls_costs_no_memory() -> None:
    """A host that was once set to another year, or a kept profile that was made up."""
    apart = SketchRecord(0, 0, sketched([(NORM, 4, 0, 3, 10)]).record().streams)
    far = dataclasses.replace(apart.streams[0], cells=(0, 9 * 10**8), bins=(8, 8), counts=(3, 3))
    for found in (
        sketched([(NORM, 4, 0, 3, 10), (NORM, 4, 100 * 365 * 86_400 * 10**9, 3, 10)]),
        from_record(dataclasses.replace(apart, streams=(far,))),
    ):
        assert len(found.cells) <= sketch.MAX_CELLS and sum(found.counts.values()) == 6


@pytest.mark.parametrize("level", [-1, 33, 10**9])
def test_a_width_that_cannot_be_is_refused(level: int) -> None:
    with pytest.raises(MalformedRecordError, match="level"):
        from_record(SketchRecord(level))


@pytest.mark.parametrize(
    "fault",
    [
        {"counts": [1, 2]},
        {"calls": []},
        {"tokens": [-1]},
        {"shape": {"hidden": 0}},
        {"shape": {"hidden": 10**400}},
        {"counts": [10**400]},
        {"bins": [1 << 63]},
        {"cells": [10**9]},
    ],
)
def test_a_sketch_that_cannot_be_is_refused(fault: dict[str, object]) -> None:
    kept = records.encode(sketched([(NORM, 4, 0, 3, 10)]).record())
    kept["streams"][0] |= fault
    with pytest.raises(MalformedRecordError, match="rms_norm"):
        from_record(records.parse(SketchRecord, json.dumps(kept)))


def test_what_a_window_adds_up_to_is_a_sketch_of_one_cell() -> None:
    found = sketch.of_workloads([call_pattern("rms_norm", 4, 10, 1000), call_pattern("softmax", 3, 1, 5)])
    assert {(s.subject, s.axis, tokens): amounts for (s, tokens), amounts in found.totals.items()} == {
        ("rms_norm", "tokens", 4): (10, 1000),
        ("softmax", "rows", 3): (1, 5),
    }
    assert len(found.cells) == 1
