"""The dispatch benchmark measures what it says: hits only, the same work on every way, differences of one round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.dispatch import APPLY, AXES, DIRECT, DISPATCH, Added, Bench, added, compare, figures, measure
from benchmarks.figures import Outcome
from gristmill.contract import CONTRACTS


@torch.no_grad()
def test_every_operator_is_hit_and_does_what_a_direct_call_does(tmp_path: Path) -> None:
    assert set(AXES) == set(CONTRACTS)
    for operator in AXES:
        bench = Bench(operator, tmp_path)
        bench.direct(3)
        bench.dispatched(40)
        bench.boundary()
        bench.dispatched(2)
        assert bench.hits == 42, operator


def test_both_are_measured_in_one_run(tmp_path: Path) -> None:
    found = measure("rms_norm", 2, tmp_path, lambda: None)
    assert set(found) == {DISPATCH, APPLY}


def test_rounds_are_paired() -> None:
    clock = iter(range(10**6))
    blocks = compare({DIRECT: lambda calls: next(clock), DISPATCH: lambda calls: None}, 5, lambda: None, lambda: None)
    assert {name: len(times) for name, times in blocks.items()} == {DIRECT: 5, DISPATCH: 5}
    shifting = {DIRECT: [1000.0, 5000.0, 9000.0], DISPATCH: [1500.0, 5500.0, 9600.0]}
    result = added(shifting, DISPATCH)
    assert result.median_us == pytest.approx(0.5)
    assert result.low_us == pytest.approx(0.5) and result.high_us == pytest.approx(0.6)


def test_figures_say_what_was_missed() -> None:
    fast, slow, theirs = Added(0.7, 0.6, 0.8, 0.9), Added(1.2, 0.9, 1.3, 1.4), Added(7.0, 6.5, 7.5, 7.1)
    ours, rival = figures({"rms_norm": {DISPATCH: fast, APPLY: theirs}, "softmax": {DISPATCH: slow}})
    assert (ours.measured, ours.verdict) == (0.7, Outcome.MET)
    assert "softmax (1 inputs) 1.20, rms_norm (2 inputs) 0.70; the largest is 1.20" in ours.note
    assert (rival.measured, rival.verdict) == (7.0, Outcome.MET)
    assert "10.0 times" in rival.note
    (missed,) = figures({"rms_norm": {DISPATCH: slow}})
    assert missed.verdict is Outcome.MISSED
