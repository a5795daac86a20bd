"""The rows that a demo on vLLM proves, from what it printed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.demo_vllm import figures
from benchmarks.figures import Outcome


def facts(low: float, promoted: bool = True, hits: int = 9) -> dict[str, Any]:
    ratio = {"middle": 1.05, "low": low, "high": 1.1}
    measures = ("tokens_per_s", "ttft_s", "tpot_s")
    start = {"hits": {"one": hits}, "pairs": [{"concurrency": 4}] * 5}
    return {
        "promoted": promoted,
        "reason": "at least 1.02x",
        "ratios": {measure: {"4": ratio} for measure in measures} if hits else {measure: {} for measure in measures},
        "outcomes": [{"operator": "rms_norm", "share": 0.1, "outcome": "promoted"}],
        "trial": {"starts": [start, start] if hits else []},
    }


@pytest.mark.parametrize(("low", "verdict"), [(1.01, Outcome.MET), (0.99, Outcome.MISSED)])
def test_a_gain_counts_where_its_interval_is_above_one(low: float, verdict: Outcome) -> None:
    hit, speed, wall = figures(facts(low), 400.0)
    assert (hit.measured, hit.verdict, wall.verdict) == (18, Outcome.MET, Outcome.MET)
    assert (speed.measured, speed.interval, speed.verdict) == (1.05, (low, 1.1), verdict)
    assert "10 pairs over 2 starts" in speed.note


def test_nothing_worth_promoting_is_an_outcome_with_reasons() -> None:
    hit, wall = figures(facts(1.0, promoted=False, hits=0), 700.0)
    assert (hit.measured, hit.verdict, wall.verdict) == (0, Outcome.MET, Outcome.MISSED)
    assert "rms_norm: promoted" in hit.note


def test_what_is_not_released_for_an_inconclusive_interval_says_so() -> None:
    _, speed, _ = figures(facts(0.99, promoted=False), 400.0)
    assert (speed.measured, speed.verdict) == (1.05, Outcome.MET)
    assert speed.note.startswith("not released")
