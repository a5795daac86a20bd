"""The vLLM adapter on the engine's own layers: the contract of all adapters, run where the engine can be imported.

Where it can't, `test_the_contract_holds_in_the_engines_environment` runs this file in the one that `MILL_VLLM_VENV`
names.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gristmill.dispatch import Dispatcher
from tests.gristmill.adapters import engine_environment
from tests.gristmill.adapters.adapter_contract import AdapterContract, Subject
from tests.gristmill.adapters.tiny_llama import subject as made_of

HERE = importlib.util.find_spec("vllm") is not None
NAMED = os.environ.get("MILL_VLLM_VENV", "")


@pytest.fixture(name="subject")
def own_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm

    from gristmill.adapters import vllm, vllm_operators

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    configuration = VllmConfig()
    configuration.compilation_config.custom_ops = ["all"]
    with set_current_vllm_config(configuration):
        for layer in vllm.LAYERS:
            vllm._stand_in(layer)
        yield made_of(RMSNorm, SiluAndMul, vllm_operators.attach)
    op_registry_oot.clear()
    torch.set_num_threads(threads)


@pytest.mark.skipif(not HERE, reason="vLLM cannot be imported in this environment")
class TestVllm(AdapterContract):
    def test_the_engine_builds_our_layers_and_its_own_switch_still_knows_them(self, subject: Subject) -> None:
        from vllm.config import get_current_vllm_config

        norm = subject.model.get_submodule("head_norm")
        assert type(norm).__name__ == "GristmillRMSNorm"
        get_current_vllm_config().compilation_config.custom_ops[:] = ["none"]
        left = getattr(subject.attach(Dispatcher(environ={})), "left", {})
        assert {"rms_norm", "fused_add_rms_norm", "silu_and_mul"} <= set(left)

    def test_the_structure_that_the_adapter_relies_on_is_there(self, subject: Subject) -> None:
        from gristmill.adapters import plugin, vllm

        vllm.check_version(vllm._version())
        plugin.check_structure("vLLM", vllm._structure)


@pytest.mark.skipif(HERE, reason="the tests above ran here")
@pytest.mark.skipif(not NAMED, reason="MILL_VLLM_VENV names no environment with vLLM")
def test_the_contract_holds_in_the_engines_environment(tmp_path: Path) -> None:
    assert "skipped" in engine_environment.passes(NAMED, Path(__file__), tmp_path)  # this test itself, and no other
