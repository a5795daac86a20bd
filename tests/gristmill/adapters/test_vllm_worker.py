"""A worker's link on a stand-in of vLLM's worker: whatever goes wrong in it, the engine serves on."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill import records
from gristmill.adapters import vllm_worker
from gristmill.adapters.vllm_worker import WorkerLink, decoded_tokens, link_workers
from gristmill.errors import MembershipError
from gristmill.membership import VARIABLE, Membership
from tests.gristmill.adapters.tiny_llama import HIDDEN, TinyModel
from tests.gristmill.adapters.vllm_layers import StandInActivation, StandInNorm


class Worker:
    """The structure of vLLM 0.32's `WorkerBase`."""

    rank = 0
    vllm_config = None
    parallel_config = types.SimpleNamespace(world_size=1)

    def __init__(self) -> None:
        self.model: Any = None
        self.shut = 0

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        self.model = TinyModel(StandInNorm, StandInActivation).requires_grad_(False)

    def get_model(self) -> Any:
        return self.model

    def execute_model(self, scheduler_output: Any) -> torch.Tensor:
        with torch.no_grad():
            output: torch.Tensor = self.model(torch.ones(len(scheduler_output.num_scheduled_tokens), HIDDEN))
            return output

    def shutdown(self) -> None:
        self.shut += 1


def step(*tokens: int) -> Any:
    return types.SimpleNamespace(num_scheduled_tokens={f"r{n}": count for n, count in enumerate(tokens)})


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(vllm_worker, "_engine_configuration", lambda config: contextlib.nullcontext())
    root = tmp_path / "root.json"
    root.write_text("{}")
    membership = Membership("eu", "tiny", str(root), str(tmp_path / "cache"), poll_s=3600, spool_s=0, sample_period=1)
    return {VARIABLE: records.canonical_json(membership).decode()}


@pytest.fixture
def linked(environ: dict[str, str]) -> Any:
    worker = Worker()
    link = WorkerLink(worker, environ)
    worker.load_model()
    yield worker, link
    worker.shutdown()


def test_a_loaded_model_is_attached_and_its_steps_are_sampled(linked: Any) -> None:
    worker, _ = linked
    assert worker.gristmill_status()["problem"] == ""
    for _ in range(3):
        worker.execute_model(step(1, 1))
    status = worker.gristmill_status()
    assert status["steps"] == 3
    assert {name: one["calls"] for name, one in status["sampled"].items()} == {
        "rms_norm.float32": 6,
        "fused_add_rms_norm.float32": 12,
        "silu_and_mul.float32": 6,
    }
    assert records.encode(status) == status
    assert worker.gristmill_flush() == {}


def test_a_bug_at_a_boundary_ends_the_link_and_not_the_engine(
    linked: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, link = linked
    plain = worker.execute_model(step(1, 1))

    def broken() -> None:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(link.member, "boundary", broken)
    assert torch.equal(worker.execute_model(step(1, 1)), plain)
    assert "ZeroDivisionError" in worker.gristmill_status()["problem"]
    assert not worker.gristmill_status()["enabled"]
    assert torch.equal(worker.execute_model(step(1, 1)), plain)
    assert "engine's own kernels" in caplog.text


def test_without_a_membership_the_engine_loads_and_serves() -> None:
    worker = Worker()
    WorkerLink(worker, {})
    worker.load_model()
    assert worker.execute_model(step(1)).shape == (1, HIDDEN)
    assert VARIABLE in worker.gristmill_status()["problem"]
    worker.shutdown()
    assert worker.shut == 1


def test_a_worker_is_linked_when_it_gets_its_device_however_often_the_plugin_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(vllm_worker, "WorkerLink", made.append)

    class Wrapper:
        def __init__(self) -> None:
            self.worker = Worker()
            self.devices = 0

        def init_device(self) -> None:
            self.devices += 1

    link_workers(Wrapper)
    link_workers(Wrapper)
    wrapper = Wrapper()
    wrapper.init_device()
    assert made == [wrapper.worker]
    assert wrapper.devices == 1


@pytest.mark.parametrize(("tokens", "decoded"), [((), 0), ((1,), 1), ((1, 1, 1), 3), ((1, 64), 0), ((5,), 0)])
def test_only_steps_that_decode_count(tokens: tuple[int, ...], decoded: int) -> None:
    assert decoded_tokens(step(*tokens).num_scheduled_tokens) == decoded


def test_a_spool_period_below_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_text("{}")
    membership = Membership("eu", "tiny", str(tmp_path / "root.json"), str(tmp_path), spool_s=-1)
    with pytest.raises(MembershipError, match="spool_s -1"):
        membership.check({})
