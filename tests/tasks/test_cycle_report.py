"""The page of a cycle, from the files that a search and a promotion leave behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.profile import RankedOperator
from kernels.verdict import Status, Verdict
from registry.publication import Published
from tasks import compilation, cycle_report, report_rows, results
from tasks.compilation import OperatorSearch, SearchResult
from tasks.errors import NoWinnerError
from tasks.journal import Journal, JournalEntry
from tasks.report_data import DecisionRow, KernelRow
from tasks.settings import Settings
from tests.registry.world import CANARY, make_artifact
from tests.tasks.world import candidate, profile, rms_norm, settings, silu_and_mul, timing, verdict

WORKLOADS = (
    rms_norm(1, time_ns=4_000_000),
    rms_norm(64, time_ns=2_000_000),
    silu_and_mul(5, time_ns=1_000_000),
    rms_norm(3, hidden=128, time_ns=3_000_000),
)
CYCLE = "0123456789ab"


def _entries() -> list[JournalEntry]:
    """One better for small calls, one for large ones, one for none of them, and some that failed."""
    ratios = {0: (2.0, 1.2), 1: (1.5, 3.0), 2: (1.4, 1.1)}
    entries = []
    for number, both in ratios.items():
        made = candidate(number)
        timings = [timing(workload, ratio) for workload, ratio in zip(WORKLOADS[:2], both, strict=True)]
        entries.append(JournalEntry(str(number), made, verdict(made, *timings)))
    failed = candidate(3)
    wrong = candidate(4, "silu_and_mul")
    entries.append(JournalEntry("3", failed, verdict(failed)))
    entries.append(JournalEntry("4", wrong, Verdict(Status.INCORRECT, "wrong", wrong.digest, wrong.operator)))
    return entries


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    """A finished search."""
    made = settings(tmp_path)
    search = OperatorSearch("rms_norm", "float32", 9.0, 8.0, 2, 4, {"faster": 3, "build_failed": 1}, (2.0,), {})
    ranked = (RankedOperator("rms_norm", "float32", 0.9, 0.5, 0.45, 3),)
    result = SearchResult(CYCLE, "d" * 64, ranked, (search,), "")
    results.keep(made, results.KeptSearch("2026-12-02T20:00:00+00:00", profile(*WORKLOADS), result))
    journal = Journal(compilation.journal_path(made, CYCLE))
    for entry in _entries():
        journal.append(entry.candidate, entry.verdict, WORKLOADS)
    return made


def test_the_page_of_a_search_has_every_picture(home: Settings) -> None:
    page = cycle_report.write(home, CYCLE).read_text()
    assert page.count("<svg") == 6
    for title in ("Where the time goes", "Before and after", "Where candidates ended", "Pareto by range"):
        assert f"<h2>{title}</h2>" in page
    assert "The decision" not in page


def test_after_a_promotion_it_says_what_was_decided_and_why(home: Settings) -> None:
    decisions = (
        DecisionRow("rms_norm.float32", "published", "generation 7 of canary", 2, 1.15),
        DecisionRow("silu_and_mul.float32", "stays out", "the interval holds 1.0", 1, 0.97),
    )
    kernels = (KernelRow("rms_norm", "float32", "tokens 1 to 64", 2.0, 1.15, "3f2a9c01d4e7", 0),)
    search = results.load(home, CYCLE)
    promotion = cycle_report.KeptPromotion("canary", 7, decisions, kernels)
    made = cycle_report.report_of(search, _entries(), promotion)
    assert made.decisions == decisions
    assert made.facts["Published"] == "generation 7 of canary"


def test_the_same_files_give_the_same_page(home: Settings) -> None:
    assert cycle_report.write(home, CYCLE).read_bytes() == cycle_report.write(home, CYCLE).read_bytes()


def test_a_search_that_has_not_finished_has_no_page(home: Settings) -> None:
    with pytest.raises(NoWinnerError):
        cycle_report.write(home, "ffffffffffff")


def test_a_heat_map_has_all_of_the_time_and_bins_by_powers_of_two() -> None:
    rows = report_rows.heat_rows([*WORKLOADS, rms_norm(65, time_ns=5_000_000)])
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    sizes = {row.extent: row.share for row in rows if row.name == "rms_norm float32 hidden=64"}
    assert sizes == {1: pytest.approx(4 / 15), 64: pytest.approx(7 / 15)}


def test_many_shapes_become_one_row_of_others() -> None:
    many = [rms_norm(1, hidden=8 * number, time_ns=number) for number in range(1, 60)]
    rows = report_rows.heat_rows(many)
    assert len({row.name for row in rows}) == report_rows.HEAT_ROWS + 1
    assert sum(row.share for row in rows) == pytest.approx(1.0)


def test_calls_stand_for_time_where_none_was_measured() -> None:
    rows = report_rows.heat_rows([rms_norm(1, time_ns=0, calls=3), rms_norm(2, time_ns=0, calls=1)])
    assert [row.share for row in rows] == [0.75, 0.25]
    assert report_rows.heat_rows([]) == ()


def test_what_is_left_of_the_time_follows_the_best_for_each_workload() -> None:
    rows = report_rows.share_rows(WORKLOADS, _entries())
    assert sum(row.before for row in rows) == pytest.approx(1.0)
    assert rows[0].after == pytest.approx((4 / 2.0 + 2 / 3.0 + 3) / 10)
    assert rows[1].after == rows[1].before == pytest.approx(0.1)


def test_the_front_is_whom_none_beats_everywhere() -> None:
    rows = report_rows.pareto_rows(_entries())
    assert [row.efficient for row in rows] == [True, True, False]
    assert rows[0].points == ((1, pytest.approx(2.0)), (64, pytest.approx(1.2)))


def test_every_candidate_ends_somewhere() -> None:
    rows = report_rows.fate_rows(_entries())
    assert [(row.name, row.statuses) for row in rows] == [
        ("rms_norm: rows", {"faster": 3, "build_failed": 1}),
        ("silu_and_mul: rows", {"incorrect": 1}),
    ]


def test_a_decision_names_where_it_is_served_or_why_not_and_the_least_gain() -> None:
    (good, _), (bad, _) = make_artifact("rms_norm", b"one"), make_artifact("softmax", b"two")
    published = Published(CANARY, 7, "", {}, {bad.table.name: "the interval holds 1.0"})
    kept, refused = cycle_report.decisions_of(published, [good, bad])
    assert (kept.decision, kept.reason) == ("published", f"generation 7 of {CANARY.name}")
    assert (refused.decision, refused.reason) == ("stays out", "the interval holds 1.0")
    assert kept.ratio_low == min(float(entry.ratio_low) for entry in good.table.entries)


def test_a_promotion_writes_the_page_anew(home: Settings) -> None:
    before = cycle_report.write(home, CYCLE).read_text()
    artifact, _ = make_artifact("rms_norm", b"one")
    cycle_report.keep_promotion(home, CYCLE, Published(CANARY, 7, "", {}), [artifact])
    after = cycle_report.path_of(home, CYCLE).read_text()
    assert "The decision" in after
    assert "The kernel table" in after
    assert before != after == cycle_report.write(home, CYCLE).read_text()


def test_a_workload_without_a_gain_keeps_its_time() -> None:
    slow = [replace(entry, verdict=replace(entry.verdict, status=Status.SLOWER)) for entry in _entries()]
    assert all(row.before == row.after for row in report_rows.share_rows(WORKLOADS, slow))
