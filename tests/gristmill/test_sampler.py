"""Counting is exact, timing is an unbiased share, memory is bounded."""

from __future__ import annotations

import random
import threading
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill import hook as hook_module
from gristmill import sampler as sampler_module
from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler, Timed, Window
from gristmill.workload import TensorLayout
from tests.gristmill.chance import courses


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
    ("calls", "period", "timed"), [(100, 1, 100), (100, 10, 10), (1, 10, 0), (2, 2, 1), (51, 17, 3)]
)
def test_one_call_in_a_block_is_timed(calls: int, period: int, timed: int) -> None:
    sampler = Sampler(period)
    hook = hook_with(sampler)
    for _ in range(calls):
        call(hook, 2)
    sample = sampler.flush().samples[0]
    assert (sample.calls, sample.timed_calls) == (calls, timed)
    assert (sample.timed_ns > 0) is (timed > 0)
    assert sample.one_in == period
    assert sample.estimated_ns == pytest.approx(sample.timed_ns * calls / max(1, timed))


class Engine:
    """Calls that take as long as they are told, by a clock that stands still in between."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        for module in (sampler_module, hook_module):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now_ns)

    def serve(self, sampler: Sampler, calls: list[tuple[int, int]], flush_after: int) -> list[Window]:
        """Rows and length of each call; flushes in between and at the end."""
        lengths = iter([length for _, length in calls])

        def run(x: torch.Tensor) -> tuple[torch.Tensor]:
            self.now_ns += next(lengths)
            return (x,)

        dispatcher = Dispatcher(environ={})
        hook = Hook(
            Instruments(dispatcher, sampler), dispatcher.site("softmax", torch.float32, {"columns": 4}, (), run)
        )
        windows = []
        for number, (rows, _) in enumerate(calls):
            if number == flush_after:
                windows.append(sampler.flush())
            call(hook, rows)
        return [*windows, sampler.flush()]


@pytest.mark.parametrize("period", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 8])
def test_the_time_is_unbiased_whatever_the_calls_take(monkeypatch: pytest.MonkeyPatch, period: int, count: int) -> None:
    """Over every way in which calls can be drawn; the first, cold call counts as the second."""
    engine = Engine(monkeypatch)
    lengths = [1000, 1, 50, 7, 300, 2, 11, 90][:count]

    def play(chance: random.Random) -> int:
        sampler = Sampler(period)
        sampler._generator, sampler.draw = chance, chance.random
        windows = engine.serve(sampler, [(2, length) for length in lengths], flush_after=count // 2)
        assert calls_by_rows(*windows) == {2: count}
        return sum(sample.timed_ns * sample.one_in for window in windows for sample in window.samples)

    expected = sum((probability * time_ns for probability, time_ns in courses(play, period)), Fraction(0))
    warm = lengths if period == 1 else [lengths[1] if count > 1 else 0, *lengths[1:]]
    assert expected == sum(warm)


@pytest.mark.parametrize("kept", [1, 2, 9])
def test_calls_beyond_the_keys_are_represented_without_bias(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Rows 1 has the only key. What is drawn of the others stands for all of them, also where few of it are kept."""
    monkeypatch.setattr(sampler_module, "MAX_OVERFLOW", kept)
    engine = Engine(monkeypatch)
    calls = [(1, 5), (2, 100), (3, 7), (3, 9), (2, 40), (4, 1), (3, 60)]

    def play(chance: random.Random) -> dict[int, tuple[int, int]]:
        sampler = Sampler(2, max_keys=1)
        sampler._generator, sampler.draw = chance, chance.random
        (window,) = engine.serve(sampler, calls, flush_after=-1)
        assert window.overflowed == 6
        found: dict[int, tuple[int, int]] = {}
        for sample in window.samples:
            number, time_ns = found.get(sample.axes["rows"], (0, 0))
            found[sample.axes["rows"]] = (number + sample.calls, time_ns + sample.timed_ns * sample.one_in)
        return found

    expected: dict[int, tuple[Fraction, Fraction]] = {}
    for probability, found in courses(play, 2):
        for rows, (number, time_ns) in found.items():
            before = expected.get(rows, (Fraction(0), Fraction(0)))
            expected[rows] = before[0] + probability * number, before[1] + probability * time_ns
    assert {rows: expected[rows] for rows in (2, 3, 4)} == {2: (2, 140), 3: (3, 76), 4: (1, 1)}


def test_a_call_of_another_pattern_leaves_the_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch)
    sampler = Sampler(3, seed=1)
    site = Dispatcher(environ={}).site("softmax", torch.float32, {"columns": 4}, (), lambda x: (x,))
    inputs = (torch.empty(2, 4),)
    cell = sampler.cell(site, 2, inputs)
    cell.calls = cell.due

    def of_another() -> None:
        engine.now_ns += 10

    def its_own() -> None:
        engine.now_ns += 10
        cell.calls += 1

    sampler.timed(cell, site, inputs, of_another)
    assert (cell.due, cell.timed_calls) == (cell.calls, 0)
    sampler.timed(cell, site, inputs, its_own)
    assert 3 <= cell.due < 6
    assert (cell.timed_calls, cell.timed_ns) == (1, 10)


def test_times_that_come_late_from_a_device_are_not_lost() -> None:
    """They are reported with the pattern's next calls."""
    sampler = Sampler(1)
    hook = hook_with(sampler)
    call(hook, 2)
    sampler.flush()
    (cell,) = sampler._threads[0][1].values()
    cell.timed_calls, cell.timed_ns = cell.timed_calls + 1, cell.timed_ns + 10**6
    assert sampler.flush().samples == ()
    call(hook, 2)
    (sample,) = sampler.flush().samples
    assert (sample.calls, sample.timed_calls) == (1, 2)
    assert sample.timed_ns > 10**6


def test_draws_are_the_samplers_own() -> None:
    """An engine that seeds Python's generator sees the same draws with and without sampling."""
    random.seed(7)
    hook = hook_with(Sampler(2))
    for _ in range(20):
        call(hook, 2)
    drawn = random.random()
    random.seed(7)
    assert drawn == random.random()


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
        assert total.calls == 4 * round_number
        assert round_number <= total.timed_calls <= 3 * round_number
        assert total.timed_ns > before.timed_ns
        assert sum(sample.calls for sample in sampler.flush().samples) == 4
        assert sampler.totals() == {"softmax.float32": total}
        before = total


def test_keys_are_bounded_and_what_found_none_is_counted() -> None:
    sampler = Sampler(max_keys=3)
    hook = hook_with(sampler)
    for rows in (1, 2, 3, 4, 5, 5, 1):
        call(hook, rows)
    window = sampler.flush()
    counted = {rows: calls for rows, calls in calls_by_rows(window).items() if rows <= 3}
    assert counted == {1: 2, 2: 1, 3: 1}
    assert window.overflowed == 3


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
