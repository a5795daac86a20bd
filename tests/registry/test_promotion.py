"""Properties of the gate: a table claims what was measured and nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.domain import AxisRange, Domain, Layout
from gristmill.kernel_table import WIDEST_GAP, FileRef, KernelTable, TableEntry
from gristmill.workload import TensorLayout, Workload, dense
from kernels.candidate import Candidate, Language, Origin
from kernels.verdict import Status, Verdict, WorkloadTiming
from registry.errors import TableConflictError
from registry.promotion import (
    DEFAULT_POLICY,
    Judged,
    PromotionPolicy,
    decide_promotion,
    decide_table,
    form_table,
)

THRESHOLD = DEFAULT_POLICY.min_ratio_low


def workload(tokens: int, hidden: int, strided: bool = False) -> Workload:
    shape = (tokens, hidden)
    layout = TensorLayout(shape, (2 * hidden, 1), "float32") if strided else dense(shape, "float32")
    return Workload("rms_norm", "float32", {"tokens": tokens, "hidden": hidden}, (layout,))


def dense_only(one: Judged) -> Judged:
    timings = tuple(t for t in one.verdict.timings if t.workload.inputs[0].contiguous)
    return replace(one, verdict=replace(one.verdict, timings=timings))


def timing(at: Workload, low: float) -> WorkloadTiming:
    return WorkloadTiming(at, low + 0.1, low, low + 0.2, 100.0, 100.0 * (low + 0.1), 10, 0.5, 10.0)


def judged(
    name: str,
    timings: list[WorkloadTiming],
    ranges: tuple[AxisRange, ...] = (),
    layout: Layout = Layout.INNER_CONTIGUOUS,
    status: Status = Status.FASTER,
) -> Judged:
    domain = Domain("rms_norm", "float32", ranges, layout)
    candidate = Candidate("rms_norm", Language.CPP, {"main.cpp": f"// {name}"}, domain, Origin("test"))
    verdict = Verdict(status, "tested", candidate.digest, "rms_norm", timings=tuple(timings))
    return Judged(candidate, verdict, FileRef("kernel.so", "a" * 64, 1), ())


def tokens_ranges(table: KernelTable) -> list[tuple[int, int]]:
    return [(r.low, r.high) for entry in table.entries for r in entry.domain.ranges if r.name == "tokens"]


lows = st.floats(0.2, 5.0, allow_nan=False)
points = st.dictionaries(
    st.tuples(st.integers(1, 300), st.sampled_from([64, 128]), st.booleans()), lows, min_size=1, max_size=12
)
domains = st.tuples(st.sampled_from([1, 2, 8]), st.sampled_from([16, 300]), st.sampled_from(list(Layout)))


@st.composite
def measured(draw: st.DrawFn) -> list[Judged]:
    found = []
    for name in range(draw(st.integers(0, 4))):
        multiple, high, layout = draw(domains)
        timings = [timing(workload(t, h, s), low) for (t, h, s), low in draw(points).items()]
        status = draw(st.sampled_from([Status.FASTER, Status.FASTER, Status.SLOWER]))
        found.append(judged(f"{name}", timings, (AxisRange("tokens", 0, high, multiple),), layout, status))
    return found


class TestFormTable:
    @settings(max_examples=60, deadline=None)
    @given(measured())
    def test_entries_claim_what_was_measured_only(self, given_: list[Judged]) -> None:
        table = form_table("rms_norm", "float32", "hw", given_)
        by_digest = {one.candidate.digest: one for one in given_}
        for entry in table.entries:
            one = by_digest[entry.candidate]
            assert one.verdict.won
            fixed = {r.name: r for r in entry.domain.ranges}
            tokens = fixed["tokens"]
            assert fixed["hidden"].low == fixed["hidden"].high
            inside = [t for t in one.verdict.timings if entry.domain.admits(t.workload)]
            extents = sorted({t.workload.axes["tokens"] for t in inside if one.candidate.domain.admits(t.workload)})
            assert (extents[0], extents[-1]) == (tokens.low, tokens.high)
            assert all(b <= WIDEST_GAP * a for a, b in itertools.pairwise(extents))
            for extent in range(tokens.low, tokens.high + 1):
                call = workload(extent, fixed["hidden"].low)
                assert not entry.domain.admits(call) or one.candidate.domain.admits(call)
            assert float(entry.ratio_low) > THRESHOLD
            assert all(t.ratio_low >= float(entry.ratio_low) for t in inside if one.candidate.domain.admits(t.workload))

    @settings(max_examples=60, deadline=None)
    @given(measured())
    def test_entries_do_not_overlap(self, given_: list[Judged]) -> None:
        table = form_table("rms_norm", "float32", "hw", given_)
        for a, b in itertools.combinations(table.entries, 2):
            boxes = [{r.name: (r.low, r.high) for r in entry.domain.ranges} for entry in (a, b)]
            assert any(boxes[0][n][1] < boxes[1][n][0] or boxes[1][n][1] < boxes[0][n][0] for n in ("tokens", "hidden"))

    @settings(max_examples=60, deadline=None)
    @given(measured())
    def test_the_best_lower_bound_wins_where_layouts_do_not_differ(self, given_: list[Judged]) -> None:
        dense_ones = [dense_only(one) for one in given_]
        table = form_table("rms_norm", "float32", "hw", dense_ones)
        for one in dense_ones:
            for t in one.verdict.timings if one.verdict.won else ():
                if not one.candidate.domain.admits(t.workload) or t.ratio_low <= THRESHOLD + 0.001:
                    continue
                (entry,) = [e for e in table.entries if e.domain.admits(t.workload)]
                winner = next(w for w in dense_ones if w.candidate.digest == entry.candidate)
                (best,) = [w.ratio_low for w in winner.verdict.timings if w.workload == t.workload]
                assert best >= t.ratio_low - 1e-4

    @settings(max_examples=40, deadline=None)
    @given(measured())
    def test_order_of_candidates_does_not_matter(self, given_: list[Judged]) -> None:
        assert form_table("rms_norm", "float32", "hw", given_) == form_table("rms_norm", "float32", "hw", given_[::-1])

    def test_neighbours_join_and_wide_gaps_stay_with_the_baseline(self) -> None:
        one = judged("a", [timing(workload(t, 64), 1.5) for t in (1, 2, 4, 9, 18, 64)])
        assert tokens_ranges(form_table("rms_norm", "float32", "hw", [one])) == [(1, 4), (9, 18), (64, 64)]

    def test_a_point_that_the_baseline_wins_parts_a_range(self) -> None:
        one = judged("a", [timing(workload(4, 64), 1.5), timing(workload(5, 64), 1.0), timing(workload(6, 64), 1.5)])
        assert tokens_ranges(form_table("rms_norm", "float32", "hw", [one])) == [(4, 4), (6, 6)]

    def test_the_better_of_two(self) -> None:
        a = judged("a", [timing(workload(t, 64), 1.5) for t in (1, 2, 4)])
        b = judged("b", [timing(workload(t, 64), 2.0) for t in (4, 8)])
        table = form_table("rms_norm", "float32", "hw", [a, b])
        assert [(e.candidate, e.ratio_low) for e in table.entries] == [
            (a.candidate.digest, "1.5000"),
            (b.candidate.digest, "2.0000"),
        ]
        assert tokens_ranges(table) == [(1, 2), (4, 8)]

    def test_strict_layout_unless_strided_calls_were_measured(self) -> None:
        a = judged("a", [timing(workload(4, 64), 1.5)], layout=Layout.ANY)
        b = judged("b", [timing(workload(4, 64), 1.5), timing(workload(4, 64, strided=True), 1.5)], layout=Layout.ANY)
        for one, layout in ((a, Layout.CONTIGUOUS), (b, Layout.INNER_CONTIGUOUS)):
            (entry,) = form_table("rms_norm", "float32", "hw", [one]).entries
            assert entry.domain.layout is layout

    def test_nothing_measured(self) -> None:
        assert form_table("rms_norm", "float32", "hw", []).entries == ()

    def test_what_does_not_belong_together(self) -> None:
        one = judged("a", [timing(workload(4, 64), 1.5)])
        with pytest.raises(TableConflictError, match="verdict is on candidate"):
            form_table("rms_norm", "float32", "hw", [replace(one, verdict=replace(one.verdict, candidate="b" * 64))])
        with pytest.raises(TableConflictError, match="is for"):
            form_table("softmax", "float32", "hw", [one])
        with pytest.raises(TableConflictError, match="judge it here"):
            form_table(
                "rms_norm", "float32", "hw", [replace(one, verdict=replace(one.verdict, host={"hardware": "other"}))]
            )


def current(low: str, tokens: tuple[int, int] = (1, 8), candidate: str = "c" * 64) -> TableEntry:
    domain = Domain("rms_norm", "float32", (AxisRange("hidden", 64, 64), AxisRange("tokens", *tokens)))
    return TableEntry(domain, candidate, FileRef("k.so", "a" * 64, 1), False, (), "9.0", low)


class TestDecidePromotion:
    @pytest.mark.parametrize("status", [status for status in Status if status is not Status.FASTER])
    def test_only_faster_is_promoted(self, status: Status) -> None:
        one = judged("a", [timing(workload(4, 64), 3.0)], status=status)
        decision = decide_promotion(one.verdict, None, DEFAULT_POLICY)
        assert not decision.promote
        assert status.value in decision.reason

    @given(lows, lows, st.floats(1.0, 2.0))
    def test_against_what_is_current(self, new: float, old: float, improvement: float) -> None:
        one = judged("a", [timing(workload(4, 64), new)])
        policy = PromotionPolicy(min_improvement=improvement)
        decision = decide_promotion(one.verdict, current(f"{old:.4f}"), policy)
        assert decision.promote == (new - new % 0.0001 > THRESHOLD and new > float(f"{old:.4f}") * improvement) or (
            abs(new - THRESHOLD) < 0.001
        )

    def test_ranges_that_do_not_meet_do_not_compete(self) -> None:
        one = judged("a", [timing(workload(4, 64), 1.1)])
        assert decide_promotion(one.verdict, current("5.0", tokens=(64, 128)), DEFAULT_POLICY).promote
        assert not decide_promotion(one.verdict, current("5.0"), DEFAULT_POLICY).promote

    def test_the_same_candidate_is_not_promoted_twice(self) -> None:
        one = judged("a", [timing(workload(4, 64), 1.5)])
        entry = current("1.1", candidate=one.candidate.digest)
        assert decide_promotion(one.verdict, entry, DEFAULT_POLICY).reason == "it is what is current"


class TestDecideTable:
    def table(self, *entries: tuple[str, int, int], code: str = "a") -> KernelTable:
        found = (
            replace(current(low, (first, last)), object=FileRef("k.so", code * 64, 1)) for low, first, last in entries
        )
        return KernelTable("rms_norm", "float32", "hw", tuple(found))

    def test_nothing_or_too_little_gained(self) -> None:
        assert not decide_table(self.table(), None).promote
        assert not decide_table(self.table(("1.5", 1, 4), ("1.02", 8, 8)), None).promote

    def test_the_first(self) -> None:
        assert decide_table(self.table(("1.5", 1, 4)), None).promote
        assert decide_table(self.table(("1.5", 1, 4)), self.table()).promote

    def test_faster_or_wider_replaces(self) -> None:
        old = self.table(("1.5", 1, 4))
        assert decide_table(self.table(("1.6", 1, 4), code="b"), old).promote
        assert decide_table(self.table(("1.5", 1, 8), code="b"), old).promote
        assert decide_table(self.table(("1.5", 1, 4), ("1.1", 64, 64), code="b"), old).promote

    def test_slower_or_narrower_does_not(self) -> None:
        old = self.table(("1.5", 1, 8))
        assert not decide_table(self.table(("1.4", 1, 8), code="b"), old).promote
        assert not decide_table(self.table(("1.6", 8, 8), code="b"), old).promote

    def test_the_same_kernels_measured_again_are_no_news(self) -> None:
        assert not decide_table(self.table(("1.6", 1, 4)), self.table(("1.5", 1, 4))).promote

    def test_a_policy_may_ask_for_more(self) -> None:
        old, new = self.table(("1.5", 4, 4)), self.table(("1.6", 4, 4), code="b")
        assert decide_table(new, old, PromotionPolicy(min_improvement=1.05)).promote
        assert not decide_table(new, old, PromotionPolicy(min_improvement=1.10)).promote
