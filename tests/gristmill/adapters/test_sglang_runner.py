"""A runner's link on a stand-in of SGLang's model runner: whatever goes wrong in it, the engine serves on."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill import records
from gristmill.adapters import sglang_runner
from gristmill.membership import VARIABLE, Membership
from tests.gristmill.adapters.sglang_layers import RMSNorm, SiluAndMul
from tests.gristmill.adapters.tiny_llama import HIDDEN, TinyModel


class ModelRunner:
    """The structure of SGLang 0.5.23's, without its hooks."""

    def __init__(self, **settings: Any) -> None:
        facts = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "speculative_algorithm": None, "enable_torch_compile": False}
        self.server_args = types.SimpleNamespace(**{**facts, "disaggregation_mode": "null", **settings})
        self.is_draft_worker = False
        self.model: Any = None
        self.gristmill: Any = None

    def load_model(self) -> None:
        self.model = TinyModel(RMSNorm, SiluAndMul).requires_grad_(False)

    def forward(self, forward_batch: Any, reinit_attn_backend: bool = False) -> torch.Tensor:
        with torch.no_grad():
            output: torch.Tensor = self.model(torch.ones(forward_batch.batch_size, HIDDEN))
            return output


def hooked(runner: ModelRunner) -> ModelRunner:
    """As the engine's registry does it, to the class."""
    own_load, own_forward = type(runner).load_model, type(runner).forward
    runner.load_model = functools.partial(sglang_runner.load_model, own_load, runner)  # type: ignore[method-assign]
    runner.forward = functools.partial(sglang_runner.forward, own_forward, runner)  # type: ignore[method-assign]
    return runner


def batch(size: int, decodes: bool = True) -> Any:
    return types.SimpleNamespace(batch_size=size, forward_mode=types.SimpleNamespace(is_decode=lambda: decodes))


@pytest.fixture(autouse=True)
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_runner, "_amx", lambda: False)
    root = tmp_path / "root.json"
    root.write_text("{}")
    membership = Membership("eu", "tiny", str(root), str(tmp_path / "cache"), poll_s=3600, spool_s=0, sample_period=1)
    monkeypatch.setenv(VARIABLE, records.canonical_json(membership).decode())
    monkeypatch.setenv("GRISTMILL_KILL_FILE", str(tmp_path / "kill"))


@pytest.fixture
def runner() -> Iterator[ModelRunner]:
    runner = hooked(ModelRunner())
    runner.load_model()
    yield runner
    runner.gristmill.leave()


def calls(runner: ModelRunner) -> dict[str, int]:
    return {name: one["calls"] for name, one in runner.gristmill.status()["sampled"].items()}


def test_a_loaded_model_is_attached_and_its_steps_are_sampled(runner: ModelRunner) -> None:
    for _ in range(3):
        runner.forward(batch(2), reinit_attn_backend=True)
    status = runner.gristmill.status()
    assert (status["problem"], status["steps"], status["unproven"]) == ("", 3, [])
    assert calls(runner) == {"rms_norm.float32": 6, "fused_add_rms_norm.float32": 12, "silu_and_mul.float32": 6}
    assert records.encode(status) == status
    assert runner.gristmill.flush() == {}


def test_the_kill_switch_ends_the_sampling_at_the_next_step(runner: ModelRunner, tmp_path: Path) -> None:
    runner.forward(batch(2))
    counted = calls(runner)
    (tmp_path / "kill").write_text("off")
    runner.forward(batch(2))
    assert calls(runner) == counted


def test_a_bug_at_a_boundary_ends_the_link_and_not_the_engine(
    runner: ModelRunner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = runner.forward(batch(2))

    def broken() -> None:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(runner.gristmill.member, "boundary", broken)
    assert torch.equal(runner.forward(batch(2)), plain)
    status = runner.gristmill.status()
    assert "ZeroDivisionError" in status["problem"] and not status["enabled"]
    assert torch.equal(runner.forward(batch(2)), plain)
    assert "engine's own kernels" in caplog.text


def test_an_error_of_the_engines_own_stays_its_own(runner: ModelRunner) -> None:
    with pytest.raises(AttributeError, match="batch_size"):
        runner.forward(types.SimpleNamespace())
    assert runner.gristmill.status()["problem"] == ""


def test_a_configuration_that_was_unproven_serves_with_the_engines_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = hooked(ModelRunner(enable_torch_compile=True))
    runner.load_model()
    status = runner.gristmill.status()
    assert "GRISTMILL_SGLANG=1" in status["problem"]
    assert status["unproven"] == ["torch.compile"]
    assert runner.forward(batch(2)).shape == (2, HIDDEN)
    assert runner.gristmill.attachment is None
    monkeypatch.setenv("GRISTMILL_SGLANG", "1")
    asked = hooked(ModelRunner(enable_torch_compile=True))
    asked.load_model()
    status = asked.gristmill.status()
    assert (status["problem"], status["unproven"]) == ("", ["torch.compile"])
    asked.gristmill.leave()


def test_a_runner_that_drafts_for_another_is_left_alone() -> None:
    runner = hooked(ModelRunner())
    runner.is_draft_worker = True
    runner.load_model()
    assert runner.gristmill is None
    assert runner.forward(batch(1)).shape == (1, HIDDEN)


def test_without_a_membership_the_engine_loads_and_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    runner = hooked(ModelRunner())
    runner.load_model()
    assert runner.forward(batch(1)).shape == (1, HIDDEN)
    assert VARIABLE in runner.gristmill.status()["problem"]


@pytest.mark.parametrize(("size", "decodes", "tokens"), [(3, True, 3), (0, True, 0), (3, False, 0)])
def test_only_steps_that_decode_count(size: int, decodes: bool, tokens: int) -> None:
    assert sglang_runner.decoded_tokens(batch(size, decodes)) == tokens
