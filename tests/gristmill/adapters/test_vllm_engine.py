"""A real vLLM, where `MILL_VLLM_VENV` names an environment of it: its spawned worker is attached and sampled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.kill_switch import FILE_VARIABLE
from gristmill.traces import Request
from tasks.engine_site import serving_site, vllm_python
from tasks.serving_client import ServingProcess

pytestmark = pytest.mark.skipif(
    not os.environ.get("MILL_VLLM_VENV"), reason="MILL_VLLM_VENV names no environment with vLLM"
)
LAYERS = 2
SHAPE = {"layers": LAYERS, "hidden": 128, "intermediate": 256, "query-heads": 4, "key-heads": 2, "head-dim": 32}
REQUESTS = [Request(0.0, 8, 6)] * 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServingProcess, Path]]:
    folder = tmp_path_factory.mktemp("engine")
    kill_file, root_file, store = folder / "kill", folder / "root.json", folder / "store"
    kill_file.write_text("")
    root_file.write_text("{}")
    store.mkdir()
    flags = {**SHAPE, "vocabulary": 512, "dtype": "bfloat16", "spool-s": 3600}
    flags |= {"cache-dir": folder / "host", "root-file": root_file, "store": f"file://{store}"}
    site = serving_site(folder / "site")
    environ = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", FILE_VARIABLE: str(kill_file)}
    command = [str(vllm_python()), "-m", "gristmill.serving.vllm_engine"]
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    with ServingProcess(arguments, environ, folder / "vllm.log", command=command, cwd=site) as process:
        process.wait_ready(240)
        yield process, kill_file


def calls(status: dict[str, Any]) -> dict[str, int]:
    return {name: one["calls"] for name, one in status["sampled"].items()}


def test_every_step_of_a_spawned_worker_is_sampled_and_one_word_ends_that(
    engine: tuple[ServingProcess, Path],
) -> None:
    process, kill_file = engine
    before = process.status()
    assert before["pid"] != before["front"]
    assert before["problem"] == ""
    assert {"skinny_linear", "rotary_embedding"} <= set(before["left"])
    replay = process.replay(REQUESTS, 2, 1)
    assert [len(one["tokens"]) for one in replay["requests"]] == [6, 6, 6]
    after = process.status()
    counted = calls(after)
    passes = counted["rms_norm.bfloat16"]  # one per forward pass: the first norm has no residual
    assert passes >= 12
    assert counted["fused_add_rms_norm.bfloat16"] == 2 * LAYERS * passes
    assert counted["silu_and_mul.bfloat16"] == LAYERS * passes
    kill_file.write_text("off")
    process.replay(REQUESTS, 2, 1)
    assert calls(process.status()) == counted
    kill_file.write_text("")


def test_samples_and_requests_reach_the_store(engine: tuple[ServingProcess, Path]) -> None:
    process, kill_file = engine
    process.replay(REQUESTS, 3, 2)
    assert process.flush()["workers"][0]["calls"] > 0
    operators = list((kill_file.parent / "store").rglob("operators/*.parquet"))
    assert operators
