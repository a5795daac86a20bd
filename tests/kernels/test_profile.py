from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.errors import EmptyProfileError, ProfileVersionError
from kernels.profile import (
    RankedOperator,
    RequestStatistics,
    TrafficProfile,
    parse,
    rank,
    split_budget,
    unknown,
)
from kernels.roofline import Peaks, roofline_ns

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


def call_pattern(name: str, tokens: int, calls: int, time_ns: int, dtype: str = "float32") -> Workload:
    definition = catalogue.operator(name)
    axes = {axis: 64 if axis in definition.constant_axes else tokens for axis in definition.axes}
    return dataclasses.replace(inputs.workload(definition, dtype, **axes), calls=calls, time_ns=time_ns)


def traffic(*workloads: Workload) -> TrafficProfile:
    return TrafficProfile(
        fleet="f",
        model="m",
        hardware="h",
        window_start_utc="2026-12-01T00:00:00+00:00",
        window_end_utc="2026-12-01T01:00:00+00:00",
        versions={"torch": "2.13.0"},
        workloads=workloads,
        requests=RequestStatistics(),
        dropped=0,
    )


workloads = st.lists(
    st.builds(
        call_pattern,
        st.sampled_from(catalogue.NAMES),
        st.integers(1, 512),
        st.integers(1, 1000),
        st.integers(1, 10**9),
        st.sampled_from(["float32", "bfloat16"]),
    ),
    min_size=1,
    max_size=12,
).map(lambda items: traffic(*items))


def test_a_profile_is_a_record() -> None:
    profile = traffic(call_pattern("rms_norm", 4, 10, 1000))
    assert records.parse(TrafficProfile, records.canonical_json(profile)) == profile


@given(workloads)
def test_shares_add_up_and_savings_never_exceed_them(profile: TrafficProfile) -> None:
    ranked = rank(profile, PEAKS)
    assert math.isclose(sum(r.time_share for r in ranked), 1.0)
    assert all(0 <= r.headroom <= 1 and r.saving_share <= r.time_share for r in ranked)
    assert [r.saving_share for r in ranked] == sorted((r.saving_share for r in ranked), reverse=True)
    assert sum(r.workloads for r in ranked) == len(profile.workloads)


@given(workloads, st.randoms(use_true_random=False))
def test_ranking_does_not_depend_on_the_order_of_workloads(profile: TrafficProfile, rng: object) -> None:
    shuffled = list(profile.workloads)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    for one, other in zip(rank(profile, PEAKS), rank(traffic(*shuffled), PEAKS), strict=True):
        assert (one.operator, one.dtype) == (other.operator, other.dtype)
        assert one.saving_share == pytest.approx(other.saving_share)


def test_headroom_is_what_the_roofline_leaves() -> None:
    pattern = call_pattern("skinny_linear", 4, calls=10, time_ns=0)
    best_ns = roofline_ns(catalogue.operator("skinny_linear"), pattern, PEAKS)
    measured = dataclasses.replace(pattern, time_ns=round(10 * best_ns * 4))
    (ranked,) = rank(traffic(measured), PEAKS)
    assert ranked.headroom == pytest.approx(0.75, rel=1e-3)


