"""Counting is exact, timing is a share, memory is bounded."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler, Timed, Window
from gristmill.workload import TensorLayout


def hook_with(sampler: Sampler, environ: dict[str, str] | None = None) -> Hook:
    dispatcher = Dispatcher(environ=environ or {})
    site = dispatcher.site("softmax", torch.float32, {"columns": 4}, (), lambda x: (x,))
    return Hook(Instruments(dispatcher, sampler), site)


def call(hook: Hook, rows: int) -> None:
    hook.call(torch.empty(rows, 4))


def calls_by_rows(*windows: Window) -> dict[int, int]:
    totals: dict[int, int] = {}
    for window in windows:
        for sample in window.samples:
            totals[sample.axes["rows"]] = totals.get(sample.axes["rows"], 0) + sample.calls
    return totals


@given(st.lists(st.integers(1, 5), max_size=60), st.integers(1, 9))
def test_every_call_is_counted_once(rows: list[int], period: int) -> None:
    sampler = Sampler(period)
    hook = hook_with(sampler)
    windows = []
    for position, extent in enumerate(rows):
        call(hook, extent)
        if position % 7 == 3:
            windows.append(sampler.flush())
    windows.append(sampler.flush())
    assert calls_by_rows(*windows) == {extent: rows.count(extent) for extent in set(rows)}
    assert sampler.flush() == Window((), 0)


@pytest.mark.parametrize(
    ("calls", "period", "timed"), [(100, 1, 100), (100, 10, 10), (1, 10, 0), (2, 10, 1), (36, 17, 3)]
)
def test_a_share_is_timed(calls: int, period: int, timed: int) -> None:
    sampler = Sampler(period)
    hook = hook_with(sampler)
    for _ in range(calls):
        call(hook, 2)
    sample = sampler.flush().samples[0]
    assert (sample.calls, sample.timed_calls) == (calls, timed)
    assert (sample.timed_ns > 0) is (timed > 0)
    assert sample.estimated_ns == pytest.approx(sample.timed_ns * calls / max(1, timed))


def test_threads_are_merged_and_flushes_lose_nothing() -> None:
    sampler = Sampler(3)
    hook = hook_with(sampler)
    windows: list[Window] = []
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            windows.append(sampler.flush())

    def work() -> None:
        for i in range(900):
            call(hook, 1 + i % 3)

    flusher = threading.Thread(target=flush)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for thread in (flusher, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    flusher.join()
    windows.append(sampler.flush())
    assert calls_by_rows(*windows) == {1: 1200, 2: 1200, 3: 1200}
    assert sampler._threads == []


def test_totals_never_fall_and_leave_the_windows_alone() -> None:
    """Also when the threads that counted have ended and `flush` has let their counters go."""
    sampler = Sampler(period=2)
    hook = hook_with(sampler)
    assert sampler.totals() == {}
    before = Timed()
    for round_number in range(1, 4):
        thread = threading.Thread(target=lambda: [call(hook, rows) for rows in (1, 1, 1, 2)])
        thread.start()
        thread.join()
        total = sampler.totals()["softmax.float32"]
        assert (total.calls, total.timed_calls) == (4 * round_number, round_number)
        assert total.timed_ns > before.timed_ns
        assert sum(sample.calls for sample in sampler.flush().samples) == 4
        assert sampler.totals() == {"softmax.float32": total}
        before = total


def test_keys_are_bounded_and_drops_are_counted() -> None:
    sampler = Sampler(max_keys=3)
    hook = hook_with(sampler)
    for rows in (1, 2, 3, 4, 5, 5, 1):
        call(hook, rows)
    window = sampler.flush()
    assert calls_by_rows(window) == {1: 2, 2: 1, 3: 1}
    assert window.dropped == 3


def test_strides_are_part_of_the_pattern() -> None:
    sampler = Sampler()
    hook = hook_with(sampler)
    hook.call(torch.empty(3, 4))
    hook.call(torch.empty(1, 3, 4))
    hook.call(torch.empty(3, 8)[:, :4])
    layouts = {sample.layouts: sample.calls for sample in sampler.flush().samples}
    assert layouts == {
        (TensorLayout((3, 4), (4, 1), "float32"),): 2,
        (TensorLayout((3, 4), (8, 1), "float32"),): 1,
    }


def test_the_kill_switch_stops_sampling() -> None:
    sampler = Sampler()
    call(hook_with(sampler, {"GRISTMILL_KILL": "off"}), 1)
    assert sampler.flush().samples == ()
    call(hook_with(sampler, {"GRISTMILL_KILL": "baseline-only"}), 1)
    assert sampler.flush().samples[0].calls == 1
