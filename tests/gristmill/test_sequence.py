"""Edges say what an engine's step did: every activation read is on one, and no memory is mistaken for another's.

Shapes: 4 columns everywhere.
"""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill import sampler as sampler_module
from gristmill import sequence
from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler
from gristmill.sequence import Edge


def _anything(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.rand(inputs[0].shape),)


class Engine:
    """Hooks of an engine that calls what a test tells it to."""

    def __init__(self, sampler: Sampler, environ: dict[str, str] | None = None) -> None:
        self.sampler = sampler
        dispatcher = Dispatcher(environ=environ or {})
        instruments = Instruments(dispatcher, sampler)
        axes = {
            "softmax": {"columns": 4},
            "rms_norm": {"hidden": 4},
            "skinny_linear": {"in_features": 4, "out_features": 4},
            "silu_and_mul": {"intermediate": 4},
        }
        self._hooks = {
            name: Hook(instruments, dispatcher.site(name, torch.float32, fixed, (), _anything))
            for name, fixed in axes.items()
        }

    def call(self, operator: str, *inputs: torch.Tensor) -> torch.Tensor:
        return self._hooks[operator].call(*inputs)[0]

    def edges(self) -> list[Edge]:
        self.sampler.boundary()
        return sorted(self.sampler.flush().edges, key=lambda e: (e.producer, e.consumer, e.input, e.uses))


def traced() -> Engine:
    """An engine at the beginning of a step, every step of which is traced."""
    engine = Engine(Sampler(trace_period=1))
    engine.sampler.boundary()
    return engine


def ends(edges: list[Edge]) -> list[tuple[str, str, int, int, int]]:
    return [(e.producer, e.consumer, e.input, e.uses, e.calls) for e in edges]


def test_an_output_that_two_read_and_one_that_one_reads() -> None:
    engine, weight = traced(), torch.rand(4, 4)
    normed = engine.call("rms_norm", torch.rand(3, 4), torch.rand(4))
    gate = engine.call("skinny_linear", normed, weight)
    up = engine.call("skinny_linear", normed.view(1, 3, 4), weight)
    engine.call("silu_and_mul", gate, up)
    edges = engine.edges()
    assert ends(edges) == [
        ("", "rms_norm", 0, 0, 1),
        ("rms_norm", "skinny_linear", 0, 2, 2),
        ("skinny_linear", "silu_and_mul", 0, 1, 1),
        ("skinny_linear", "silu_and_mul", 1, 1, 1),
    ]
    assert edges[1].producer_axes == {"hidden": 4} and edges[1].dtype == "float32" and edges[1].output == 0
    assert edges[1].consumer_axes == {"in_features": 4, "out_features": 4}


def test_a_part_of_an_output_is_not_the_output() -> None:
    engine = traced()
    normed = engine.call("rms_norm", torch.rand(4, 4), torch.rand(4))
    engine.call("softmax", normed[:2])
    assert ("", "softmax", 0, 0, 1) in ends(engine.edges())


def test_an_output_of_an_earlier_step_is_nobody_s() -> None:
    engine = traced()
    normed = engine.call("rms_norm", torch.rand(4, 4), torch.rand(4))
    engine.edges()
    engine.call("softmax", normed)
    assert ends(engine.edges()) == [("", "softmax", 0, 0, 1)]


def test_memory_that_is_used_again_is_no_edge() -> None:
    """While a step is traced its outputs are kept, so that nothing else gets their address."""
    engine = traced()
    for _ in range(20):
        engine.call("rms_norm", torch.rand(4, 4), torch.rand(4))
        engine.call("softmax", torch.rand(4, 4))
    assert {edge.producer for edge in engine.edges()} == {""}