def test_an_operator_at_its_roofline_ranks_below_a_smaller_one_that_is_far_from_it() -> None:
    pattern = call_pattern("skinny_linear", 4, calls=1000, time_ns=0)
    at_limit_ns = round(1000 * roofline_ns(catalogue.operator("skinny_linear"), pattern, PEAKS))
    large = dataclasses.replace(pattern, time_ns=at_limit_ns)
    small = call_pattern("rms_norm", 4, calls=1, time_ns=at_limit_ns // 3)
    assert [r.operator for r in rank(traffic(large, small), PEAKS)] == ["rms_norm", "skinny_linear"]


def test_nothing_timed_is_an_empty_profile() -> None:
    for profile in (traffic(), traffic(call_pattern("rms_norm", 4, calls=10, time_ns=0))):
        with pytest.raises(EmptyProfileError, match="fleet 'f', model 'm'"):
            rank(profile, PEAKS)


@pytest.mark.parametrize(
    "strange", [{"operator": "moe"}, {"dtype": "int4"}, {"axes": {"tokens": 4}}, {"axes": {"rows": 4, "hidden": 64}}]
)
def test_what_a_newer_host_samples_is_told_and_takes_its_share_and_stops_nothing(strange: dict[str, object]) -> None:
    known = call_pattern("rms_norm", 4, 10, 1)
    other = dataclasses.replace(call_pattern("rms_norm", 8, 30, 3), **strange)  # type: ignore[arg-type]
    profile = traffic(known, other)
    (ranked,) = rank(profile, PEAKS)
    assert ranked.operator == "rms_norm" and ranked.time_share == pytest.approx(0.25)
    assert unknown(profile) == {f"{other.operator} {other.dtype}": pytest.approx(0.75)} and not unknown(traffic(known))
    with pytest.raises(EmptyProfileError, match=f"what does is {other.operator} {other.dtype}"):
        rank(traffic(other), PEAKS)


savings = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8).map(
    lambda shares: [RankedOperator(f"op{i}", "float32", s, 1.0, s, 1) for i, s in enumerate(shares)]
)


@given(savings, st.floats(1.0, 1e4), st.floats(0.1, 100.0))
def test_budgets_sum_to_the_total_and_honour_the_minimum(
    ranked: list[RankedOperator], total_s: float, minimum_s: float
) -> None:
    budget = split_budget(ranked, total_s, minimum_s)
    assert math.isclose(math.fsum(budget.values()), total_s)
    if total_s >= minimum_s:
        assert all(share >= minimum_s * (1 - 1e-9) for share in budget.values())
    else:
        assert len(budget) == 1
    assert len(budget) == max(1, min(len(ranked), int(total_s / minimum_s)))


@given(savings, st.floats(1.0, 1e4), st.floats(0.1, 100.0))
def test_more_to_save_never_gets_less_time(ranked: list[RankedOperator], total_s: float, minimum_s: float) -> None:
    budget = split_budget(ranked, total_s, minimum_s)
    saving = {(r.operator, r.dtype): r.saving_share for r in ranked}
    given_s = [budget.get(key, 0.0) for key in sorted(saving, key=lambda key: -saving[key])]
    assert all(more >= less - 1e-6 * total_s for more, less in itertools.pairwise(given_s))


def test_budget_follows_the_saving() -> None:
    ranked = [RankedOperator("a", "float32", 0.6, 1.0, 0.6, 1), RankedOperator("b", "float32", 0.2, 1.0, 0.2, 1)]
    assert split_budget(ranked, 80.0, 1.0) == {("a", "float32"): pytest.approx(60), ("b", "float32"): pytest.approx(20)}
    assert split_budget(ranked, 80.0, 30.0)["b", "float32"] == 30.0


def test_nothing_to_save_gets_nothing() -> None:
    ranked = [RankedOperator("a", "float32", 1.0, 0.0, 0.0, 1)]
    assert split_budget(ranked, 60.0, 1.0) == {}
    assert split_budget([], 60.0, 1.0) == {}


def test_a_profile_of_another_version_is_refused_with_what_to_do() -> None:
    kept = records.encode(traffic(call_pattern("rms_norm", 4, 10, 1000)))
    for version in (1, 2, 3):
        assert parse(json.dumps(kept | {"schema_version": version}).encode(), "p.json").workloads
    for version in (0, 4, 99):
        newer = kept | {"schema_version": version, "what_nobody_knows_yet": 1}
        with pytest.raises(
            ProfileVersionError, match=rf"p\.json: version {version}, .*1 to 3; .*capture again"
        ) as raised:
            parse(json.dumps(newer).encode(), "p.json")
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"{", b"[]", b"3", b'{"schema_version":3}', b"\xff"])
def test_what_is_no_profile_is_named(content: bytes) -> None:
    with pytest.raises(MalformedRecordError, match=r"p\.json"):
        parse(content, "p.json")
