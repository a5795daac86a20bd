"""A real SGLang, where `MILL_SGLANG_VENV` names an environment of it: it follows a signed channel, serves a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import records
from gristmill.hardware import local_cpu
from gristmill.kill_switch import FILE_VARIABLE
from gristmill.membership import VARIABLE, Membership
from gristmill.serving.model import ModelShape
from gristmill.serving.vllm_engine import model_config
from gristmill.trust import Channel
from tasks.engine_site import serving_site
from tests.gristmill.adapters import sglang_engine
from tests.gristmill.adapters.test_sglang_layers import NAMED, SITE
from tests.gristmill.publisher import Publisher

pytestmark = pytest.mark.skipif(not NAMED, reason="MILL_SGLANG_VENV names no environment with SGLang")
LAYERS, LIMIT_S, SWAP_S = 2, 400, 60
SHAPE = ModelShape(LAYERS, 64, 96, 4, 2, 16, 512)
SETTLED = len(sglang_engine.PROMPTS) * sglang_engine.TOKENS


class Engine:
    """The process, the registry that it follows, and the file that stops kernels in it."""

    def __init__(self, folder: Path) -> None:
        channel = Channel("canary", "eu", "tiny", local_cpu().key)
        self.publisher = Publisher(folder, channel)
        self.kill_file, self.log = folder / "kill", folder / "sglang.log"
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(model_config(SHAPE, "float32")))
        membership = Membership(
            fleet="eu",
            model="tiny",
            root_file=str(self.publisher.root_file),
            cache_dir=str(folder / "cache"),
            channel="canary",
            store=self.publisher.store.url,
            poll_s=0.2,
            sample_period=1,
            spool_s=3600,
        )
        environ = {
            **os.environ,
            VARIABLE: records.canonical_json(membership).decode(),
            FILE_VARIABLE: str(self.kill_file),
            "PYTHONPATH": f"{SITE}{os.pathsep}{serving_site(folder / 'site')}",
            "OMP_NUM_THREADS": "1",
        }
        script = Path(sglang_engine.__file__)
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(
                [f"{NAMED}/bin/python", "-P", str(script), str(model), "float32"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
                cwd=folder,
            )
        self._watchdog = threading.Timer(LIMIT_S, self.popen.kill)
        self._watchdog.start()
        self.front = self.heard()["front"]

    def ask(self, word: str) -> Any:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{word}\n")
        self.popen.stdin.flush()
        return self.heard()

    def heard(self) -> Any:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(sglang_engine.ANSWER):
                return json.loads(line.removeprefix(sglang_engine.ANSWER))
        raise AssertionError(f"the engine ended: {self.log.read_text()[-3000:]}")

    def end(self) -> None:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait()  # the watchdog is still there
        self._watchdog.cancel()
        self.popen.stdout.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("engine"))
    yield made
    made.end()


def calls(status: dict[str, Any]) -> dict[str, int]:
    return {name: one["calls"] for name, one in status["sampled"].items()}


def test_every_step_of_the_spawned_scheduler_is_sampled_and_its_requests_are_read(engine: Engine) -> None:
    engine.ask("run")
    status = engine.ask("status")
    assert status["pid"] != engine.front
    assert (status["problem"], status["unproven"], status["scheduler"]["problem"]) == ("", [], "")
    assert {"skinny_linear", "rotary_embedding"} <= set(status["left"])
    counted = calls(status)
    passes = counted["rms_norm.float32"]  # one per forward pass: the first norm has no residual
    assert passes == status["steps"] >= sglang_engine.TOKENS
    assert counted["fused_add_rms_norm.float32"] == 2 * LAYERS * passes
    assert counted["silu_and_mul.float32"] == LAYERS * passes
    assert status["scheduler"]["finished"] == len(sglang_engine.PROMPTS)
    assert status["scheduler"]["generated_tokens"] == SETTLED


def test_a_promoted_kernel_is_swapped_in_and_hit_and_one_word_ends_that(
    engine: Engine, compile_kernel: Callable[..., Path]
) -> None:
    plain = engine.ask("run")
    candidate, generation = engine.publisher.promote(compile_kernel("rms_norm").read_bytes())
    deadline = time.monotonic() + SWAP_S
    while engine.ask("status")["generation"] != generation and time.monotonic() < deadline:
        engine.ask("run")
    assert engine.ask("run") == plain
    (entry,) = engine.ask("status")["entries"]
    assert entry["candidate"] == candidate
    assert entry["hits"] >= sglang_engine.TOKENS and not entry["mismatches"]
    engine.kill_file.write_text("off")
    try:
        assert engine.ask("run") == plain
        stopped = engine.ask("status")
        assert engine.ask("run") == plain
        after = engine.ask("status")
        assert after["entries"] == stopped["entries"]
        assert calls(after) == calls(stopped)
        assert after["scheduler"] == stopped["scheduler"]
    finally:
        engine.kill_file.unlink()


def test_samples_and_requests_reach_the_store(engine: Engine) -> None:
    engine.ask("run")
    engine.ask("flush")
    for kind in ("operators", "requests"):
        assert list((engine.log.parent / "store").rglob(f"{kind}/*.parquet"))