@given(st.lists(st.tuples(st.sampled_from(["softmax", "rms_norm"]), st.integers(0, 200)), max_size=200))
def test_every_activation_read_is_on_one_edge(calls: list[tuple[str, int]]) -> None:
    """Of any program whose calls read earlier outputs, however old, and memory is bounded."""
    engine = traced()
    values = [torch.rand(2, 4)]
    for operator, source in calls:
        weights = (torch.rand(4),) if operator == "rms_norm" else ()
        values.append(engine.call(operator, values[source % len(values)], *weights))
        assert engine.sampler.tracer is not None
        assert len(engine.sampler.tracer._made) <= sequence.KEPT_OUTPUTS
    edges = engine.edges()
    assert sum(edge.calls for edge in edges) == len(calls)
    assert all((edge.uses == 0) == (edge.producer == "") for edge in edges)


def test_kept_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "KEPT_BYTES", 100)
    engine = traced()
    first = engine.call("softmax", torch.rand(4, 4))
    second = engine.call("softmax", first)
    engine.call("softmax", torch.rand(4, 4))
    engine.call("softmax", second)
    assert ends(engine.edges()) == [("", "softmax", 0, 0, 3), ("softmax", "softmax", 0, 1, 1)]


def test_one_step_in_so_many_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "TRACE_COST", 0)
    engine = Engine(Sampler(trace_period=5))
    for _ in range(20):
        engine.sampler.boundary()
        engine.call("softmax", torch.rand(2, 4))
    assert ends(engine.edges()) == [("", "softmax", 0, 0, 4)]
    for sampler in (Sampler(trace_period=0), Sampler(trace_period=1)):
        engine = Engine(sampler, {} if sampler._trace_period == 0 else {"GRISTMILL_KILL": "off"})
        sampler.boundary()
        engine.call("softmax", torch.rand(2, 4))
        assert engine.edges() == []


def test_tracing_takes_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which noting a call takes 1 us, all that is around it 2 us, and a step 200 us otherwise."""
    now_ns = 0

    def tick() -> int:
        nonlocal now_ns
        now_ns += 1000
        return now_ns

    monkeypatch.setattr(sequence, "perf_counter_ns", tick)
    monkeypatch.setattr(sampler_module, "perf_counter_ns", lambda: now_ns)
    engine = Engine(Sampler(period=10**9, trace_period=5))
    traced, tracing_ns = 0, 0
    for _ in range(20_000):
        engine.sampler.boundary()
        before_ns = now_ns
        if engine.sampler.tracer is not None:
            traced += 1
            engine.call("softmax", torch.rand(2, 4))
        tracing_ns += now_ns - before_ns
        now_ns += 200_000
    assert traced > 100
    assert tracing_ns / now_ns <= 2 * sampler_module.TRACE_SHARE


def test_idle_boundaries_use_up_no_trace() -> None:
    """Or an engine with less than a period of steps between two rests would never be traced."""
    engine = Engine(Sampler(trace_period=1000))
    for _ in range(3):
        engine.sampler.boundary()
    engine.call("softmax", torch.rand(2, 4))
    assert ends(engine.edges()) == [("", "softmax", 0, 0, 1)]


def test_without_boundaries_nothing_is_traced() -> None:
    engine = Engine(Sampler(trace_period=1))
    engine.call("softmax", torch.rand(2, 4))
    assert engine.sampler.flush().edges == ()


def test_a_long_step_is_traced_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "MAX_CALLS", 3)
    engine = traced()
    for _ in range(10):
        engine.call("softmax", torch.rand(2, 4))
    assert ends(engine.edges()) == [("", "softmax", 0, 0, 3)]


def test_another_thread_neither_adds_to_a_step_nor_ends_it() -> None:
    engine = traced()

    def interfere() -> None:
        engine.call("softmax", torch.rand(2, 4))
        engine.sampler.boundary()

    thread = threading.Thread(target=interfere)
    thread.start()
    thread.join()
    engine.call("rms_norm", torch.rand(2, 4), torch.rand(4))
    assert ends(engine.edges()) == [("", "rms_norm", 0, 0, 1)]
