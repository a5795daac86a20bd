"""The hit path: the same few steps whatever the table's size, nothing left behind, exact counts across threads."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from gristmill import hook as hook_module
from gristmill import lane as lane_module
from gristmill.dispatch import Dispatcher
from gristmill.domain import AxisRange, Domain
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import TableEntry
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
HIDDEN = 8
EPS = 1e-5
NEVER = 10**9
"""A period in which nothing is timed or checked while a test looks."""


def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float = EPS) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (x_TH.shape[-1],), weight_H, eps),)


class Engine:
    """One norm with everything that production turns on; calls that the engine had to serve are listed."""

    def __init__(self, allocate: Callable[..., Any] | None = None, shadow_every: int = NEVER) -> None:
        self.dispatcher = Dispatcher(environ={}, settings=DispatchSettings(shadow_every))
        self.site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (EPS,), norm)
        self.sampler = Sampler(NEVER, trace_period=0)
        self.instruments = Instruments(self.dispatcher, self.sampler)
        self.own: list[int] = []
        self.hook = Hook(self.instruments, self.site, allocate, self._own)

    def _own(self, x_TH: torch.Tensor, weight_H: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.own.append(1)
        return norm(x_TH, weight_H)

    def serve(self, generation: Generation) -> None:
        assert not self.dispatcher.stage(generation)
        assert self.dispatcher.step_boundary() is not None

    @torch.no_grad()
    def check(self, rows: int) -> None:
        x_TH, weight_H = torch.randn(rows, HIDDEN), torch.rand(HIDDEN)
        torch.testing.assert_close(self.hook.call(x_TH, weight_H), norm(x_TH, weight_H))

    @property
    def hits(self) -> int:
        return sum(self.dispatcher.hits().values())


def wide_generation(entry: tuple[TableEntry, Path], make_generation: MakeGeneration, count: int) -> Generation:
    """One kernel in so many entries: a quarter of them for a size of its own each, the rest for other models."""

    def numbered(number: int) -> TableEntry:
        own = number <= count // 4
        ranges = (
            AxisRange("tokens", number if own else 1, number if own else 64),
            AxisRange("hidden", HIDDEN if own else number, HIDDEN if own else number),
        )
        return replace(entry[0], domain=Domain("rms_norm", "float32", ranges), candidate=f"c{number}")

    return make_generation(1, *((numbered(number), entry[1]) for number in range(HIDDEN + 1, HIDDEN + 1 + count)))


def steps_of(call: Callable[[], object]) -> int:
    """Bytecode instructions of ours that a call executes in this thread; what collected garbage calls is none of it."""
    steps = 0
    ours = str(Path(hook_module.__file__).parent)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if not frame.f_code.co_filename.startswith(ours):
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def test_ten_thousand_entries_cost_the_steps_of_ten(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    entry = make_entry("rms_norm", 1, 8)
    steps = {}
    for count in (40, 10_000):
        engine = Engine()
        engine.serve(wide_generation(entry, make_generation, count))
        inputs = torch.ones(HIDDEN + 2, HIDDEN), torch.ones(HIDDEN)
        with torch.no_grad():
            first = steps_of(lambda call=engine.hook.call, inputs=inputs: call(*inputs))
            steps[count] = (first, steps_of(lambda call=engine.hook.call, inputs=inputs: call(*inputs)))
        assert (engine.hits, engine.own) == (2, [])
    assert steps[40] == steps[10_000]
    first, again = steps[40]
    assert again < first, "the second call finds what the first has made"


@torch.no_grad()
def test_hits_leave_nothing_behind(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    x_TH, weight_H = torch.ones(4, HIDDEN), torch.ones(HIDDEN)
    call = engine.hook.call
    ours = [tracemalloc.Filter(True, str(module.__file__)) for module in (hook_module, lane_module)]

    def held_bytes() -> int:
        statistics = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
        return sum(statistic.size for statistic in statistics)

    for _ in range(300):
        call(x_TH, weight_H)
    tracemalloc.start()
    try:
        for _ in range(300):
            call(x_TH, weight_H)
        before = held_bytes()
        for _ in range(3000):
            call(x_TH, weight_H)
        assert held_bytes() - before < 100, "counters are objects too, but always as many"
    finally:
        tracemalloc.stop()
    assert engine.hits == 3600


def test_threads_dispatch_while_generations_swap(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    """Every answer is right, every call is counted once, by the kernel that served it or as the engine's own."""
    engine = Engine()
    entries = [make_entry("rms_norm", 1, 4), make_entry("rms_norm", 3, 8)]
    ended = threading.Event()
    made: list[list[int]] = [[] for _ in range(4)]

    def work(calls: list[int]) -> None:
        while not ended.is_set():
            engine.check(1 + len(calls) % 8)
            calls.append(1)

    threads = [threading.Thread(target=work, args=(calls,)) for calls in made]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 9):
            engine.serve(make_generation(number, entries[number % 2]))
            passed = [len(calls) for calls in made]
            while any(len(calls) < count + 2 for calls, count in zip(made, passed, strict=True)):
                assert all(thread.is_alive() for thread in threads)
                ended.wait(0.001)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    total = sum(map(len, made))
    assert engine.hits + len(engine.own) == total
    assert set(engine.dispatcher.hits()) == {entry.candidate for entry, _ in entries}
    assert engine.sampler.totals()["rms_norm.float32"].calls == total


