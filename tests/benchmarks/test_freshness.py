"""That late or wrong kernels are not averaged away."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import freshness
from benchmarks.figures import Outcome
from benchmarks.freshness import Passage

QUICK = [Passage(0.2, 1.0 + number / 1000, right=True) for number in range(120)]


def test_slow_or_wrong_ones_miss() -> None:
    good = freshness.figure(QUICK)
    assert good.verdict is Outcome.MET
    assert good.measured == 1.114
    assert good.interval == (QUICK[108].served_s, QUICK[118].served_s)
    assert freshness.figure([replace(QUICK[0], right=False), *QUICK[1:]]).verdict is Outcome.MISSED
    late = [replace(one, served_s=4.0) for one in QUICK[:2]]
    assert freshness.figure([*late, *QUICK[2:]]).verdict is Outcome.MISSED
