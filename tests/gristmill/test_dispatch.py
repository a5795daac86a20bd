"""Dispatch with real kernels: hits, fallbacks, shadow checks, swaps, refusals, kill switch."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gristmill.dispatch import Dispatcher
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import TableEntry
from gristmill.native import CallFrame, NativeKernel
from gristmill.route import DispatchSettings, difference_of
from gristmill.sampler import Sampler

HIDDEN = 32
EPS = 1e-5
MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]


def engine_norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (x_TH.shape[-1],), weight_H, eps),)


class Engine:
    """The smallest engine: one norm, called through the adapter's hook. Counts what it had to do itself."""

    def __init__(self, settings: DispatchSettings | None = None, environ: dict[str, str] | None = None) -> None:
        self.environ = environ or {}
        self.dispatcher = Dispatcher("stable", "test-hardware", settings, self.environ)
        self.weight_H = torch.rand(HIDDEN) + 0.5
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (EPS,), engine_norm)
        site.add_weight(self.weight_H)
        self.hook = Hook(Instruments(self.dispatcher, None), site, engine=self.own)
        self.own_calls = 0

    def own(self, x_TH: torch.Tensor, weight_H: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.own_calls += 1
        return engine_norm(x_TH, weight_H, EPS)

    @torch.no_grad()
    def norm(self, tokens: int) -> None:
        """One call, checked."""
        x_TH = torch.randn(tokens, HIDDEN)
        out_TH = self.hook.call(x_TH, self.weight_H)[0]
        torch.testing.assert_close(out_TH, engine_norm(x_TH, self.weight_H, EPS)[0])

    def serve(self, generation: Generation) -> None:
        assert not self.dispatcher.stage(generation)
        self.dispatcher.step_boundary()

    @property
    def entry(self) -> dict[str, Any]:
        status: dict[str, Any] = self.dispatcher.status()["entries"][0]
        return status


def test_without_a_generation_the_engine_serves() -> None:
    engine = Engine()
    engine.norm(4)
    assert engine.own_calls == 1
    assert engine.dispatcher.status()["entries"] == []


def test_hits_inside_fallbacks_outside(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 2, 8)))
    for tokens in (1, 2, 8, 9, 100000):
        engine.norm(tokens)
    assert engine.entry["hits"] == 2
    assert engine.own_calls == 3
    assert engine.dispatcher.status()["fallbacks"] == {"rms_norm.float32": 3}


def test_constant_axes_select(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8, hidden=HIDDEN + 1)))
    engine.norm(4)
    assert engine.own_calls == 1
    assert engine.dispatcher.status()["entries"] == []


