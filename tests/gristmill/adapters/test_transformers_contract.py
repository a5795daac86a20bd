"""The transformers adapter keeps the contract of all adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gristmill.adapters.transformers import attach
from tests.gristmill.adapters.adapter_contract import AdapterContract, Subject

LAYERS = 2


@pytest.fixture(name="subject")
def llama(tiny_model: Any) -> Subject:
    def run(model: Any, tokens: int) -> torch.Tensor:
        ids_BS = torch.randint(0, 128, (1, tokens), generator=torch.Generator().manual_seed(tokens))
        with torch.no_grad():
            return model(ids_BS).logits

    calls = {
        "rms_norm": LAYERS + 1,
        "fused_add_rms_norm": LAYERS,
        "silu_and_mul": LAYERS,
        "rotary_embedding": LAYERS,
        "skinny_linear": 7 * LAYERS + 1,
    }
    return Subject(tiny_model, lambda *arguments: attach(tiny_model, *arguments), run, calls)


class TestTransformers(AdapterContract):
    pass
