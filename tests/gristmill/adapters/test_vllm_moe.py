"""Tuned configurations in vLLM's own lookup: each number of tokens gets its own, or what it got before.

Where the engine can't be imported, `test_it_holds_in_the_engines_environment` runs this file in the one that
`MILL_VLLM_VENV` names.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.adapters import vllm_tuned
from gristmill.tuned_table import BaselineKey, TunedFile, TunedRange
from tests.gristmill.adapters import engine_environment

HERE = importlib.util.find_spec("vllm") is not None
NAMED = os.environ.get("MILL_VLLM_VENV", "")
EXPERTS, INTERMEDIATE, HIDDEN, TOP_K = 8, 14336, 4096, 2
W1, W2 = (EXPERTS, 2 * INTERMEDIATE, HIDDEN), (EXPERTS, HIDDEN, INTERMEDIATE)
OWN_DEVICE = "NVIDIA_H200"
"""For which the engine brings a file of its own for these experts."""
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 96, 97, 128, 129, 512, 513, 1024, 1032, 1040, 4096, 20_000, 300_000)
ENDS = st.lists(st.integers(1, 2048), min_size=2, max_size=6, unique=True).map(sorted)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["cpu", OWN_DEVICE])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engine's module on a device that it has no file for, and on one that it has."""
    from vllm.model_executor.layers.fused_moe import fused_moe

    monkeypatch.delenv(vllm_tuned.VARIABLE, raising=False)
    monkeypatch.setattr(fused_moe, "get_device_name_as_file_name", lambda *_: request.param)
    fused_moe.get_moe_configs.cache_clear()
    yield fused_moe
    fused_moe.get_moe_configs.cache_clear()


def looked_up(engine: Any, tokens: int) -> dict[str, int]:
    return dict(engine.try_get_optimal_moe_config(W1, W2, TOP_K, None, tokens))


@pytest.mark.skipif(not HERE, reason="vLLM cannot be imported in this environment")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ends=ENDS)
def test_each_number_of_tokens_gets_its_own_or_what_it_got_before(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int]
) -> None:
    name = engine.get_config_file_name(EXPERTS, INTERMEDIATE, None)
    assert name == vllm_tuned.file_name(EXPERTS, INTERMEDIATE, engine.get_device_name_as_file_name(), None)
    monkeypatch.delenv(vllm_tuned.VARIABLE, raising=False)
    engine.get_moe_configs.cache_clear()
    baseline = _baseline(engine)
    ranges = tuple(
        TunedRange(low, high, {"BLOCK_SIZE_M": low}) for low, high in zip(ends[::2], ends[1::2], strict=False)
    )
    numbers = sorted({*EDGES, *(end + by for end in ends for by in (-1, 0, 1))} - {0})
    before = {tokens: looked_up(engine, tokens) for tokens in numbers}
    file = TunedFile(name, {}, ranges, baseline)
    vllm_tuned.write(tmp_path / vllm_tuned.FOLDER, name, vllm_tuned.content(file))
    monkeypatch.setenv(vllm_tuned.VARIABLE, str(tmp_path / vllm_tuned.FOLDER))
    engine.get_moe_configs.cache_clear()
    for tokens in numbers:
        inside = next((one for one in ranges if one.low <= tokens <= one.high), None)
        assert looked_up(engine, tokens) == (inside.configuration if inside else before[tokens]), tokens


_KEPT: dict[str, tuple[BaselineKey, ...]] = {}


def _baseline(engine: Any) -> tuple[BaselineKey, ...]:
    """Asking the formula for every number of tokens takes a second."""
    device = engine.get_device_name_as_file_name()
    if device not in _KEPT:
        _KEPT[device] = vllm_tuned.engine_baseline(EXPERTS, INTERMEDIATE, HIDDEN, TOP_K, None)
    return _KEPT[device]


@pytest.mark.skipif(not HERE, reason="vLLM cannot be imported in this environment")
@pytest.mark.parametrize("device", ["NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "a/b  c"])
@pytest.mark.parametrize(("dtype", "block_shape"), [(None, None), ("fp8_w8a8", [128, 128]), ("int4_w4a16", [0, 0])])
def test_files_are_named_as_the_engine_names_them(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: str | None, block_shape: list[int] | None
) -> None:
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "get_device_name", classmethod(lambda *_: device))
    named = fused_moe.get_device_name_as_file_name
    monkeypatch.setattr(fused_moe, "get_device_name_as_file_name", named.__wrapped__)  # without what it remembers
    expected = fused_moe.get_config_file_name(8, 64, dtype, block_shape)
    assert vllm_tuned.file_name(8, 64, device, dtype, block_shape) == expected


@pytest.mark.skipif(HERE, reason="the tests above ran here")
@pytest.mark.skipif(not NAMED, reason="MILL_VLLM_VENV names no environment with vLLM")
def test_it_holds_in_the_engines_environment(tmp_path: Path) -> None:
    assert "1 skipped" in engine_environment.passes(NAMED, Path(__file__), tmp_path)  # this test itself, and no other
