"""The SGLang adapter on the engine's own layers and registry: the contract of all adapters, where it can be imported.

Where it can't, `test_the_contract_holds_in_the_engines_environment` runs this file in the one that `MILL_SGLANG_VENV`
names; requirements/README.md says how to make it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill import records
from gristmill.membership import VARIABLE, Membership
from tests.gristmill.adapters import engine_environment
from tests.gristmill.adapters.adapter_contract import AdapterContract, Subject
from tests.gristmill.adapters.tiny_llama import subject as made_of

HERE = importlib.util.find_spec("sglang") is not None
NAMED = os.environ.get("MILL_SGLANG_VENV", "")
SITE = Path(__file__).parent / "sglang_site"
own = pytest.mark.skipif(not HERE, reason="SGLang cannot be imported in this environment")


@pytest.fixture(name="subject")
def own_layers() -> Iterator[Subject]:
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm

    from gristmill.adapters import sglang_operators

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield made_of(RMSNorm, SiluAndMul, sglang_operators.attach)
    torch.set_num_threads(threads)


@own
class TestSglang(AdapterContract):
    def test_the_structure_that_the_adapter_relies_on_is_there(self, subject: Subject) -> None:
        from gristmill.adapters import plugin, sglang

        sglang.check_version(sglang._version())
        plugin.check_structure("SGLang", sglang._structure)

    def test_a_graph_that_the_engine_compiles_has_its_plain_layers_and_ours_are_back_after(
        self, subject: Subject
    ) -> None:
        subject.attach(*without_tables())
        norm: Any = subject.model.get_submodule("head_norm")
        ours = norm._forward_method
        norm.enter_torch_compile(4)
        assert norm._forward_method == norm.forward_native
        norm.leave_torch_compile()
        assert norm._forward_method is ours

    def test_what_the_engine_reads_of_its_own_settings_is_there(self) -> None:
        from sglang.srt.server_args import ServerArgs

        from gristmill.adapters import sglang

        settings = inspect.signature(ServerArgs).parameters
        read = ("tp_size", "pp_size", "dp_size", "speculative_algorithm", "enable_torch_compile", "disaggregation_mode")
        assert set(read) <= set(settings)
        source = inspect.getsource(sglang.unproven)
        assert all(f"settings.{name}" in source for name in read)


def without_tables() -> tuple[Any, ...]:
    from gristmill.dispatch import Dispatcher

    return (Dispatcher(environ={}),)


@own
def test_the_engine_loads_the_plugin_and_its_registry_wraps_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sglang.srt.plugins as engine
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner

    from gristmill.adapters import sglang

    (tmp_path / "root.json").write_text("{}")
    membership = Membership("eu", "tiny", str(tmp_path / "root.json"), str(tmp_path / "cache"))
    point = importlib.metadata.EntryPoint(
        "gristmill", "gristmill.adapters.sglang:register", engine.GENERAL_PLUGINS_GROUP
    )
    monkeypatch.setattr(engine, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(engine, "_plugins_loaded", False)
    monkeypatch.setattr(engine.HookRegistry, "_hooks", type(engine.HookRegistry._hooks)(list))
    monkeypatch.setattr(engine.HookRegistry, "_patched", set())
    names = [target.rpartition(".")[0::2] for target in sglang._hooks()]
    classes = {f"{kind.__module__}.{kind.__name__}": kind for kind in (Scheduler, ModelRunner)}
    before = {(kind, name): getattr(classes[kind], name) for kind, name in names}
    for kind, name in names:  # so that they are put back
        monkeypatch.setattr(classes[kind], name, before[kind, name])
    monkeypatch.delenv(VARIABLE, raising=False)
    engine.load_plugins()
    assert all(getattr(classes[kind], name) is before[kind, name] for kind, name in names)
    monkeypatch.setenv(VARIABLE, records.canonical_json(membership).decode())
    monkeypatch.setattr(engine, "_plugins_loaded", False)
    engine.load_plugins()
    sglang.register()  # again, as the engine may
    engine.HookRegistry.apply_hooks()
    assert all(getattr(classes[kind], name).__wrapped__ is before[kind, name] for kind, name in names)
    assert all(len(hooks) == 1 for hooks in engine.HookRegistry._hooks.values())


@own
def test_the_requests_of_the_engine_are_read_as_it_writes_them() -> None:
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from gristmill.adapters.sglang_scheduler import finished_request

    request = Req("r", "", array("q", [5, 6, 7]), SamplingParams(max_new_tokens=4))
    request.output_ids.extend([1, 2])
    request.cached_tokens = 2
    for accepted in (2, 0, 1):
        request.spec_verify_ct += 1
        request.update_spec_correct_drafts_histogram(accepted)
    request.time_stats.scheduler_recv_time = 100.0
    found = finished_request(request, 1_700_000_000_000_000_000, 101.5)
    assert vars(found) == {
        "prompt_tokens": 3,
        "generated_tokens": 2,
        "arrival_ns": 1_699_999_998_500_000_000,
        "cached_tokens": 2,
        "drafts": 3,
        "accepted": (2, 1),
    }


@pytest.mark.skipif(HERE, reason="the tests above ran here")
@pytest.mark.skipif(not NAMED, reason="MILL_SGLANG_VENV names no environment with SGLang")
def test_the_contract_holds_in_the_engines_environment(tmp_path: Path) -> None:
    said = engine_environment.passes(NAMED, Path(__file__), tmp_path, SITE)
    assert "1 skipped" in said  # this test itself, and no other
