from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import drift as drifting
from kernels import sketch
from kernels.drift import ARRIVALS, DRIFT_OCTAVES, Season, drift
from kernels.profile import TrafficProfile
from kernels.sketch import ANSWERS, CELL_NS, PROMPTS, Observation, Stream
from tests.kernels.test_profile import call_pattern, traffic, workloads

NORM = Stream("rms_norm", "float32", "tokens", '{"hidden":64}')
SILU = Stream("silu_and_mul", "float32", "tokens", '{"intermediate":64}')


def window(seed: int, tokens: float, *, cells: int = 120, requests: float = 5, prompt: float = 500) -> TrafficProfile:
    """Traffic that varies as traffic does: the load of one minute is not that of the next."""
    rng = random.Random(seed)
    seen: list[Observation] = []
    for cell in range(cells):
        if cell % 6 == 0:
            load = rng.lognormvariate(0, 0.4)
        at_ns = cell * CELL_NS
        for _ in range(20):
            size = max(1, round(tokens * load * rng.lognormvariate(0, 0.5)))
            seen += [(NORM, size, at_ns, 30, 30_000), (SILU, size, at_ns, 30, 60_000)]
        for _ in range(round(requests * load * 2)):
            seen.append((PROMPTS, round(prompt * rng.lognormvariate(0, 1)), at_ns, 1, 0))
            seen.append((ANSWERS, round(100 * rng.lognormvariate(0, 1)), at_ns, 1, 0))
    return dataclasses.replace(traffic(), sketch=sketch.sketched(seen).record())


@given(workloads)
def test_equal_traffic_has_not_drifted(profile: TrafficProfile) -> None:
    twice = traffic(*(dataclasses.replace(w, calls=3 * w.calls) for w in profile.workloads))
    result = drift(profile, twice)
    assert all(m.psi == pytest.approx(0, abs=1e-9) and m.octaves == pytest.approx(0, abs=1e-9) for m in result.moves)
    assert not result.exceeds


@settings(deadline=None)
@given(workloads, workloads)
def test_distances_are_symmetric_and_never_negative(one: TrafficProfile, other: TrafficProfile) -> None:
    there = {(m.subject, m.dtype): m for m in drift(one, other).moves}
    back = {(m.subject, m.dtype): m for m in drift(other, one).moves}
    assert there.keys() == back.keys()
    for key, moved in there.items():
        assert moved.psi >= 0 and moved.octaves >= 0
        assert moved.psi == pytest.approx(back[key].psi)
        assert moved.octaves == pytest.approx(back[key].octaves)
        assert (moved.before, moved.after, moved.far) == (back[key].after, back[key].before, back[key].far)


@given(st.integers(1, 64), st.integers(1, 4))
def test_batches_grown_by_octaves_have_moved_by_octaves(tokens: int, octaves: int) -> None:
    old = traffic(call_pattern("rms_norm", tokens, 100, 1))
    new = traffic(call_pattern("rms_norm", tokens << octaves, 100, 1))
    (moved,) = drift(old, new).moves
    assert moved.octaves == pytest.approx(octaves)
    assert (moved.axis, moved.before) == ("tokens", pytest.approx(tokens))
    assert moved.after == pytest.approx(tokens << octaves, rel=0.125)
    assert moved.psi > 1
    assert drift(old, new).exceeds


def test_a_batch_that_crosses_a_power_of_two_by_a_few_has_not_moved() -> None:
    old, new = (traffic(call_pattern("rms_norm", tokens, 100, 1)) for tokens in (126, 130))
    assert not drift(old, new).exceeds


def test_an_operator_that_appears_or_vanishes_has_drifted() -> None:
    norm, silu = call_pattern("rms_norm", 4, 10, 1), call_pattern("silu_and_mul", 4, 10, 1)
    result = drift(traffic(norm), traffic(norm, silu))
    assert [m.subject for m in result.moves] == ["silu_and_mul", "rms_norm"]
    assert [m.subject for m in result.moved] == ["silu_and_mul"]
    assert result.moved[0].told == "silu_and_mul float32 is new, 50% of the time"
    assert (
        drift(traffic(norm, silu), traffic(norm)).moved[0].told.startswith("silu_and_mul float32 is no longer called")
    )


def test_what_takes_hardly_any_time_starts_nothing() -> None:
    norm = call_pattern("rms_norm", 4, 10, 10_000)
    small, large = (call_pattern("silu_and_mul", tokens, 10, 90) for tokens in (4, 400))
    result = drift(traffic(norm, small), traffic(norm, large))
    assert result.moves[0].octaves > 5 and not result.exceeds


def test_a_new_shape_is_a_move_along_the_axis_that_the_model_fixes() -> None:
    wide = dataclasses.replace(call_pattern("rms_norm", 4, 10, 1), axes={"tokens": 4, "hidden": 512})
    (moved,) = drift(traffic(call_pattern("rms_norm", 4, 10, 1)), traffic(wide)).moved
    assert moved.told == "rms_norm float32: hidden from 64 to 512, 100% of the time"


