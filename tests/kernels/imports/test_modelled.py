"""Calls of a simulated engine are those of the model, step by step, and their time is the steps' length."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import TraceError
from kernels import catalogue, inputs
from kernels.imports.batching import Batching, Limits
from kernels.imports.imported import BLOCK_NS, Collector, Imported
from kernels.imports.modelled import Device, ModelledTraffic
from kernels.imports.request_traces import TracedRequest
from kernels.models.listing import model_operators
from kernels.models.step import StepBatch
from kernels.tally import Source
from tests.llama_config import CONFIG

MODEL = model_operators(CONFIG)
DEVICE = Device(tflops=1.0, gb_s=100.0)
BEGAN_NS = 1_700_000_000 * 10**9
requests = st.lists(
    st.builds(TracedRequest, st.integers(0, 40 * 10**9), st.integers(1, 90), st.integers(1, 12)),
    min_size=1,
    max_size=20,
).map(sorted)


def served(trace: list[TracedRequest], limits: Limits) -> Imported:
    collector = Collector("azure", Source("f", "m", "h"), {"engine": "simulated"})
    ModelledTraffic(MODEL, DEVICE, limits, collector).serve(iter(trace), BEGAN_NS)
    return collector.finish()


def test_an_engine_that_would_be_busy_for_centuries_is_refused() -> None:
    with pytest.raises(TraceError, match="until after the year 2262"):
        served([TracedRequest(0, 90, 12)], Limits(step_ns=10**18))


@given(requests, st.integers(1, 4), st.integers(0, 60), st.booleans())
def test_calls_are_those_of_every_step(trace: list[TracedRequest], sequences: int, more: int, chunked: bool) -> None:
    limits = Limits(sequences + more, sequences, chunked)
    found = served(trace, limits)
    wanted: Counter[tuple[str, int]] = Counter()
    length_ns = 0
    for step in Batching(limits).steps(trace):
        length_ns += step.length_ns
        for call in MODEL.calls(StepBatch((1,) * step.decodes, step.chunks)):
            if call.operator in catalogue.NAMES:
                wanted[call.operator, call.axes["tokens"]] += call.count
    counted: Counter[tuple[str, int]] = Counter()
    for workload in found.profile.workloads:
        counted[workload.operator, workload.axes["tokens"]] += workload.calls
        inputs.check_workload(catalogue.operator(workload.operator), workload)
    assert counted == wanted
    time_ns = sum(workload.time_ns for workload in found.profile.workloads)
    assert time_ns == pytest.approx(length_ns * found.covered_share, rel=1e-3)
    assert {one.operator.split()[0] for one in found.uncovered} <= {
        "attention_decode",
        "attention_prefill",
        "embedding",
    }
    assert found.profile.requests.count == len(trace)
    assert found.facts["requests"] == len(trace)
    assert found.facts["tokens"] == sum(one.prompt_tokens + one.generated_tokens - 1 for one in trace)


def test_time_is_shared_out_by_the_roofline() -> None:
    found = served([TracedRequest(0, 5, 1)], Limits(step_ns=10**9, token_ns=0))
    ours = {w.axes.get("out_features", w.operator): w for w in found.profile.workloads}
    by_bytes = {width: (5 * 64 + 64 * width + 5 * width) * 2 for width in (32, 96)}
    ratio = (ours[96].time_ns / ours[96].calls) / (ours[32].time_ns / ours[32].calls)
    assert ratio == pytest.approx(by_bytes[96] / by_bytes[32], rel=1e-3)


def test_windows_and_versions() -> None:
    trace = [TracedRequest(0, 5, 2), TracedRequest(3 * BLOCK_NS, 9, 2)]
    profile = served(trace, Limits()).profile
    assert profile.window_start_utc.startswith("2023-11-14T22:13:20")
    assert profile.versions == {"engine": "simulated"}
    assert profile.requests.prompt_tokens.maximum == 9
