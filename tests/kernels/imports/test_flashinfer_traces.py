"""FlashInfer-Bench's own records, read as it writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import TraceError
from kernels import catalogue, flashinfer_schema, inputs
from kernels.errors import EmptyProfileError, SchemaError
from kernels.flashinfer_documents import dump
from kernels.imports.flashinfer_traces import collect
from kernels.imports.imported import Collector, Imported
from kernels.imports.modelled import Device
from kernels.tally import Source

REFERENCE = "def run(*inputs):\n    return inputs[0]\n"
NORM: dict[str, Any] = {
    "name": "rmsnorm_h64",
    "op_type": "rmsnorm",
    "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 64}},
    "inputs": {
        "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"},
    },
    "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}},
    "reference": REFERENCE,
}
GEMM: dict[str, Any] = {
    "name": "gemm_n32_k64",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 32}, "K": {"type": "const", "value": 64}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "bfloat16"}, "B": {"shape": ["N", "K"], "dtype": "bfloat16"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "bfloat16"}},
    "reference": REFERENCE,
}
HALF = {
    **GEMM,
    "name": "gemm_half",
    "inputs": {name: {**tensor, "dtype": "float16"} for name, tensor in GEMM["inputs"].items()},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
}


def trace(definition: str, uuid: str, latency_ms: float | None = None, status: str = "PASSED", **axes: int) -> str:
    evaluation: dict[str, Any] | None = None
    if latency_ms is not None:
        evaluation = {
            "status": status,
            "environment": {"hardware": "NVIDIA_H100", "libs": {"torch": "2.8"}},
            "timestamp": "2026-01-01T00:00:00",
            "log": "",
            "correctness": {"max_relative_error": "NaN", "max_absolute_error": 0.0, "extra": {"a": [1]}},
            "performance": {"latency_ms": latency_ms, "reference_latency_ms": 9.0, "speedup_factor": 2.0},
        }
    workload = {"axes": axes, "inputs": {"A": {"type": "random"}}, "uuid": uuid}
    return json.dumps({"definition": definition, "workload": workload, "solution": "s", "evaluation": evaluation})


def data_set(folder: Path, definitions: list[dict[str, Any]], lines: list[str]) -> Path:
    (folder / "definitions" / "x").mkdir(parents=True)
    (folder / "traces").mkdir()
    for definition in definitions:
        (folder / "definitions" / "x" / f"{definition['name']}.json").write_text(json.dumps(definition))
    (folder / "traces" / "all.jsonl").write_text("\n".join(lines))
    return folder


def imported(*paths: Path) -> Imported:
    collector = Collector("flashinfer", Source("f", "m", "h"), {})
    collect(paths, Device(100, 1000), collector, 10**18)
    return collector.finish()


def test_the_fastest_solution_that_passed_is_the_time_of_a_workload(tmp_path: Path) -> None:
    lines = [
        trace("rmsnorm_h64", "a", 0.5, batch_size=7),
        trace("rmsnorm_h64", "a", 0.25, batch_size=7),
        trace("rmsnorm_h64", "a", 0.1, "INCORRECT_NUMERICAL", batch_size=7),
        trace("rmsnorm_h64", "b", batch_size=1),
        trace("gemm_n32_k64", "c", 0.75, M=4),
        trace("gemm_half", "d", 1.0, M=4),
        trace("elsewhere", "e", 1.0, M=4),
    ]
    found = imported(data_set(tmp_path, [NORM, GEMM, HALF], lines))
    assert {(w.operator, w.axes["tokens"]): (w.calls, w.time_ns) for w in found.profile.workloads} == {
        ("rms_norm", 7): (1, 250_000),
        ("rms_norm", 1): (1, 0),
        ("skinny_linear", 4): (1, 750_000),
    }
    for workload in found.profile.workloads:
        inputs.check_workload(catalogue.operator(workload.operator), workload)
    assert found.covered_share == pytest.approx(0.5)
    assert found.uncovered[0].operator == "gemm gemm_half"
    assert found.facts == {
        "workloads": 4,
        "times that were measured": 2,
        "workloads of definitions that are not here": 1,
    }


def test_without_any_measurement_time_is_modelled(tmp_path: Path) -> None:
    found = imported(data_set(tmp_path, [NORM], [trace("rmsnorm_h64", "a", batch_size=1000)]))
    assert found.profile.workloads[0].time_ns == pytest.approx(2 * (2 * 1000 * 64 + 64) * 2 / 1000, rel=0.01)
    assert found.facts["times that were measured"] == 0


def test_what_we_export_comes_back(tmp_path: Path) -> None:
    silu = catalogue.operator("silu_and_mul")
    document = flashinfer_schema.export_definition(silu, "float32", {"intermediate": 32})
    workload = inputs.workload(silu, "float32", tokens=5, intermediate=32)
    exported = json.loads(dump(flashinfer_schema.export_workload(silu, workload)))
    line = json.dumps({"definition": document.name, "workload": exported})
    found = imported(data_set(tmp_path, [json.loads(dump(document))], [line]))
    assert found.profile.workloads[0].digest == workload.digest


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "row 1: not JSON"),
        ("{}", "row 1: found"),
        ('{"definition": "x", "workload": {"axes": {}}}', "workload.uuid"),
        ('{"definition": "x", "workload": {"axes": {"M": "4"}, "uuid": "a"}}', "workload.axes"),
        ('{"definition": "x", "workload": {"axes": {}, "uuid": "a"}, "evaluation": 5}', "latency_ms"),
        (trace("x", "a", -1.0, M=4), "latency_ms"),
    ],
)
def test_damage_is_one_line(line: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        imported(data_set(tmp_path, [GEMM], [line]))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = data_set(tmp_path, [GEMM], [trace("gemm_n32_k64", "a", M=4)])
    with pytest.raises(TraceError, match="a definition"):
        imported(folder / "traces")
    with pytest.raises(TraceError, match="workloads or traces"):
        imported(folder / "definitions")
    (folder / "definitions" / "x" / "broken.json").write_text('{"name": 7}')
    with pytest.raises(SchemaError, match=r"broken\.json"):
        imported(folder)


def test_axes_that_do_not_fit_are_not_ours(tmp_path: Path) -> None:
    turned = {**GEMM, "inputs": {**GEMM["inputs"], "B": {"shape": ["K", "N"], "dtype": "bfloat16"}}}
    lines = [trace("gemm_n32_k64", "a", 1.0, M=4), trace("rmsnorm_h64", "b", 1.0, batch_size=0)]
    with pytest.raises(EmptyProfileError, match="gemm gemm_n32_k64"):
        imported(data_set(tmp_path, [turned, NORM], lines))


@pytest.mark.parametrize("tokens", [1 << 62, 10**30])
def test_a_call_that_no_machine_holds_is_not_ours(tokens: int, tmp_path: Path) -> None:
    """The profile that held it could not be read again."""
    with pytest.raises(EmptyProfileError, match="rmsnorm rmsnorm_h64"):
        imported(data_set(tmp_path, [NORM], [trace("rmsnorm_h64", "a", batch_size=tokens)]))


def test_two_definitions_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = data_set(tmp_path, [NORM], [trace("rmsnorm_h64", "a", batch_size=4)])
    (folder / "definitions" / "again.json").write_text(json.dumps(NORM))
    assert imported(folder).profile.workloads
    wide = {**NORM, "axes": {**NORM["axes"], "hidden_size": {"type": "const", "value": 128}}}
    (folder / "definitions" / "wide.json").write_text(json.dumps(wide))
    with pytest.raises(TraceError, match="another definition is named 'rmsnorm_h64' as well"):
        imported(folder)


def test_a_definition_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.imports.trace_file.MAX_LINE_CHARACTERS", 100)
    with pytest.raises(TraceError, match="has more than 100 characters"):
        imported(data_set(tmp_path, [NORM], [trace("rmsnorm_h64", "a", batch_size=4)]))


@given(st.integers(0, 400), st.text(max_size=2))
def test_a_spoiled_line_is_a_trace_or_one_line(tmp_path_factory: pytest.TempPathFactory, place: int, text: str) -> None:
    whole = trace("gemm_n32_k64", "a", 0.5, M=4)
    place %= len(whole)
    folder = tmp_path_factory.mktemp("set")
    data_set(folder, [GEMM], [whole[:place] + text + whole[place + len(text) :]])
    try:
        imported(folder)
    except (TraceError, EmptyProfileError) as error:
        assert "\n" not in str(error)
