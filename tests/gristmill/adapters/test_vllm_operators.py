"""The vLLM adapter on stand-ins of the engine's layers; `test_vllm_layers` runs the same on its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gristmill.adapters import vllm_operators
from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError
from tests.gristmill.adapters.adapter_contract import AdapterContract, Subject
from tests.gristmill.adapters.tiny_llama import subject
from tests.gristmill.adapters.vllm_layers import PlainNorm, StandInActivation, StandInNorm


@pytest.fixture(name="subject")
def stand_ins() -> Subject:
    return subject(StandInNorm, StandInActivation, vllm_operators.attach)


class TestStandIns(AdapterContract):
    pass


def test_what_the_engines_compiler_took_over_stays_with_it_and_is_told(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandInNorm, "on", False)
    plain = subject.run(subject.model, 3)
    attachment = vllm_operators.attach(subject.model, Dispatcher(environ={}))
    assert set(attachment.left) == {"rms_norm", "fused_add_rms_norm"}
    assert all("+rms_norm" in why for why in attachment.left.values())
    assert {site.operator for site in attachment.dispatcher.sites} == {"silu_and_mul"}
    assert torch.equal(subject.run(subject.model, 3), plain)


def test_an_activation_of_unknown_width_is_left_and_told() -> None:
    model = nn.Sequential(StandInActivation(), StandInNorm(8))
    attachment = vllm_operators.attach(model, Dispatcher(environ={}))
    assert "width" in attachment.left["silu_and_mul"]
    assert model[0](torch.ones(1, 4)).shape == (1, 2)


def test_a_norm_over_a_part_of_a_row_is_left() -> None:
    norm = StandInNorm(8)
    norm.variance_size_override = 4  # type: ignore[assignment]
    attachment = vllm_operators.attach(nn.Sequential(norm), Dispatcher(environ={}))
    assert not attachment.dispatcher.sites
    assert "part of a row" in attachment.left["rms_norm"]


def test_a_model_built_before_the_plugin_is_refused() -> None:
    with pytest.raises(EngineError, match="before the plugin"):
        vllm_operators.attach(nn.Sequential(PlainNorm(8)), Dispatcher(environ={}))


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(EngineError, match="accelerator"):
        vllm_operators.attach(nn.Sequential(StandInNorm(8)).to("meta"), Dispatcher(environ={}))


def test_nothing_of_this_needs_the_engine() -> None:
    source = Path(vllm_operators.__file__).read_text()
    assert "import vllm" not in source and "from vllm" not in source
