"""Captures: swaps wait for them, and a graph knows when what it holds serves no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gristmill.dispatch import Dispatcher
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import TableEntry
from gristmill.route import DispatchSettings

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
HIDDEN = 8


def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (x_TH.shape[-1],), weight_H, eps),)


class Engine:
    """One norm, and a kernel for up to 8 rows of it."""

    def __init__(self, make_entry: MakeEntry, make_generation: MakeGeneration, shadow_every: int = 0) -> None:
        self._make = lambda number: make_generation(number, make_entry("rms_norm", 1, 8))
        self.environ: dict[str, str] = {}
        self.dispatcher = Dispatcher("", "", DispatchSettings(shadow_every), self.environ)
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (1e-5,), norm)
        self._call = Hook(Instruments(self.dispatcher, None), site).call
        self.stage(1)
        self.dispatcher.step_boundary()

    def stage(self, number: int) -> None:
        assert self.dispatcher.stage(self._make(number)) == ()

    @torch.no_grad()
    def norm(self, rows: int = 4) -> None:
        self._call(torch.ones(rows, HIDDEN), torch.ones(HIDDEN))

    @property
    def hits(self) -> int:
        return int(self.dispatcher.status()["entries"][0]["hits"])


@pytest.fixture
def engine(make_entry: MakeEntry, make_generation: MakeGeneration) -> Engine:
    return Engine(make_entry, make_generation)


def test_a_swap_waits_for_the_capture_and_makes_it_stale(engine: Engine) -> None:
    with engine.dispatcher.capture() as capture:
        engine.norm()
        engine.stage(2)
        assert engine.dispatcher.step_boundary() is None
        engine.norm()
        assert (engine.dispatcher.generation.number, engine.hits) == (1, 2)
    assert not capture.stale
    swap = engine.dispatcher.step_boundary()
    assert swap is not None and swap.generation == 2
    assert capture.stale
    with engine.dispatcher.capture() as again:
        engine.norm()
    assert not again.stale


def test_a_boundary_without_news_leaves_graphs_alone(engine: Engine) -> None:
    with engine.dispatcher.capture() as capture:
        engine.norm()
    engine.dispatcher.step_boundary()
    engine.dispatcher.enabled = True
    engine.dispatcher.site("rms_norm", torch.float32, {"hidden": 2 * HIDDEN}, (1e-5,), norm)
    assert not capture.stale


def test_replays_count_as_hits_of_what_was_recorded(engine: Engine) -> None:
    engine.norm()
    with engine.dispatcher.capture() as capture:
        for rows in (1, 4, 4, 9):
            engine.norm(rows)
    for _ in range(10):
        capture.replayed()
    assert engine.hits == 1 + 3 + 10 * 3
    first, *_ = engine.dispatcher.hits()
    engine.stage(2)
    engine.dispatcher.step_boundary()
    assert engine.dispatcher.hits()[first] == 34


def test_calls_of_other_threads_are_not_in_the_graph(engine: Engine) -> None:
    with engine.dispatcher.capture() as capture:
        engine.norm()
        thread = threading.Thread(target=engine.norm)
        thread.start()
        thread.join()
    capture.replayed()
    assert engine.hits == 3


def test_another_threads_capture_holds_swaps_back(engine: Engine) -> None:
    recording, done = threading.Event(), threading.Event()

    def record() -> None:
        with engine.dispatcher.capture():
            recording.set()
            done.wait(60)

    thread = threading.Thread(target=record)
    thread.start()
    assert recording.wait(60)
    engine.stage(2)
    assert engine.dispatcher.step_boundary() is None
    done.set()
    thread.join()
    assert engine.dispatcher.step_boundary() is not None


def test_a_capture_that_fails_holds_nothing_back(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="capture failed"), engine.dispatcher.capture():
        raise RuntimeError("capture failed")
    engine.stage(2)
    assert engine.dispatcher.step_boundary() is not None


def test_a_kill_does_not_wait_and_makes_graphs_stale(engine: Engine) -> None:
    with engine.dispatcher.capture() as capture:
        engine.norm()
        engine.environ["GRISTMILL_KILL"] = "baseline-only"
        engine.dispatcher.step_boundary()
        engine.norm()
    assert engine.hits == 1
    assert capture.stale


@pytest.mark.parametrize("held", [True, False])
def test_a_kernel_that_was_disabled_makes_its_graphs_stale(engine: Engine, held: bool) -> None:
    with engine.dispatcher.capture() as capture:
        engine.norm(4 if held else 9)
    next(iter(engine.dispatcher._loaded.states.values())).disable("shadow check")
    assert capture.stale is held


def test_shadow_checks_wait_for_the_end(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    """They look at results, which nothing may do while a graph is recorded."""
    engine = Engine(make_entry, make_generation, shadow_every=1)

    def checks() -> int:
        return int(engine.dispatcher.status()["entries"][0]["shadow_checks"])

    with engine.dispatcher.capture():
        for _ in range(3):
            engine.norm()
        assert (engine.hits, checks()) == (3, 0)
    engine.norm()
    assert checks() == 1


@pytest.mark.gpu
def test_a_cuda_graph_is_captured_again_after_a_swap(engine: Engine) -> None:
    """Calls on the device stay with the engine, whose kernels are recorded; the contract is the same."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x_TH, weight_H = torch.randn(4, HIDDEN, device="cuda"), torch.rand(HIDDEN, device="cuda")
    engine._call(x_TH, weight_H)

    def captured() -> tuple[torch.cuda.CUDAGraph, object, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), engine.dispatcher.capture() as capture, torch.cuda.graph(graph):
            (out_TH,) = engine._call(x_TH, weight_H)
            engine.stage(2)
            assert engine.dispatcher.step_boundary() is None
        return graph, capture, out_TH

    for _ in range(2):
        graph, capture, out_TH = captured()
        assert not capture.stale  # type: ignore[attr-defined]
        x_TH.normal_()
        graph.replay()
        torch.testing.assert_close(out_TH, norm(x_TH, weight_H, 1e-5)[0])
        assert engine.dispatcher.step_boundary() is not None
        assert capture.stale  # type: ignore[attr-defined]
