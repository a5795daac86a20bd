"""What counts as a problem with two workers: everything that is not as it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.figures import Outcome
from benchmarks.two_workers import Seen, figure

GOOD = Seen({"Completed": 16}, workers=2, locked=0, refused=True, unchanged=True, version="15")


def test_all_completed_is_met() -> None:
    row = figure(GOOD)
    assert (row.measured, row.verdict, row.unit) == (0.0, Outcome.MET, "of 16 runs")


@pytest.mark.parametrize(
    "wrong",
    [
        {"states": {"Completed": 15, "Crashed": 1}},
        {"workers": 1},
        {"locked": 1},
        {"refused": False},
        {"unchanged": False},
    ],
)
def test_each_problem_is_one(wrong: dict[str, object]) -> None:
    row = figure(replace(GOOD, **wrong))  # type: ignore[arg-type]
    assert (row.measured, row.verdict) == (1.0, Outcome.MISSED)
