"""What a minute's winners come to: medians over all workloads, the worst one against the longer search, the record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import pattern_agents
from benchmarks.figures import Figure, Outcome
from benchmarks.operator_ratios import CASES
from benchmarks.pattern_agents import Share, Winner, figures_of
from tests.tasks import world

CASE = next(case for case in CASES if case.operator == "rms_norm")
ASKED = [world.rms_norm(tokens) for tokens in (1, 4, 16)]


def winners(*ratios: float) -> dict[str, Winner]:
    return {
        workload.digest: Winner(world.candidate(number), world.timing(workload, ratio))
        for number, (workload, ratio) in enumerate(zip(ASKED, ratios, strict=False))
    }


def shares(*ratios: float) -> list[Share]:
    return [Share(workload, ratio, ratio - 0.1, ratio + 0.1) for workload, ratio in zip(ASKED, ratios, strict=True)]


@pytest.fixture(autouse=True)
def no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_agents, "recorded_ratio", lambda operator: None)


def rows(*arguments: object) -> tuple[Figure, Figure]:
    first, second = figures_of(CASE, *arguments, "n candidates")  # type: ignore[arg-type]
    return first, second


def test_the_median_counts_workloads_without_a_winner_as_the_engines_own() -> None:
    reached, _ = rows(winners(9.0), shares(1.0, 1.0, 1.0))
    assert (reached.measured, reached.verdict) == (1.0, Outcome.MISSED)
    reached, _ = rows(winners(9.0, 3.5, 3.0), shares(1.0, 1.0, 1.0))
    assert (reached.measured, reached.verdict) == (3.5, Outcome.MET)


def test_a_median_over_the_target_is_not_enough_where_a_workload_has_no_winner() -> None:
    reached, _ = rows(winners(9.0, 9.0), shares(1.0, 1.0, 1.0))
    assert (reached.measured, reached.verdict) == (9.0, Outcome.MISSED)


def test_the_speed_is_that_of_the_worst_workload_against_the_longer_search() -> None:
    _, speed = rows(winners(9.0, 9.0, 9.0), shares(1.0, 0.8, 1.2))
    assert (speed.measured, speed.interval, speed.verdict) == (0.8, (0.7, 0.9), Outcome.MISSED)
    assert ASKED[1].label in speed.note
    _, speed = rows(winners(9.0, 9.0, 9.0), shares(1.0, 0.9, 1.2))
    assert speed.verdict is Outcome.MET


def test_the_record_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_agents, "recorded_ratio", lambda operator: 18.0)
    _, speed = rows(winners(9.0, 9.0, 9.0), shares(1.0, 1.0, 1.0))
    assert (speed.measured, speed.interval, speed.verdict) == (0.5, None, Outcome.MISSED)
    assert "0.50 of the recorded median" in speed.note


def test_an_operator_without_a_target_is_shown() -> None:
    found, _ = figures_of(replace(CASE, target=None), winners(1.1), shares(1.0, 1.0, 1.0), "")
    assert (found.target, found.verdict) == ("shown", Outcome.MET)