def test_a_call_in_flight_keeps_its_generation(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    begun = threading.Event()

    def allocate(x_TH: torch.Tensor, weight_H: torch.Tensor) -> tuple[torch.Tensor, ...]:
        begun.set()
        return (torch.empty_like(x_TH),)

    engine = Engine(allocate)
    old = make_entry("rms_norm", 1, 8, "WAIT")
    engine.serve(make_generation(1, old))
    x_TH, weight_H = torch.randn(4, HIDDEN), torch.zeros(HIDDEN)
    found: list[tuple[torch.Tensor, ...]] = []
    with torch.no_grad():
        thread = threading.Thread(target=torch.no_grad()(lambda: found.append(engine.hook.call(x_TH, weight_H))))
        thread.start()
        assert begun.wait(60)
        engine.serve(make_generation(2))
        gc.collect()
        assert (engine.dispatcher.status()["entries"], found) == ([], [])
        weight_H.fill_(2.0)
        thread.join(60)
        torch.testing.assert_close(found[0], norm(x_TH, weight_H))
    assert (engine.dispatcher.hits(), engine.own) == ({old[0].candidate: 1}, [])


def test_lanes_are_bounded_and_hits_outlive_them(
    make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "MAX_LANES", 4)
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 64)))
    for rows in [*range(1, 20), *range(1, 20)]:
        engine.check(rows)
    view = engine.dispatcher.active[engine.site.index]
    assert len(view.local.lanes) <= 4
    assert (engine.hits, engine.own) == (38, [])
    assert engine.sampler.totals()["rms_norm.float32"].calls == 38


def test_threads_that_ended_leave_their_hits_and_no_frames(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    for _ in range(6):
        thread = threading.Thread(target=engine.check, args=(3,))
        thread.start()
        thread.join()
    (row,) = {row for row in engine.dispatcher.active[engine.site.index].rows if row is not None}
    assert len(row.state._frames) == 1
    assert engine.hits == 6


def test_an_exchanged_sampler_counts_from_then_on(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    other = Sampler()
    for sampler, calls in ((engine.sampler, 2), (None, 3), (other, 4), (engine.sampler, 5)):
        engine.instruments.sampler = sampler
        for _ in range(calls):
            engine.check(3)
    assert engine.sampler.totals()["rms_norm.float32"].calls == 7
    assert other.totals()["rms_norm.float32"].calls == 4
    assert engine.hits == 14


def test_strided_and_dense_calls_of_one_size_do_not_meet(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    """The kernel reads strides; its domain says that it may."""
    engine = Engine()
    entry, path = make_entry("rms_norm", 1, 8)
    domain = replace(entry.domain, layout=type(entry.domain.layout).INNER_CONTIGUOUS)
    engine.serve(make_generation(1, (replace(entry, domain=domain), path)))
    weight_H = torch.rand(HIDDEN)
    with torch.no_grad():
        for x_TH in (torch.randn(4, HIDDEN), torch.randn(4, 3 * HIDDEN)[:, :HIDDEN], torch.randn(HIDDEN, 4).T):
            for _ in range(2):
                torch.testing.assert_close(engine.hook.call(x_TH, weight_H), norm(x_TH, weight_H))
    assert (engine.hits, len(engine.own)) == (4, 2), "columns first is no layout of its domain"
    assert engine.sampler.totals()["rms_norm.float32"].calls == 6


def test_tensors_without_memory_are_no_fault_of_the_kernel(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    with torch.no_grad(), FakeTensorMode():
        for _ in range(5):
            (out_TH,) = engine.hook.call(torch.empty(4, HIDDEN), torch.empty(HIDDEN))
            assert out_TH.shape == (4, HIDDEN)
    (entry,) = engine.dispatcher.status()["entries"]
    assert (entry["failures"], entry["enabled"], entry["hits"]) == (0, True, 0)


@torch.no_grad()
def test_a_call_of_another_shape_goes_to_the_engine(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    """An engine broadcasts one row of positions: a kernel would read past its end."""
    dispatcher = Dispatcher(environ={}, settings=DispatchSettings(NEVER))
    axes = {"query_heads": 2, "key_heads": 1, "head_dim": 4}
    site = dispatcher.site("rotary_embedding", torch.float32, axes, (), rotate)
    hook = Hook(Instruments(dispatcher, None), site, engine=lambda *_: ())
    assert not dispatcher.stage(make_generation(1, make_entry("rotary_embedding", 1, 8)))
    dispatcher.step_boundary()
    q_TND, k_TMD = torch.randn(4, 2, 4), torch.randn(4, 1, 4)
    whole_TD, row_D = torch.randn(4, 4), torch.randn(1, 4)
    served = [bool(hook.call(q_TND, k_TMD, rows, rows)) for rows in (row_D, whole_TD, row_D, whole_TD)]
    assert served == [False, True, False, True]
    assert not hook.call(torch.randn(3, 2, 5), torch.randn(3, 1, 5), torch.randn(3, 5), torch.randn(3, 5))


def rotate(q_TND: torch.Tensor, k_TMD: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> Any:
    def turned(x_THD: torch.Tensor) -> torch.Tensor:
        first, second = x_THD.chunk(2, dim=-1)
        return x_THD * cos_TD[:, None] + torch.cat((-second, first), dim=-1) * sin_TD[:, None]

    return turned(q_TND), turned(k_TMD)


@torch.no_grad()
def test_a_shadow_check_that_cannot_be_made_is_a_fault_and_no_exception(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine(shadow_every=1)
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    engine.site.engine = refuse
    x_TH, weight_H = torch.randn(2, HIDDEN), torch.ones(HIDDEN)
    for _ in range(4):
        torch.testing.assert_close(engine.hook.call(x_TH, weight_H), norm(x_TH, weight_H))
    assert len(engine.own) == 4
    (entry,) = engine.dispatcher.status()["entries"]
    assert not entry["enabled"]
    assert "no memory" in entry["disabled_because"]


def refuse(*_: object) -> Any:
    raise RuntimeError("no memory")
