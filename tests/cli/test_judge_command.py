"""`./mill judge FILE --workloads FILE` from end to end: a wrong, a right and a broken source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli import __main__ as command_line
from gristmill import records
from kernels import catalogue
from kernels.inputs import workload
from tests.tasks.world import PEAKS

STARTUP = ("MILL_", "AWS_", "PREFECT_", "MLFLOW_")
RATES = {"float32": 1e6, "bfloat16": 1e6}
NO_MACHINE = replace(
    PEAKS,
    memory_bandwidth_gb_s=1e6,
    cache_bandwidth_gb_s=1e6,
    cache_ceiling_gb_s=1e6,
    gflops=RATES,
    gflops_ceiling=RATES,
    cores=len(os.sched_getaffinity(0)),
)
"""Peaks that nothing reaches: what is tested here is not the roofline."""
KERNEL = """#include "gristmill_kernel.h"
#include <cmath>
GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0];
    const float *weight = (const float *)call->inputs[1].data;
    float *out = (float *)call->outputs[0].data;
    for (int64_t t = 0; t < x.shape[0]; t++) {
        const float *row = (const float *)x.data + t * x.stride[0];
        double sum = 0;
        for (int64_t h = 0; h < SUMMED; h++) sum += (double)row[h] * row[h];
        float scale = (float)(1.0 / std::sqrt(sum / x.shape[1] + call->scalars[0]));
        for (int64_t h = 0; h < x.shape[1]; h++) out[t * x.shape[1] + h] = row[h] * scale * weight[h];
    }
    return 0;
}
"""
RIGHT = KERNEL.replace("SUMMED", "x.shape[1]")
WRONG = KERNEL.replace("SUMMED", "x.shape[1] / 8 * 8")


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command prints for a source, judged on two small workloads of a profile."""
    for name in [name for name in os.environ if name.startswith(STARTUP)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MILL_HOME", str(tmp_path))
    (tmp_path / "peaks.json").write_bytes(records.canonical_json(NO_MACHINE))
    definition = catalogue.operator("rms_norm")
    made = [workload(definition, "float32", tokens=tokens, hidden=100) for tokens in (1, 3)]
    (tmp_path / "profile.json").write_text(json.dumps({"workloads": records.encode(made)}))

    def judged(source: str, *arguments: str) -> str:
        (tmp_path / "kernel.cpp").write_text(source)
        line = ["judge", str(tmp_path / "kernel.cpp"), "--operator", "rms_norm", "--policy", "screening"]
        capfd.readouterr()
        assert command_line.main([*line, "--workloads", str(tmp_path / "profile.json"), *arguments]) == 0
        return capfd.readouterr().out

    return judged


def told(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_right_source_is_timed_on_the_profile_s_workloads(judged: Callable[..., str]) -> None:
    found = told(judged(RIGHT, "--json"))
    assert found["status"] in ("slower", "faster"), found["reason"]
    assert [row["workload"] for row in found["ratios"]] == [
        "rms_norm float32 tokens=1 hidden=100",
        "rms_norm float32 tokens=3 hidden=100",
    ]
    assert all(0 < row["low"] <= row["ratio"] <= row["high"] for row in found["ratios"]) and found["ratio"] > 0
    assert found["object_report"]["instructions"] > 20 and found["failing"] == []


def test_a_wrong_source_is_explained(judged: Callable[..., str]) -> None:
    found = told(judged(WRONG, "--json"))
    assert found["status"] == "incorrect" and found["ratios"] == [] and found["ratio"] is None
    assert 1 <= len(found["failing"]) <= 3
    sizes = [case["axes"]["tokens"] * case["axes"]["hidden"] for case in found["failing"]]
    assert sizes == sorted(sizes)
    text = judged(WRONG)
    assert text.startswith("incorrect: ") and "smallest failing calls" in text and "isolation: " in text
    assert "the tail of the loop is missing" in text


def test_a_broken_source_shows_its_first_error_with_its_line(judged: Callable[..., str]) -> None:
    text = judged(RIGHT.replace("double sum = 0;", "double sum = nothing;"))
    lines = text.splitlines()
    assert lines[0].startswith("build_failed: main.cpp:9:22: error: 'nothing' was not declared")
    assert "        double sum = nothing;" in lines[3] and "^~~~~~~" in lines[4]
