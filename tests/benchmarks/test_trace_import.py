"""The trace that is imported is a trace, of about the size that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import Outcome
from benchmarks.trace_import import Imported, figure, recorded, repeated, run_import


def test_a_repeated_step_is_a_trace_and_is_imported(tmp_path: Path) -> None:
    step = recorded()
    text = "".join(repeated(step, 200_000))
    events = json.loads(text)["traceEvents"]
    assert 200_000 <= len(text) < 400_000
    assert len(events) % len(step) == 0
    numbers = [event["args"]["External id"] for event in events]
    assert len(set(numbers)) == len(numbers)
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    path = tmp_path / "trace.json"
    path.write_text(text)
    found = run_import(path, tmp_path)
    assert found.calls == len(events)
    assert 0 < found.covered_share < 1


@pytest.mark.parametrize(
    ("peak_gib", "size_mb", "verdict"),
    [(0.5, 1000, Outcome.MET), (1.5, 1000, Outcome.MISSED), (0.5, 10, Outcome.MISSED)],
)
def test_the_figure_is_of_the_whole_size(peak_gib: float, size_mb: int, verdict: Outcome) -> None:
    assert figure(Imported(10.0, peak_gib, 5, 0.5), size_mb).verdict is verdict
