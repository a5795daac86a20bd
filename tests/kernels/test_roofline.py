from __future__ import annotations

import dataclasses
import time
from datetime import datetime
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.hardware import describe_cpu, local_cpu
from kernels import catalogue, inputs, roofline
from kernels.roofline import Peaks, floor_ns, roofline_ns

PEAKS = Peaks(
    hardware="test",
    cores=2,
    memory_bandwidth_gb_s=20.0,
    cache_bandwidth_gb_s=100.0,
    cache_ceiling_gb_s=600.0,
    gflops={"float32": 100.0, "bfloat16": 200.0},
    gflops_ceiling={"float32": 300.0, "bfloat16": 600.0},
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
)
LINEAR = catalogue.operator("skinny_linear")


def test_few_tokens_are_bound_by_the_weights_and_many_by_arithmetic() -> None:
    few = inputs.workload(LINEAR, "float32", tokens=1, in_features=1024, out_features=1024)
    many = inputs.workload(LINEAR, "float32", tokens=4096, in_features=1024, out_features=1024)
    weights, vectors = 4 * 1024 * 1024, 4 * 2 * 1024
    assert roofline_ns(LINEAR, few, PEAKS) == pytest.approx((weights + vectors) / 20.0)
    assert roofline_ns(LINEAR, many, PEAKS) == pytest.approx(2 * 4096 * 1024 * 1024 / 100.0)


def test_what_the_caches_hold_comes_from_the_caches() -> None:
    """Private caches, then the last level, then a mixture that nears the memory's bandwidth as the rotation grows."""
    peaks = dataclasses.replace(PEAKS, shared_cache_gb_s=50.0)
    reach = [roofline.reachable_gb_s(peaks, mebibytes << 20) for mebibytes in (1, 2, 3, 32, 64, 96, 4096)]
    assert reach[:4] == [100.0, 100.0, 50.0, 50.0]
    assert reach[4] == pytest.approx(1 / (0.5 / 50 + 0.5 / 20))
    assert reach == sorted(reach, reverse=True) and reach[-1] == pytest.approx(20.0, rel=0.01)
    no_cache = dataclasses.replace(peaks, l2_bytes=0, l3_bytes=0)
    assert roofline.reachable_gb_s(no_cache, 1 << 20) == 20.0


def test_half_the_bytes_take_half_the_time() -> None:
    wide, narrow = (
        inputs.workload(LINEAR, dtype, tokens=1, in_features=1024, out_features=1024)
        for dtype in ("float32", "bfloat16")
    )
    assert roofline_ns(LINEAR, wide, PEAKS) == pytest.approx(2 * roofline_ns(LINEAR, narrow, PEAKS))


@given(st.integers(1, 5000), st.sampled_from(catalogue.NAMES), st.sampled_from(["float32", "bfloat16"]), st.booleans())
def test_a_floor_lies_below_the_estimate(extent: int, name: str, dtype: str, cached: bool) -> None:
    definition = catalogue.operator(name)
    axes = {axis: 64 if axis in definition.constant_axes else extent for axis in definition.axes}
    workload = inputs.workload(definition, dtype, **axes)
    floor = floor_ns(definition, workload, PEAKS, cached=cached)
    rotated_bytes = 1 << 20 if cached else None
    assert 0 < floor < roofline_ns(definition, workload, PEAKS, rotated_bytes=rotated_bytes)
    assert floor <= floor_ns(definition, workload, PEAKS, cached=False)


def test_outputs_that_fit_the_cache_do_not_count_as_memory_traffic() -> None:
    softmax = catalogue.operator("softmax")
    workload = inputs.workload(softmax, "float32", rows=64, columns=1024)
    read_bytes = 64 * 1024 * 4
    assert floor_ns(softmax, workload, PEAKS, cached=False) == pytest.approx(read_bytes / 20.0 / roofline.MEMORY_MARGIN)
    tiny_cache = dataclasses.replace(PEAKS, l3_bytes=0)
    assert floor_ns(softmax, workload, tiny_cache, cached=False) == pytest.approx(
        2 * read_bytes / 20.0 / roofline.MEMORY_MARGIN
    )


def test_expanded_inputs_are_read_once() -> None:
    softmax = catalogue.operator("softmax")
    workload = inputs.workload(softmax, "float32", rows=1024, columns=64)
    layout = dataclasses.replace(workload.inputs[0], strides=(0, 1))
    expanded = dataclasses.replace(workload, inputs=(layout,))
    written = 1024 * 64 * 4
    assert roofline_ns(softmax, expanded, PEAKS) == pytest.approx((64 * 4 + written) / 20.0)


@pytest.fixture(scope="module")
def peaks() -> Peaks:
    return roofline.measure_peaks()


def test_this_machine_has_plausible_peaks(peaks: Peaks) -> None:
    assert peaks.hardware == local_cpu().key
    assert peaks.memory_bandwidth_gb_s > 0.1
    assert peaks.cache_ceiling_gb_s >= peaks.cache_bandwidth_gb_s > 0
    assert all(peaks.gflops_ceiling[dtype] >= peaks.gflops[dtype] > 0 for dtype in ("float32", "bfloat16"))
    assert records.parse(Peaks, records.canonical_json(peaks)) == peaks
    assert peaks.versions["torch"] and datetime.fromisoformat(peaks.measured_at).tzinfo
    assert peaks.cache_bandwidth_gb_s > peaks.memory_bandwidth_gb_s


