"""Rates are the best of what was seen, and threads are left as they were."""

from __future__ import annotations

import itertools
import time

import torch

from kernels import peak_measurement


def test_one_undisturbed_call_is_enough() -> None:
    """All calls but one are slow, as on a busy host."""
    calls = itertools.count()

    def call() -> None:
        if next(calls) != 5:
            time.sleep(0.004)

    assert peak_measurement.best_ns(call, window_s=0.02) < 2_000_000


def test_it_goes_on_while_the_best_improves(monkeypatch) -> None:
    found = iter([1000, 900, 800, 799, 700, 699, 698, 697, 1])
    monkeypatch.setattr(peak_measurement, "_window_ns", lambda call, window_s: next(found))
    assert peak_measurement.best_ns(lambda: None) == 697
    assert next(found) == 1


def test_it_ends_although_the_best_never_stands(monkeypatch) -> None:
    windows = itertools.count()
    monkeypatch.setattr(peak_measurement, "_window_ns", lambda call, window_s: 10**9 >> next(windows))
    peak_measurement.best_ns(lambda: None)
    assert next(windows) == peak_measurement.MOST_WINDOWS


def test_cores_count_that_work_alone(monkeypatch) -> None:
    """All threads together are held up by a neighbour; one alone is not."""
    monkeypatch.setattr(peak_measurement, "physical_cores", lambda: 4)
    monkeypatch.setattr(peak_measurement, "best_ns", lambda call: 1000 if torch.get_num_threads() == 1 else 9000)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert peak_measurement._each_core(lambda: None, 500) == 4 * 500 / 1000
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
