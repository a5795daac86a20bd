"""What is proposed composes, saves, and never more than the time that its parts take."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import fusion
from gristmill.sequence import Edge
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.profile import RequestStatistics, TrafficProfile
from kernels.roofline import Peaks

PEAKS = Peaks(
    hardware="test",
    cores=2,
    memory_bandwidth_gb_s=20.0,
    cache_bandwidth_gb_s=100.0,
    cache_ceiling_gb_s=600.0,
    gflops={"float32": 1000.0, "bfloat16": 2000.0},
    gflops_ceiling={"float32": 3000.0, "bfloat16": 6000.0},
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
)
NORM = ("fused_add_rms_norm", {"hidden": 64})
PROJECTION = ("skinny_linear", {"in_features": 64, "out_features": 96})
GATED = ("silu_and_mul", {"intermediate": 96})
DOWN = ("skinny_linear", {"in_features": 96, "out_features": 64})
HEADS = ("rotary_embedding", {"query_heads": 2, "key_heads": 1, "head_dim": 48})
BLOCK = (*(NORM, PROJECTION, GATED, DOWN), HEADS)
Place = tuple[str, dict[str, int]]


def edge(producer: Place | None, consumer: Place, position: int, uses: int, calls: int, output: int = 0) -> Edge:
    name, axes = producer or ("", {})
    return Edge(name, axes, output, consumer[0], consumer[1], position, "float32", uses, calls)


def called(place: Place, calls: int, time_ns: int, tokens: int = 4) -> Workload:
    definition = catalogue.operator(place[0])
    made = inputs.workload(definition, "float32", tokens=tokens, **place[1])
    return dataclasses.replace(made, calls=calls, time_ns=time_ns)


def profile(workloads: list[Workload], edges: list[Edge]) -> TrafficProfile:
    window = {"window_start_utc": "2026-12-01T00:00:00+00:00", "window_end_utc": "2026-12-01T01:00:00+00:00"}
    return TrafficProfile(
        fleet="f",
        model="m",
        hardware="h",
        **window,
        versions={},
        workloads=tuple(workloads),
        requests=RequestStatistics(),
        dropped=0,
        edges=tuple(edges),
    )


def feed_forward(tokens: int = 4) -> TrafficProfile:
    """Ten traced of a hundred calls of a Llama's feed-forward block."""
    edges = [
        edge(None, NORM, 0, 0, 10),
        edge(NORM, PROJECTION, 0, 2, 20),
        edge(PROJECTION, GATED, 0, 1, 10),
        edge(PROJECTION, GATED, 1, 1, 10),
        edge(GATED, DOWN, 0, 1, 10),
    ]
    calls = {"a": (NORM, 100, 1000), "b": (PROJECTION, 200, 8000), "c": (GATED, 100, 2000), "d": (DOWN, 100, 4000)}
    return profile([called(*one, tokens=tokens) for one in calls.values()], edges)


def test_a_feed_forward_block_shows_what_could_be_fused() -> None:
    found = {p.operator: p for p in fusion.propose(feed_forward(), PEAKS)}
    assert set(found) == {
        "fused_add_rms_norm++skinny_linear",
        "fused_add_rms_norm+skinny_linear-skinny_linear",
        "skinny_linear-skinny_linear",
        "skinny_linear-skinny_linear+silu_and_mul",
        "skinny_linear+silu_and_mul",
        "silu_and_mul+skinny_linear",
    }
    whole = found["skinny_linear-skinny_linear+silu_and_mul"]
    (workload,) = whole.workloads
    assert workload.axes == {"tokens": 4, "in_features": 64, "out_features": 96}
    assert (workload.calls, workload.time_ns) == (100, 10_000)
    assert whole.time_share == pytest.approx(10_000 / 15_000)
    moved = 4 * (2 * (4 * 64 + 96 * 64 + 4 * 96) + 3 * 4 * 96)
    assert whole.traffic_saved == pytest.approx(4 * (4 * 64 + 4 * 4 * 96) / moved)
    assert whole.saving_share == pytest.approx(whole.time_share * whole.traffic_saved)
    pair = found["fused_add_rms_norm+skinny_linear-skinny_linear"]
    assert pair.workloads[0].calls == 100, "one for the two projections"


def test_what_others_read_too_is_kept() -> None:
    names = [p.operator for p in fusion.propose(feed_forward(), PEAKS)]
    assert "fused_add_rms_norm++skinny_linear" in names
    assert "fused_add_rms_norm+skinny_linear" not in names


def test_only_a_share_of_the_calls_is_fed_by_it() -> None:
    edges = [edge(GATED, DOWN, 0, 1, 5), edge(None, DOWN, 0, 0, 15)]
    (found,) = fusion.propose(profile([called(GATED, 100, 1000), called(DOWN, 400, 4000)], edges), PEAKS)
    assert found.workloads[0].calls == 100
    assert found.workloads[0].time_ns == 100 * (10 + 10)


def test_what_arithmetic_limits_is_left_alone() -> None:
    slow = dataclasses.replace(PEAKS, gflops={"float32": 1.0})
    assert fusion.propose(feed_forward(), slow) == ()


def test_what_does_not_compose_is_not_proposed() -> None:
    """Heads are apart in the rotary embedding, and an output other than the first has no name."""
    edges = [edge(PROJECTION, HEADS, 0, 1, 10), edge(NORM, DOWN, 0, 1, 10, output=1)]
    traffic = [called(place, 100, 1000) for place in BLOCK]
    assert fusion.propose(profile(traffic, edges), PEAKS) == ()


def test_a_threshold_leaves_out_what_saves_less() -> None:
    everything = fusion.propose(feed_forward(), PEAKS)
    least = everything[2].saving_share
    assert fusion.propose(feed_forward(), PEAKS, least) == everything[:3]


def test_without_sequences_or_time_nothing_is_proposed() -> None:
    assert fusion.propose(profile([called(NORM, 1, 1)], []), PEAKS) == ()
    assert fusion.propose(profile([called(GATED, 0, 0), called(DOWN, 0, 0)], [edge(GATED, DOWN, 0, 1, 3)]), PEAKS) == ()


places = st.sampled_from(BLOCK)
edge_lists = st.lists(
    st.builds(
        edge, st.none() | places, places, st.integers(0, 1), st.integers(1, 4), st.integers(1, 50), st.integers(0, 1)
    ).map(lambda e: e if e.producer else dataclasses.replace(e, uses=0)),
    max_size=12,
)
traffics = st.lists(
    st.builds(called, places, st.integers(1, 500), st.integers(1, 10**6), st.integers(1, 9)), max_size=8
)


@settings(deadline=None)
@given(traffics, edge_lists, st.randoms(use_true_random=False))
def test_any_profile_gives_sound_proposals_in_order(workloads: list[Workload], edges: list[Edge], rng: object) -> None:
    made = profile(workloads, edges)
    proposals = fusion.propose(made, PEAKS)
    savings = [p.saving_share for p in proposals]
    assert savings == sorted(savings, reverse=True)
    for p in proposals:
        definition = catalogue.operator(p.operator)
        assert 0 < p.saving_share <= p.time_share and 0 < p.traffic_saved < 1
        assert p.workloads and all(w.calls > 0 and w.time_ns > 0 for w in p.workloads)
        for w in p.workloads:
            inputs.check_workload(definition, w)
    shuffled = list(edges)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    again = fusion.propose(profile(workloads, shuffled), PEAKS)
    assert {p.operator for p in again} == {p.operator for p in proposals}
