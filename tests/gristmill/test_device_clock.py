"""What a device's clock makes of events: times arrive late, nothing waits, and what is under way is bounded."""

from __future__ import annotations

import threading

import pytest
import torch

from gristmill.device_clock import MAX_UNDER_WAY, DeviceClock
from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler


class Stream:
    """A device that does what it is told when it is told to go on; each call takes as many ms as it is given."""

    def __init__(self) -> None:
        self.told: list[StreamEvent] = []
        self.done = 0
        self.capturing = False

    def event(self) -> StreamEvent:
        return StreamEvent(self)


class StreamEvent:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.place = -1

    def record(self) -> None:
        self.place = len(self._stream.told)
        self._stream.told.append(self)

    def query(self) -> bool:
        return self.place < self._stream.done

    def elapsed_time(self, other: StreamEvent) -> float:
        return float(other.place - self.place)


def test_times_are_told_once_they_are_known() -> None:
    stream = Stream()
    clock = DeviceClock(stream.event, lambda: stream.capturing)
    told: list[int] = []
    for _ in range(2):
        started = clock.start()
        assert started is not None
        clock.stop(started, told.append)
    assert told == []
    stream.done = 3  # the first call's two events, and the second's first
    assert clock.start() is not None
    assert told == [1_000_000]
    stream.done = 4
    clock.start()
    assert told == [1_000_000, 1_000_000]


def test_nothing_is_timed_while_a_graph_is_captured() -> None:
    stream = Stream()
    stream.capturing = True
    assert DeviceClock(stream.event, lambda: stream.capturing).start() is None
    assert stream.told == []


def test_a_device_that_lags_behind_bounds_what_is_under_way() -> None:
    stream = Stream()
    clock = DeviceClock(stream.event, lambda: False)
    told: list[int] = []
    for _ in range(2 * MAX_UNDER_WAY):
        started = clock.start()
        if started is not None:
            clock.stop(started, told.append)
    assert len(stream.told) == 2 * MAX_UNDER_WAY
    stream.done = len(stream.told)
    assert clock.start() is not None
    assert len(told) == MAX_UNDER_WAY


def test_each_thread_is_told_of_its_own_calls() -> None:
    stream = Stream()
    clock = DeviceClock(stream.event, lambda: False)
    told: dict[str, list[str]] = {}

    def call(name: str, *, timed: bool) -> None:
        started = clock.start()
        if timed and started is not None:
            clock.stop(started, lambda ns: told.setdefault(name, []).append(threading.current_thread().name))

    call("here", timed=True)
    stream.done = 2
    other = threading.Thread(target=lambda: call("there", timed=True), name="other")
    other.start()
    other.join()
    assert told == {}
    call("here", timed=False)
    assert told == {"here": [threading.current_thread().name]}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_call_takes_what_it_takes_on_the_device() -> None:
    """Also where the host has long gone on; a product of this size takes longer than telling the device of it."""
    sampler = Sampler(1, trace_period=0)
    dispatcher = Dispatcher(environ={})
    site = dispatcher.site("skinny_linear", torch.float32, {"in_features": 8192, "out_features": 8192}, (), _product)
    hook = Hook(Instruments(dispatcher, sampler), site)
    x_TK, weight_NK = torch.rand(2048, 8192, device="cuda"), torch.rand(8192, 8192, device="cuda")
    with torch.no_grad():
        hook.call(x_TK, weight_NK)
        torch.cuda.synchronize()
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        for _ in range(20):
            hook.call(x_TK, weight_NK)
        ended.record()
        torch.cuda.synchronize()
        hook.call(x_TK, weight_NK)  # tells the times of those before
    (timed,) = sampler.totals().values()
    assert timed.timed_calls == 21
    whole_ns = began.elapsed_time(ended) * 1e6
    assert 0.5 * whole_ns / 20 < timed.timed_ns / timed.timed_calls < 2 * whole_ns / 20


def _product(x_TK: torch.Tensor, weight_NK: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.linear(x_TK, weight_NK),)