def test_a_few_more_calls_of_one_shape_are_no_drift() -> None:
    old = traffic(call_pattern("rms_norm", 4, 50, 1), call_pattern("rms_norm", 32, 50, 1))
    new = traffic(call_pattern("rms_norm", 5, 54, 1), call_pattern("rms_norm", 32, 46, 1))
    assert not drift(old, new).exceeds


def test_windows_of_the_same_traffic_do_not_alarm_and_other_traffic_does() -> None:
    same = [window(seed, 16) for seed in range(12)]
    assert not any(drift(a, b).exceeds for a, b in zip(same[:6], same[6:], strict=True))
    moved = drift(same[0], window(99, 64)).moved
    assert {m.subject for m in moved} == {"rms_norm", "silu_and_mul"}
    assert {m.axis for m in moved} == {"tokens"}
    assert sorted(m.time_share or 0 for m in moved) == [pytest.approx(1 / 3), pytest.approx(2 / 3)]


def test_a_window_that_varies_more_may_be_further_away() -> None:
    steady = drift(window(1, 16, cells=240), window(2, 16, cells=240))
    short = drift(window(1, 16, cells=24), window(2, 16, cells=24))
    limits = [next(m.octaves_limit for m in one.moves if m.subject == "rms_norm") for one in (steady, short)]
    assert DRIFT_OCTAVES < limits[0] < limits[1]


def test_requests_move_by_their_lengths_and_by_their_rate() -> None:
    old = window(1, 16)
    (longer,) = drift(old, window(2, 16, prompt=4000)).moved
    assert (longer.subject, longer.axis, longer.time_share) == ("requests", "prompt tokens", None)
    assert longer.octaves == pytest.approx(3, abs=0.3)
    (busier,) = drift(old, window(2, 16, requests=40)).moved
    assert busier.axis == ARRIVALS
    assert busier.after == pytest.approx(8 * busier.before, rel=0.4)
    assert "/s to " in busier.told


def test_a_few_calls_or_requests_do_not_tell_how_they_are_distributed() -> None:
    def seen(tokens: int, calls: int) -> TrafficProfile:
        observed = [(NORM, tokens, 0, calls, calls), (PROMPTS, tokens, 0, calls, 0)]
        return dataclasses.replace(traffic(), sketch=sketch.sketched(observed).record())

    few = drifting.LEAST_CALLS - 1
    for one, other in ((seen(1, few), seen(4096, 1000)), (seen(1, 1000), seen(4096, few))):
        result = drift(one, other)
        assert {m.subject for m in result.moves if m.few} == {"requests", "rms_norm"} and not result.exceeds
    assert drift(seen(1, few + 1), seen(4096, 1000)).exceeds
    assert drift(traffic(), seen(1, 1)).moved[0].told == "rms_norm float32 is new, 100% of the time"


def test_short_windows_tell_no_rate() -> None:
    result = drift(window(1, 16, cells=100), window(2, 16, requests=40, cells=100))
    assert ARRIVALS not in {m.axis for m in result.moves} and not result.exceeds


def test_what_this_hour_always_is_is_no_drift() -> None:
    compiled, night, new = window(1, 64), window(2, 8), window(3, 8)
    assert drift(compiled, new).exceeds
    result = drift(compiled, new, [Season("the day before", night)])
    assert not result.exceeds
    assert {m.usual for m in result.moves if m.far} == {"the day before"}
    assert drift(compiled, new, [Season("the day before", window(4, 60))]).exceeds
    weekly = [Season("the day before", window(4, 60)), Season("the week before", night)]
    assert {m.usual for m in drift(compiled, new, weekly).moves if m.far} == {"the week before"}


def test_a_season_explains_only_what_it_had_just_so() -> None:
    compiled, night = window(1, 64), window(2, 8)
    assert [m.axis for m in drift(compiled, window(3, 8, prompt=8000), [Season("a day ago", night)]).moved] == [
        "prompt tokens"
    ]


def test_draws_keep_neighbours_together_and_repeat() -> None:
    """Cells that come in long runs vary more, taken by blocks, than the same cells shuffled."""
    runs = np.repeat(np.array([[10.0], [30.0]]), 50, axis=0)
    shuffled = np.random.default_rng(1).permutation(runs)
    spread = [float(np.std(drifting.drawn(one)[:, 0])) for one in (runs, shuffled)]
    assert spread[0] > 2 * spread[1]
    assert (drifting.drawn(runs) == drifting.drawn(runs)).all()
    assert drifting.drawn(runs).mean() == pytest.approx(runs.sum(), rel=0.05)
    assert len(drifting.drawn(runs[: drifting.LEAST_CELLS - 1])) == 0
