"""Pairs of arms in random order become one overhead with its interval."""

from __future__ import annotations

import pytest

from benchmarks.figures import Outcome
from benchmarks.sampling_overhead import SAMPLED, figure, paired


def test_each_pair_measures_both_arms_and_the_first_only_warms_up() -> None:
    asked: list[str] = []

    def measure(arm: str) -> float:
        asked.append(arm)
        return 1.02 if arm == SAMPLED else 1.0

    overheads = paired(measure, 20, "engine")
    assert overheads == [pytest.approx(0.02)] * 20
    assert len(asked) == 42
    assert {asked[index] for index in range(0, 42, 2)} == {SAMPLED, "silent"}


@pytest.mark.parametrize(
    ("overheads", "verdict"),
    [([0.004, 0.005, 0.006] * 9, Outcome.MET), ([0.012] * 9, Outcome.MISSED), ([-0.05, 0.0, 0.05], Outcome.MISSED)],
)
def test_the_target_is_under_one_percent_with_the_interval_under_two(overheads: list[float], verdict: Outcome) -> None:
    row = figure("an engine", overheads)
    assert row.verdict is verdict
    assert row.interval is not None and row.measured is not None
    assert row.interval[0] <= row.measured <= row.interval[1]