def test_no_baseline_of_the_engine_beats_the_floor(peaks: Peaks) -> None:
    """Hot, and at its best of many calls: the floor would convict torch itself if it were too high."""
    sizes = {
        "tokens": 16,
        "hidden": 1024,
        "intermediate": 2816,
        "query_heads": 16,
        "key_heads": 4,
        "head_dim": 64,
        "rows": 64,
        "columns": 1024,
        "in_features": 1024,
        "out_features": 1024,
    }
    for definition in catalogue.operators():
        workload = inputs.workload(definition, "float32", **{axis: sizes[axis] for axis in definition.axes})
        tensors = inputs.materialise(definition, workload, "traffic", torch.Generator().manual_seed(0))
        scalars = [s.default for s in definition.scalars]
        for baseline in definition.baselines.values():
            best_ns = _best_ns(lambda call=baseline, t=tensors, s=scalars: call(*t, *s))
            assert best_ns > floor_ns(definition, workload, peaks, cached=True)


def _best_ns(call: object) -> int:
    times = []
    for _ in range(20):
        start = time.perf_counter_ns()
        call()  # type: ignore[operator]
        times.append(time.perf_counter_ns() - start)
    return min(times)


def test_peaks_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure() -> Peaks:
        measured.append(1)
        return dataclasses.replace(PEAKS, hardware=local_cpu().key, cores=local_cpu().cores)

    monkeypatch.setattr(roofline, "measure_peaks", measure)
    path = tmp_path / "new" / "peaks.json"
    first = roofline.cached_peaks(path)
    assert roofline.cached_peaks(path) == first
    assert len(measured) == 1
    assert [p.name for p in path.parent.iterdir()] == ["peaks.json"]


@pytest.mark.parametrize("spoil", ["garbage", "other hardware", "other cores", "older schema", "expired", "undatable"])
def test_peaks_of_another_machine_or_form_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    ours = dataclasses.replace(PEAKS, hardware=local_cpu().key, cores=local_cpu().cores)
    kept = {
        "garbage": b"{",
        "other hardware": records.canonical_json(dataclasses.replace(ours, hardware="riscv")),
        "other cores": records.canonical_json(dataclasses.replace(ours, cores=ours.cores + 1)),
        "expired": records.canonical_json(dataclasses.replace(ours, measured_at="2020-01-01T00:00:00+00:00")),
        "undatable": records.canonical_json(dataclasses.replace(ours, measured_at="yesterday")),
        "older schema": records.canonical_json(dataclasses.replace(ours, schema_version=0)),
    }[spoil]
    path = tmp_path / "peaks.json"
    path.write_bytes(kept)
    monkeypatch.setattr(roofline, "measure_peaks", lambda: ours)
    assert roofline.cached_peaks(path) == ours
    assert records.parse(Peaks, path.read_bytes()) == ours


rates = st.floats(0.1, 1e4)


@given(rates, rates, rates, rates)
def test_kept_rates_only_ever_rise(a: float, b: float, c: float, d: float) -> None:
    earlier = dataclasses.replace(PEAKS, memory_bandwidth_gb_s=a, shared_cache_gb_s=b, gflops={"float32": a})
    later = dataclasses.replace(PEAKS, memory_bandwidth_gb_s=c, shared_cache_gb_s=d, gflops={"float32": c}, l1_bytes=7)
    best = roofline.best_of(earlier, later)
    assert (best.memory_bandwidth_gb_s, best.shared_cache_gb_s) == (max(a, c), max(b, d))
    assert best.gflops == {"float32": max(a, c)} and best.l1_bytes == 7
    assert roofline.best_of(best, earlier).gflops == best.gflops


def test_a_measurement_among_busy_neighbours_does_not_lower_what_is_kept(tmp_path: Path) -> None:
    ours = dataclasses.replace(PEAKS, hardware=local_cpu().key, cores=local_cpu().cores)
    path = tmp_path / "peaks.json"
    roofline.keep_peaks(path, ours)
    low = dataclasses.replace(ours, memory_bandwidth_gb_s=3.0, gflops={"float32": 500.0, "bfloat16": 1.0})
    roofline.keep_peaks(path, low)
    kept = roofline.cached_peaks(path)
    assert kept.memory_bandwidth_gb_s == ours.memory_bandwidth_gb_s
    assert kept.gflops == {"float32": 500.0, "bfloat16": ours.gflops["bfloat16"]}


def test_a_failed_write_leaves_the_old_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "peaks.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(roofline, "measure_peaks", lambda: PEAKS)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        roofline.cached_peaks(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["peaks.json"]


def test_ceilings_follow_the_vector_width() -> None:
    wide = describe_cpu("flags : avx2 fma avx512f avx512_bf16", "x86_64", 2)
    narrow = describe_cpu("flags : avx2 fma", "x86_64", 2)
    assert roofline.ceiling_gflops(wide, 3.0) == {"float32": 2 * 3.0 * 64, "bfloat16": 2 * 3.0 * 128}
    assert roofline.ceiling_gflops(narrow, 3.0) == {"float32": 2 * 3.0 * 32, "bfloat16": 2 * 3.0 * 32}
    assert roofline.ceiling_cache_gb_s(wide, 3.0) == 2 * 3.0 * 192
