"""What the demo on vLLM decides by itself: on which cores kernels are proven, and what is told at the end."""

from __future__ import annotations

import json
import os
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.demo_vllm_report import facts, outcomes, summary
from flows.demo_vllm import VllmDemoSettings, engine_cores, on_cores
from gristmill import records
from registry.promotion import Decision
from tasks.engine_trial import ENGINE, KERNELS, ArmTimes, ReplayPair, Start, Trial
from tasks.report_data import DemoReport


@given(st.sets(st.integers(0, 500), min_size=1))
def test_the_engine_leaves_one_core_to_its_other_processes(usable: set[int]) -> None:
    cores = engine_cores(usable)
    assert set(cores) <= usable
    assert len(cores) == max(1, len(usable) - 1)


def test_what_is_started_meanwhile_has_as_many_cores_and_no_longer() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), on_cores(engine_cores(before)[:1]):
        assert len(os.sched_getaffinity(0)) == 1
        raise ZeroDivisionError
    assert os.sched_getaffinity(0) == before


def test_another_engine_is_another_demo() -> None:
    assert VllmDemoSettings().options != VllmDemoSettings(dtype="float32").options
    assert "vllm" in VllmDemoSettings().options


def result(trial: Trial, decision: Decision) -> Any:
    """Two operators, of which one was searched, in vain."""
    ranked = [
        types.SimpleNamespace(operator=name, dtype="bfloat16", time_share=share)
        for name, share in (("rms_norm", 0.8), ("silu_and_mul", 0.2))
    ]
    search = types.SimpleNamespace(operator="rms_norm", dtype="bfloat16", trials=7, statuses={"faster": 1})
    return types.SimpleNamespace(
        artifacts=(),
        captured=types.SimpleNamespace(ranked=ranked),
        search=types.SimpleNamespace(operators=(search,)),
        trial=trial,
        decision=decision,
        status={"left": {"skinny_linear": "packed"}},
        latencies_s={},
    )


def measured(ratio: float) -> Trial:
    pairs = tuple(
        ReplayPair(0, 4, ENGINE, ArmTimes(100.0, 0.5, 0.04), ArmTimes(100.0 * ratio, 0.5, 0.04)) for _ in range(3)
    )
    start = Start(pairs, {"one": 5}, 0, 3, 9, (), {ENGINE: {"rms_norm": 2000.0}, KERNELS: {"rms_norm": 1000.0}})
    return Trial((start, start), 1)


def test_nothing_to_promote_is_told_with_the_reason_of_each_operator() -> None:
    nothing = result(Trial((), 1), Decision(False, "no gain survived"))
    told = {one.operator: one.outcome for one in outcomes(nothing)}
    assert told["rms_norm"] == "no gain survived: 7 candidates, 1 faster at first"
    assert told["silu_and_mul"].startswith("not searched")
    assert told["skinny_linear"] == "stays with the engine: packed"
    text = summary(nothing, 61.0, 2**30)
    assert "no gain worth promoting: no gain survived" in text
    assert "tokens/s" not in text
    assert not facts(nothing, DemoReport("t", "now", "host", {})).promoted


def test_a_trial_is_told_by_measure_and_concurrency_and_goes_into_json() -> None:
    found = result(measured(1.25), Decision(True, "at least 1.25x"))
    text = summary(found, 61.0, 2**30)
    assert "1.250x" in text and "released: at least 1.25x" in text
    assert "all 18 greedy tokens" in text
    encoded = json.loads(json.dumps(records.encode(facts(found, DemoReport("t", "now", "host", {})))))
    assert encoded["ratios"]["tokens_per_s"]["4"] == {"middle": 1.25, "low": 1.25, "high": 1.25}
    assert len(encoded["trial"]["starts"]) == 2
