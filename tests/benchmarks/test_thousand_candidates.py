"""What the share and the losses are counted from, and that the session judges each candidate once."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import Outcome
from benchmarks.thousand_candidates import Locks, Measured, WaitingBench, figures, search
from tests.tasks.world import ListLog

MET = Measured(
    2, wall_s=100.0, waited_s=90.0, bare_s=2.0, runs=("a", "b"), judged=("b", "a"), locked=(), completed=True
)


def verdicts(measured: Measured) -> list[Outcome]:
    return [row.verdict for row in figures(measured, 0.2)]


def test_what_is_neither_the_judge_s_nor_the_session_s_is_theirs() -> None:
    assert MET.overhead_s == pytest.approx(8.0) and MET.share == pytest.approx(0.08)
    assert verdicts(MET) == [Outcome.MET, Outcome.MET]
    assert verdicts(replace(MET, waited_s=87.0)) == [Outcome.MISSED, Outcome.MET]
    assert replace(MET, bare_s=50.0).overhead_s == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"candidates": 3},
        {"runs": ("a",)},
        {"runs": ("a", "b", "b")},
        {"runs": ("a", "c")},
        {"locked": ("locked",)},
        {"completed": False},
    ],
)
def test_every_loss_is_a_miss(wrong: dict[str, object]) -> None:
    assert verdicts(replace(MET, **wrong))[1] is Outcome.MISSED  # type: ignore[arg-type]


def test_a_session_judges_so_many_candidates_once_each(tmp_path: Path) -> None:
    bench, log = WaitingBench(lambda one, workload: 1.5), ListLog()
    assert search(tmp_path, 400, bench, log) == 400, "whatever the strategy thinks of it"
    assert len(set(bench.judged)) == 400 and bench.judged == [digest for digest, _ in log.recorded]


def test_lines_about_locks_are_kept_and_no_others() -> None:
    locks = Locks()
    for text in ("(sqlite3.OperationalError) database is locked", "all is well"):
        locks.emit(logging.LogRecord("x", logging.INFO, "x", 1, text, (), None))
    assert locks.lines == ["(sqlite3.OperationalError) database is locked"]
