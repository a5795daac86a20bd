"""The SGLang adapter on stand-ins of the engine's layers; `test_sglang_layers` runs the same on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gristmill.adapters import layer_hooks, sglang_operators
from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError
from gristmill.sampler import Sampler
from tests.gristmill.adapters.adapter_contract import AdapterContract, Subject
from tests.gristmill.adapters.sglang_layers import GemmaRMSNorm, RMSNorm, SiluAndMul
from tests.gristmill.adapters.tiny_llama import subject


@pytest.fixture(name="subject")
def stand_ins() -> Subject:
    return subject(RMSNorm, SiluAndMul, sglang_operators.attach)


class TestStandIns(AdapterContract):
    pass


def attached(model: nn.Module, environ: dict[str, str] | None = None) -> layer_hooks.Attachment:
    return sglang_operators.attach(model, Dispatcher(environ={}), Sampler(), environ or {})


def test_a_backend_that_is_forced_takes_every_call_and_that_is_told(subject: Subject) -> None:
    attachment = attached(subject.model, {"SGLANG_FORCE_FUSED_OP_BACKEND": "torch"})
    assert not attachment.dispatcher.sites
    assert {"rms_norm", "fused_add_rms_norm", "silu_and_mul"} <= set(attachment.left)


def test_a_third_addend_stays_with_the_engine() -> None:
    norm = RMSNorm(8)
    attachment = attached(nn.Sequential(norm))
    x = torch.ones(2, 8)
    normed, total = norm(x, x, 2 * x)
    assert torch.equal(total, 4 * x)
    assert torch.equal(normed, norm(4 * x))
    assert attachment.sampler is not None
    assert {name: one.calls for name, one in attachment.sampler.totals().items()} == {"rms_norm.float32": 1}


@pytest.mark.parametrize(
    "changed",
    [
        {"variance_size_override": 4},
        {"fp32_residual": True},
        {"cast_x_before_out_mul": True},
        {"override_orig_dtype": torch.bfloat16},
        {"has_weight": False},
    ],
)
def test_a_norm_of_another_form_is_left(changed: dict[str, Any]) -> None:
    norm = RMSNorm(8)
    for name, value in changed.items():
        setattr(norm, name, value)
    attachment = attached(nn.Sequential(norm))
    assert not attachment.dispatcher.sites
    assert set(attachment.left) == {"rms_norm", "fused_add_rms_norm"}


def test_a_subclass_is_not_taken_for_the_layer() -> None:
    with pytest.raises(EngineError, match="nothing to hook"):
        attached(nn.Sequential(GemmaRMSNorm(8)))


def test_an_activation_that_the_engine_serves_with_a_kernel_of_its_own_is_left(subject: Subject) -> None:
    for module in subject.model.modules():
        if isinstance(module, SiluAndMul):
            module._forward_method = lambda x: x
    attachment = attached(subject.model)
    assert "one tensor" in attachment.left["silu_and_mul"]
    assert "silu_and_mul" not in {site.operator for site in attachment.dispatcher.sites}


def test_an_activation_of_unknown_width_is_left_and_told() -> None:
    attachment = attached(nn.Sequential(SiluAndMul(), RMSNorm(8)))
    assert "width" in attachment.left["silu_and_mul"]


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(EngineError, match="accelerator"):
        attached(nn.Sequential(RMSNorm(8)).to("meta"))


def test_nothing_of_this_needs_the_engine() -> None:
    for module in (sglang_operators, layer_hooks):
        source = Path(str(module.__file__)).read_text()
        assert "import sglang" not in source and "from sglang" not in source
