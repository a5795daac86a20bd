"""Traces that torch.profiler wrote here, and others as devices give them: which calls are ours, whose time is whose."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from gristmill.errors import TraceError
from gristmill.workload import TensorLayout, Workload, dense
from kernels import catalogue, inputs
from kernels.errors import EmptyProfileError
from kernels.imports.imported import Collector, Imported
from kernels.imports.torch_trace import NO_CALL, TorchTrace
from kernels.tally import Source

BEGAN_NS = 1_700_000_000 * 10**9


def imported(path: Path) -> Imported:
    trace = TorchTrace(path)
    trace.read()
    collector = Collector("torch", Source("f", "m", "h"), {})
    trace.collect(collector, BEGAN_NS)
    return collector.finish()


def call(name: str, start: float, length: float, shapes: list[Any], number: int = 0, **more: Any) -> dict[str, Any]:
    arguments = {
        "External id": number,
        "Input Dims": shapes,
        "Input type": ["c10::BFloat16" if shape else "" for shape in shapes],
        **more,
    }
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": arguments}


def kernel(number: int, length: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "void gemm<...>",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": length,
        "args": {"External id": number, "correlation": 5},
    }


def write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events), "baseTimeNanoseconds": BEGAN_NS}))
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch.profiler itself writes of a few calls."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    x, weight, scale = torch.randn(2, 3, 8), torch.randn(4, 8), torch.ones(8)
    wide = torch.randn(6, 16)[:, :8]
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(3):
            torch.nn.functional.linear(x, weight)
            torch.nn.functional.rms_norm(x, (8,), scale, 1e-6)
        torch.nn.functional.linear(x, weight, torch.ones(4))  # a bias: not ours
        torch.nn.functional.linear(wide, weight)
        torch.softmax(x, -1)
        torch.softmax(x, 0)  # not over the last dimension
        torch.mm(torch.randn(5, 8), weight.t())
        torch.mm(torch.randn(5, 8), torch.randn(8, 4))  # nobody says that this is a weight
        torch.nn.functional.gelu(x)
    profiler.export_chrome_trace(str(path))
    return path


def test_what_the_profiler_writes(recorded: Path) -> None:
    found = imported(recorded)
    calls = {
        (w.operator, w.axes.get("tokens", w.axes.get("rows")), w.inputs[0].contiguous): w
        for w in found.profile.workloads
    }
    assert {key: w.calls for key, w in calls.items()} == {
        ("skinny_linear", 6, True): 3,
        ("skinny_linear", 6, False): 1,
        ("skinny_linear", 5, True): 1,
        ("rms_norm", 6, True): 3,
        ("softmax", 6, True): 1,
    }
    for workload in found.profile.workloads:
        inputs.check_workload(catalogue.operator(workload.operator), workload)
        assert workload.time_ns > 0
    assert calls["skinny_linear", 6, False].inputs[0] == TensorLayout((6, 8), (16, 1), "float32")
    assert calls["skinny_linear", 5, True].inputs == (dense((5, 8), "float32"), dense((4, 8), "float32"))
    names = {one.operator: one.calls for one in found.uncovered}
    assert {"aten::gelu": 1, "aten::linear": 1, "aten::mm": 1, "aten::softmax": 1}.items() <= names.items()
    assert found.covered_share + sum(one.time_share for one in found.uncovered) == pytest.approx(1)
    assert found.profile.window_start_utc.startswith("20")


def test_a_packed_trace_is_the_same(recorded: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(recorded.read_bytes()))
    assert imported(packed) == imported(recorded)


def test_a_trace_without_shapes_says_what_to_do(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(2) + 1
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    with pytest.raises(TraceError, match="record_shapes=True"):
        imported(path)


LINEAR = [[4, 8], [16, 8], []]


def test_time_on_the_device_is_that_of_the_kernels_inside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        call("aten::linear", 0, 10, LINEAR, 1),
        call("aten::addmm", 2, 5, [], 2),
        kernel(2, 700),
        kernel(1, 50),
        call("aten::gelu", 20, 10, [[4, 8]], 3),
        kernel(3, 250),
        kernel(99, 1000),
    )
    found = imported(path)
    (workload,) = found.profile.workloads
    assert (workload.time_ns, workload.dtype) == (750_000, "bfloat16")
    assert found.covered_share == pytest.approx(0.375)
    assert [(one.operator, one.time_share) for one in found.uncovered] == [(NO_CALL, 0.5), ("aten::gelu", 0.125)]


def test_numbers_that_older_profilers_wrote_as_text(tmp_path: Path) -> None:
    late = call("aten::linear", 0, 10, LINEAR, **{"External id": "7"})
    (workload,) = imported(write(tmp_path / "t", late, kernel(7, 30))).profile.workloads
    assert workload.time_ns == 30_000


def test_time_on_the_cpu_is_counted_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        call("aten::softmax", 100, 30, [[4, 8]], **{"Concrete Inputs": ["", "-1"]}),
        call("aten::_softmax", 105, 20, [[4, 8]], **{"Concrete Inputs": ["", "-1"]}),
        call("module", 0, 90, []),
        call("aten::linear", 10, 50, LINEAR),
        call("aten::mm", 20, 30, [[4, 8], [8, 16]], **{"Input Strides": [[8, 1], [1, 8]]}),
    )
    found = imported(path)
    assert {(w.operator, w.calls): w.time_ns for w in found.profile.workloads} == {
        ("skinny_linear", 1): 50_000,
        ("softmax", 1): 30_000,
    }
    assert [(one.operator, one.calls) for one in found.uncovered] == [("module", 1)]
    assert found.covered_share == pytest.approx(80 / 120)


@pytest.mark.parametrize(
    ("name", "shapes", "more", "wanted"),
    [
        ("_C::rms_norm", [[5, 8], [5, 8], [8], []], {}, ("rms_norm", {"tokens": 5, "hidden": 8})),
        ("sgl_kernel::rmsnorm", [[5, 8], [5, 8], [8], []], {}, ("rms_norm", {"tokens": 5, "hidden": 8})),
        ("_C::fused_add_rms_norm", [[5, 8], [5, 8], [8], []], {}, ("fused_add_rms_norm", {"tokens": 5, "hidden": 8})),
        ("_C::silu_and_mul", [[5, 8], [5, 16]], {}, ("silu_and_mul", {"tokens": 5, "intermediate": 8})),
        (
            "_C::rotary_embedding",
            [[5], [5, 32], [5, 16], [], [99, 8], []],
            {"Concrete Inputs": ["", "", "", "8", "", "True"]},
            ("rotary_embedding", {"tokens": 5, "query_heads": 4, "key_heads": 2, "head_dim": 8}),
        ),
        (
            "gristmill::rotary_embedding",
            [[1, 5, 4, 8], [1, 5, 2, 8], [5, 8], [5, 8], []],
            {},
            ("rotary_embedding", {"tokens": 5, "query_heads": 4, "key_heads": 2, "head_dim": 8}),
        ),
        (
            "gristmill::skinny_linear",
            [[2, 5, 8], [16, 8], []],
            {},
            ("skinny_linear", {"tokens": 10, "in_features": 8, "out_features": 16}),
        ),
    ],
)
def test_operators_of_engines(
    name: str, shapes: list[Any], more: dict[str, Any], wanted: tuple[str, dict[str, int]], tmp_path: Path
) -> None:
    (workload,) = imported(write(tmp_path / "t", call(name, 1, 2, shapes, **more))).profile.workloads
    assert (workload.operator, workload.axes) == wanted
    inputs.check_workload(catalogue.operator(workload.operator), workload)
    assert isinstance(workload, Workload)


@pytest.mark.parametrize(
    ("name", "shapes", "more"),
    [
        ("aten::linear", [[4, 8], [16, 9], []], {}),
        ("aten::linear", [[4, 8], [16, 8], [16]], {}),
        ("aten::linear", [[0, 8], [16, 8], []], {}),
        ("aten::linear", [], {}),
        ("aten::linear", [[4, 8], [16, 8], []], {"Input type": ["c10::Half", "c10::Half", ""]}),
        ("aten::mm", [[4, 8], [8, 16]], {}),
        ("aten::rms_norm", [[4, 8], [], [], []], {}),
        ("aten::softmax", [[4, 8], [], []], {}),
        ("_C::silu_and_mul", [[5, 8], [5, 8]], {}),
        ("_C::rotary_embedding", [[5], [5, 32], [5, 16], [], [99, 8], []], {}),
        ("gristmill::softmax", [[4]], {}),
        ("aten::linear", [[1 << 62, 8], [16, 8], []], {}),
        ("aten::linear", [[4, 8], [16, 8], []], {"Input Strides": [[1 << 70, 1], [8, 1], []]}),
        ("gristmill::fused_add_rms_norm", [[4, 8], [4, 9], [8]], {}),
    ],
)
def test_what_cannot_be_sure_is_not_ours(name: str, shapes: list[Any], more: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "t", call(name, 1, 2, shapes, **more))
    with pytest.raises(EmptyProfileError, match=name):
        imported(path)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (7, "event 0, event: found '7'"),
        (call("aten::linear", -1, 1, LINEAR), "event 0, ts"),
        (call("aten::linear", 1, 1e300, LINEAR), "event 0, dur"),
        (call("", 1, 1, LINEAR), "event 0, name"),
        ({**call("aten::linear", 1, 1, LINEAR), "args": []}, "event 0, args"),
        (call("aten::linear", 1, 1, LINEAR, **{"Input Strides": 5}), "event 0, Input Strides"),
        (call("aten::linear", 1, 1, LINEAR, **{"Input type": "float"}), "event 0, Input type"),
        (call("aten::linear", 1, 1, LINEAR, **{"External id": "x"}), "event 0, External id"),
        ({"ph": "M"}, "no operator call"),
    ],
)
def test_damage_names_the_event(event: Any, named: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps([event]))
    with pytest.raises(TraceError) as caught:
        imported(path)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


leaves = st.one_of(st.none(), st.integers(-5, 5), st.floats(0, 5), st.just("aten::linear"), st.lists(st.integers(0, 9)))
events = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["cpu_op", "kernel"])},
    optional={
        **dict.fromkeys(("name", "pid", "tid", "ts", "dur", "args"), leaves),
        "args": st.dictionaries(
            st.sampled_from(["Input Dims", "Input Strides", "Input type", "External id"]),
            st.one_of(leaves, st.lists(leaves, max_size=3)),
        ),
    },
)


@given(st.lists(st.one_of(events, leaves), max_size=4))
def test_any_json_is_a_trace_or_one_line(tmp_path_factory: pytest.TempPathFactory, found: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_text(json.dumps({"traceEvents": found}))
    try:
        imported(path)
    except (TraceError, EmptyProfileError) as error:
        assert "\n" not in str(error)
