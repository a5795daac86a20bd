"""A niche keeps its best, specialists keep theirs, and the same source under another name opens no niche."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.strategies.archive import UNNAMED, Archive, Bound, Niche, fingerprint, traffic_ranges
from gristmill.workload import Workload, dense
from kernels.candidate import Candidate, Language
from kernels.verdict import Verdict
from tests.agents.search_world import DECODE, PREFILL, brief, candidate, failure, verdict, workload


def judged(archive: Archive, number: int, **ratios: float) -> tuple[Candidate, tuple[Niche, ...]]:
    one = candidate(number)
    return one, archive.add(one, verdict(one, **ratios))


def test_specialists_and_the_generalist_survive_side_by_side() -> None:
    archive = Archive(brief())
    decoding, _ = judged(archive, 1, decode=3.0, prefill=0.5)
    filling, _ = judged(archive, 2, decode=0.6, prefill=2.0)
    both, won = judged(archive, 3, decode=1.8, prefill=1.8)
    assert won == ()
    assert {elite.digest for elite in archive.elites()} == {decoding.digest, filling.digest}
    assert archive.specialist(DECODE).digest == decoding.digest
    assert archive.specialist(PREFILL).digest == filling.digest
    assert both.digest not in {elite.digest for elite in archive.survivors()}
    assert [elite.digest for elite in archive.survivors(archive.ranges[1])] == [filling.digest]


def test_another_technique_or_another_bound_is_another_niche() -> None:
    archive = Archive(brief())
    judged(archive, 1, decode=3.0)
    other = candidate(2, pattern="packing")
    (niche,) = archive.add(other, verdict(other, decode=1.1))
    assert niche.technique == "packing" and niche.bound is Bound.MEMORY
    slow = candidate(3)
    (niche,) = archive.add(slow, verdict(slow, decode=1.05, roofline=0.1))
    assert niche.technique == "rows" and niche.bound is Bound.LATENCY
    assert len(archive.niches) == 3


def test_arithmetic_limits_a_product_of_many_tokens() -> None:
    axes = {"tokens": 512, "in_features": 256, "out_features": 256}
    layouts = (dense((512, 256), "float32"), dense((256, 256), "float32"))
    product = Workload("skinny_linear", "float32", axes, layouts, calls=1, time_ns=1000)
    archive = Archive(replace(brief(), operator="skinny_linear", workloads=(product,)))
    one = candidate(1)
    (timing,) = verdict(one, prefill=1.5).timings
    (niche,) = archive.add(one, replace(verdict(one, prefill=1.5), timings=(replace(timing, workload=product),)))
    assert niche.bound is Bound.COMPUTE


def test_a_candidate_without_a_pattern_has_a_technique_too() -> None:
    archive = Archive(brief())
    one = candidate(1, pattern="")
    (niche,) = archive.add(one, verdict(one, decode=0.7))
    assert niche.technique == UNNAMED
    assert archive.niches[niche].gain == pytest.approx(0.7), "slower ones are what a search starts from"


def test_what_was_not_right_has_no_place() -> None:
    archive = Archive(brief())
    one = candidate(1)
    assert archive.add(one, failure(one)) == ()
    assert archive.niches == {} and archive.survivors() == () and archive.specialist(DECODE) is None


SOURCE = "int f() { return 1; } // one\n"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("int f() {\n    return 1;   /* two\n lines */ }", True),
        ("int f() { return 2; }", False),
        ("int f() { return 1; } int g;", False),
    ],
)
def test_the_same_source_under_another_pattern_opens_no_niche(text: str, same: bool) -> None:
    archive = Archive(brief())
    first = candidate(1, text=SOURCE)
    archive.add(first, verdict(first, decode=2.0))
    again = candidate(2, text=text, pattern="split-k")
    won = archive.add(again, verdict(again, decode=1.5))
    assert (won == ()) == same
    assert (fingerprint(first) == fingerprint(again)) == same
    better = candidate(3, text=text + "// three", pattern="split-k")
    (niche,) = archive.add(better, verdict(better, decode=2.5))
    assert niche.technique == ("rows" if same else "split-k")


def test_a_fingerprint_tells_files_and_languages_apart() -> None:
    one = candidate(1, text=SOURCE)
    renamed = replace(one, files={"main.cpp": "", "f.h": SOURCE})
    python = replace(one, language=Language.PYTHON, files={"main.py": SOURCE})
    assert len({fingerprint(one), fingerprint(renamed), fingerprint(python)}) == 3
    assert fingerprint(python) != fingerprint(replace(python, files={"main.py": SOURCE.replace("1", "2")}))
    surrogate = replace(one, files={"main.cpp": "\ud800"})
    assert fingerprint(surrogate)


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=8))
def test_every_workload_lies_in_exactly_one_range(extents: list[int]) -> None:
    workloads = [workload(extent) for extent in extents]
    ranges = traffic_ranges(workloads)
    for one in workloads:
        assert sum(within.admits(one.axes["tokens"]) for within in ranges) == 1
    assert all(any(within.admits(extent) for extent in extents) for within in ranges)
    assert list(ranges) == sorted(ranges, key=lambda within: within.low)


def test_an_operator_whose_axes_are_all_fixed_has_one_range() -> None:
    fixed = Workload("op", "float32", {"width": 7}, (dense((7,), "float32"),))
    (within,) = traffic_ranges([fixed])
    assert within.admits(7)


ratios = st.floats(0.2, 8.0)
verdicts = st.lists(
    st.tuples(st.one_of(st.none(), ratios), st.one_of(st.none(), ratios), st.sampled_from(("rows", "packing"))),
    max_size=12,
)


@given(verdicts)
def test_order_decides_nothing_but_ties(found: list[tuple[float | None, float | None, str]]) -> None:
    def filled(order: list[int]) -> Archive:
        archive = Archive(brief())
        for number in order:
            decode, prefill, pattern = found[number]
            one = candidate(number, pattern=pattern)
            timed = decode is not None or prefill is not None
            archive.add(one, verdict(one, decode=decode, prefill=prefill) if timed else failure(one))
        return archive

    first, second = filled(list(range(len(found)))), filled(list(reversed(range(len(found)))))
    assert {n: e.gain for n, e in first.niches.items()} == {n: e.gain for n, e in second.niches.items()}
    best: dict[str, float] = {}
    for decode, prefill, _ in found:
        for one, ratio in ((DECODE, decode), (PREFILL, prefill)):
            if ratio is not None:
                best[one.digest] = max(best.get(one.digest, 0.0), ratio)
    assert {w.digest: e.gain for w in (DECODE, PREFILL) if (e := first.specialist(w))} == best


def test_the_gain_of_a_candidate_leaves_the_rest_to_the_engine() -> None:
    archive = Archive(brief())
    one = candidate(1)
    half: Verdict = verdict(one, decode=2.0)
    assert archive.gain(half) == pytest.approx(1 / (0.5 / 2 + 0.5))
    assert archive.gain(half, archive.ranges[0]) == pytest.approx(2.0)
    assert archive.gain(half, archive.ranges[1]) == 1.0