def test_hits_are_exact_across_threads(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    threads = [threading.Thread(target=lambda: [engine.norm(3) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.entry["hits"] == 800


def test_swap_only_at_a_boundary(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8)))
    engine.norm(4)
    assert engine.own_calls == 1
    assert engine.dispatcher.generation.number == 0
    event = engine.dispatcher.step_boundary()
    assert event is not None
    assert (event.previous, event.generation, event.entries) == (0, 1, 1)
    engine.norm(4)
    assert engine.own_calls == 1
    assert engine.dispatcher.step_boundary() is None


def test_hits_of_earlier_generations_are_kept(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    entry = make_entry("rms_norm", 1, 8)
    for number in (1, 2):
        engine.serve(make_generation(number, entry))
        engine.norm(4)
    assert engine.entry["hits"] == 1
    assert engine.dispatcher.hits() == {entry[0].candidate: 2}


def test_a_refusing_kernel_is_disabled(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine(DispatchSettings(failures_allowed=2))
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8, "REFUSE_AFTER=2")))
    for _ in range(5):
        engine.norm(4)
    assert engine.entry["hits"] == 1  # the smoke test was the first call
    assert engine.entry["failures"] == 2
    assert not engine.entry["enabled"]
    assert "gm_run returned 7" in engine.entry["disabled_because"]
    assert engine.own_calls == 4


def test_an_exception_is_a_fallback(
    make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(DispatchSettings(failures_allowed=1))
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    monkeypatch.setattr(NativeKernel, "frame", lambda self, *layouts: CallFrame(lambda _: 1 // 0, *layouts))
    engine.norm(4)
    assert engine.own_calls == 1
    assert "ZeroDivisionError" in engine.entry["disabled_because"]


def test_a_shadow_mismatch_disables_and_is_not_served(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine(DispatchSettings(shadow_every=1))
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8, "WRONG_AFTER=3")))
    for _ in range(6):
        engine.norm(4)  # asserts that every answer is right
    assert engine.entry["mismatches"] == 1
    assert engine.entry["shadow_checks"] == 3
    assert not engine.entry["enabled"]
    assert "out_TH" in engine.entry["disabled_because"]


def test_shadow_checks_come_once_in_n(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine(DispatchSettings(shadow_every=10))
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    for _ in range(2000):
        engine.norm(1)
    assert 120 < engine.entry["shadow_checks"] < 280


def test_smoke_tests_leave_the_engines_random_numbers_alone(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine()
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    assert torch.equal(torch.rand(3), wanted)


def test_arms_switch_by_one_assignment(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    engine.dispatcher.enabled = False
    engine.norm(4)
    assert (engine.entry["hits"], engine.own_calls) == (0, 1)
    engine.dispatcher.enabled = True
    engine.norm(4)
    assert (engine.entry["hits"], engine.own_calls) == (1, 1)


@pytest.mark.parametrize(
    ("word", "served"), [("off", 0), ("baseline-only", 0), ("deny=rms_norm", 0), ("deny=softmax", 1)]
)
def test_kill_switch_works_without_a_restart(
    make_entry: MakeEntry, make_generation: MakeGeneration, word: str, served: int
) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    engine.environ["GRISTMILL_KILL"] = word
    engine.dispatcher.step_boundary()
    engine.norm(4)
    assert engine.entry["hits"] == served
    del engine.environ["GRISTMILL_KILL"]
    engine.dispatcher.step_boundary()
    engine.norm(4)
    assert engine.entry["hits"] == served + 1


@pytest.mark.parametrize("digits", [12, 64])
@pytest.mark.parametrize("which", ["this kernel", "another"])
def test_one_kernel_is_denied_by_a_file_in_a_running_host(
    make_entry: MakeEntry, make_generation: MakeGeneration, tmp_path: Path, digits: int, which: str
) -> None:
    engine = Engine(environ={"GRISTMILL_KILL_FILE": str(tmp_path / "kill")})
    low, high = make_entry("rms_norm", 1, 8), make_entry("rms_norm", 9, 16)
    engine.serve(make_generation(1, low, high))
    denied = (low if which == "this kernel" else high)[0].object.sha256
    (tmp_path / "kill").write_text(f"deny={denied[:digits]}\n")
    engine.dispatcher.step_boundary()
    engine.norm(4)
    assert engine.entry["hits"] == (which == "another")
    (tmp_path / "kill").unlink()
    engine.dispatcher.step_boundary()
    engine.norm(4)
    assert engine.entry["hits"] == 1 + (which == "another")


def test_an_unknown_kill_word_stops_kernels(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    for _ in range(2):
        engine.environ["GRISTMILL_KILL"] = "please"
        engine.dispatcher.step_boundary()
        engine.norm(4)
        assert engine.entry["hits"] == 0
        status = engine.dispatcher.status()
        assert "please" in status["kill"] and "please" in status["refusals"][-1]["reason"]
        engine.environ["GRISTMILL_KILL"] = "please "
        engine.dispatcher.step_boundary()
        assert len(engine.dispatcher.refusals) == 1, "the same is said once"
    del engine.environ["GRISTMILL_KILL"]
    engine.dispatcher.step_boundary()
    engine.norm(4)
    assert engine.entry["hits"] == 1 and engine.dispatcher.status()["kill"] == ""


def test_an_engine_starts_whatever_the_kill_switch_says(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine(environ={"GRISTMILL_KILL": "please"})
    engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8)))
    engine.dispatcher.step_boundary()
    engine.norm(4)
    assert engine.own_calls == 1 and not engine.dispatcher.hits()
    (refusal,) = engine.dispatcher.status()["refusals"]
    assert "please" in refusal["reason"] and "baseline-only" in refusal["reason"]


def test_training_stays_with_the_engine(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    x_TH = torch.randn(2, HIDDEN, requires_grad=True)
    out_TH = engine.hook.call(x_TH, engine.weight_H)[0]
    out_TH.sum().backward()
    assert x_TH.grad is not None


@torch.no_grad()
def test_strided_inputs_go_to_the_engine_of_a_contiguous_domain(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    x_TH = torch.randn(4, 2 * HIDDEN)[:, :HIDDEN]
    engine.hook.call(x_TH, engine.weight_H)
    assert (engine.own_calls, engine.entry["hits"]) == (1, 0)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda weight_H: setattr(weight_H, "data", weight_H.data.double()),
        lambda weight_H: setattr(weight_H, "data", torch.stack((weight_H.data, weight_H.data), dim=1)[:, 0]),
    ],
    ids=["dtype", "strides"],
)
def test_a_weight_that_was_served_is_looked_at_again_once_it_has_other_memory(
    make_entry: MakeEntry, make_generation: MakeGeneration, change: Callable[[torch.Tensor], None]
) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    engine.norm(4)
    engine.norm(4)
    assert (engine.own_calls, engine.entry["hits"]) == (0, 2)
    change(engine.weight_H)
    x_TH = torch.randn(4, HIDDEN)
    engine.hook.engine = lambda *inputs: inputs
    assert engine.hook.call(x_TH, engine.weight_H)[0] is x_TH
    assert engine.entry["hits"] == 2


@torch.no_grad()
def test_each_of_two_weights_of_one_hook_is_looked_at(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    sound_H, strided_H = engine.weight_H, torch.rand(HIDDEN, 2)[:, 0]
    for _ in range(2):
        engine.weight_H = sound_H
        engine.norm(4)
        engine.weight_H = strided_H
        engine.norm(4)
    assert (engine.own_calls, engine.entry["hits"]) == (2, 2)


class Linear:
    """A projection whose kernel packs its weight."""

    def __init__(self, make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
        self.dispatcher = Dispatcher(environ={})
        self.weight_NK = torch.randn(12, 20)
        axes = {"in_features": 20, "out_features": 12}
        site = self.dispatcher.site(
            "skinny_linear", torch.float32, axes, (), lambda x, w: (torch.nn.functional.linear(x, w),)
        )
        site.add_weight(self.weight_NK)
        self.hook = Hook(Instruments(self.dispatcher, Sampler()), site)
        ranges = (make_entry("skinny_linear", 1, 1), make_entry("skinny_linear", 2, 8))
        assert not self.dispatcher.stage(make_generation(1, *ranges))
        self.dispatcher.step_boundary()

    @torch.no_grad()
    def check(self) -> None:
        x_TK = torch.randn(2, 20)
        result = self.hook.call(x_TK, self.weight_NK)
        torch.testing.assert_close(result[0], x_TK @ self.weight_NK.T)


def test_weights_are_packed_before_the_swap_and_again_when_changed(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    linear = Linear(make_entry, make_generation)
    assert linear.dispatcher.status()["packed_bytes"] == 12 * 20 * 4  # two kernels, one form
    linear.check()
    linear.weight_NK.mul_(-3)
    linear.check()
    linear.weight_NK.data = torch.randn(12, 20)
    linear.check()
    assert linear.dispatcher.status()["packed_bytes"] == 12 * 20 * 4


def write_data(weight_NK: torch.Tensor, value_NK: torch.Tensor) -> None:
    weight_NK.data.copy_(value_NK)


def write_memory(weight_NK: torch.Tensor, value_NK: torch.Tensor) -> None:
    weight_NK.detach().numpy()[:] = value_NK.numpy()


@pytest.mark.parametrize("write", [write_data, write_memory])
@pytest.mark.parametrize("told", [True, False])
def test_weights_written_past_torch_are_packed_again(
    make_entry: MakeEntry, make_generation: MakeGeneration, write: Callable[..., None], told: bool
) -> None:
    linear = Linear(make_entry, make_generation)
    linear.check()
    write(linear.weight_NK, torch.randn(12, 20))
    if told:
        linear.dispatcher.weights_changed()
    else:
        linear.dispatcher.step_boundary()
        linear.dispatcher.step_boundary()  # two kernels have packed it, and one is looked at each time
    hits = sum(linear.dispatcher.hits().values())
    linear.check()
    assert sum(linear.dispatcher.hits().values()) == hits + 1
    assert linear.dispatcher.status()["packed_bytes"] == 12 * 20 * 4


def test_packed_weights_are_released_on_swap(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    linear = Linear(make_entry, make_generation)
    linear.check()
    kernel = weakref.ref(next(iter(linear.dispatcher._loaded._kernels.values())))
    linear.dispatcher.stage(make_generation(2))
    linear.dispatcher.step_boundary()
    gc.collect()
    assert kernel() is None
    assert linear.dispatcher.status()["packed_bytes"] == 0


def test_a_site_made_late_gets_the_active_kernels(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 1, 8)))
    site = engine.dispatcher.site("rms_norm", torch.float32, {"hidden": 16}, (EPS,), engine_norm)
    assert engine.dispatcher.active[site.index].rows[4] is not None
    again = engine.dispatcher.site("rms_norm", torch.float32, {"hidden": 16}, (EPS,), engine_norm)
    assert again is site


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ([1.0, 2.0, 3.0], True),
        ([1.0, 2.0, 3.0001], True),
        ([1.0, 2.0, 3.01], False),
        ([1.0, 2.0, float("nan")], False),
        ([0.0, 0.0, 0.0], False),
    ],
)
def test_tolerance(found: list[float], same: bool) -> None:
    assert (difference_of(torch.tensor(found), torch.tensor([1.0, 2.0, 3.0]), 1e-4) == "") is same


def test_tolerance_wants_non_finite_values_in_the_same_places() -> None:
    wanted = torch.tensor([float("inf"), float("nan"), 1.0])
    assert difference_of(wanted.clone(), wanted, 1e-4) == ""
    assert "non-finite" in difference_of(torch.tensor([-float("inf"), float("nan"), 1.0]), wanted, 1e-4)


def test_status_is_plain_data(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine()
    engine.serve(make_generation(1, make_entry("rms_norm", 2, 8)))
    status = SimpleNamespace(**engine.dispatcher.status())
    assert (status.generation, status.enabled, status.kill) == (1, True, "")
    assert engine.entry["ranges"] == ["tokens=2..8"]
