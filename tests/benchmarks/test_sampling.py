"""The sampling benchmark samples on one side only, and says whether the target was met."""

from __future__ import annotations

import io

from benchmarks.dispatch import Added
from benchmarks.figures import Outcome
from benchmarks.sampling import Engine, figure, measure
from cli.progress import ProgressLine
from gristmill.sampler import Sampler


def test_one_side_counts_and_the_other_does_not() -> None:
    sampled, silent = Engine(Sampler()), Engine(None)
    for engine in (sampled, silent):
        engine.boundary()
        engine.calls(5)
    assert sampled.sampler is not None
    assert [sample.calls for sample in sampled.sampler.flush().samples] == [5]


def test_rounds_are_measured() -> None:
    found = measure(2, ProgressLine(io.StringIO()))
    assert found.low_us <= found.median_us <= found.high_us


def test_the_figure_compares_with_the_limit() -> None:
    assert figure(Added(0.1, 0.09, 0.12, 0.1), 5.0).verdict is Outcome.MET
    missed = figure(Added(0.1, 0.09, 0.25, 0.1), 5.0)
    assert missed.verdict is Outcome.MISSED
    assert "500 times" in missed.note
