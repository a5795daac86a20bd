"""What is claimed of a measurement: what was measured, faster beyond doubt, and called by the fleet."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.kernel_table import WIDEST_GAP
from gristmill.tuned_table import BaselineKey
from kernels.errors import MoeMeasurementError
from kernels.moe_tuning import (
    LEAST_RATIO_LOW,
    MeasuredRow,
    MoeMeasurement,
    check,
    gains,
    token_counts,
    tuned_file,
    worth_measuring,
)
from tests.tasks.world import profile, rms_norm, silu_and_mul

A, B = {"BLOCK_SIZE_M": 16, "num_warps": 4}, {"BLOCK_SIZE_M": 64, "num_warps": 8}


def row(tokens: int, configuration: dict[str, int] = A, ratio: float = 1.5, spread: float = 0.1) -> MeasuredRow:
    return MeasuredRow(tokens, configuration, 1000.0, 1000.0 * ratio, ratio - spread)


def measurement(*rows: MeasuredRow) -> MoeMeasurement:
    return MoeMeasurement(
        "E=8,N=14336,device_name=NVIDIA_H200.json",
        "unquantised",
        {"experts": 8, "intermediate": 14336, "hidden": 4096, "top_k": 2},
        "sm_90-NVIDIA_H200",
        {"vllm": "0.32.0", "triton": "3.9.0"},
        rows,
        (BaselineKey(1, B), BaselineKey(4096, A)),
        "2026-12-01T00:00:00+00:00",
    )


def claimed(*rows: MeasuredRow, counts: dict[int, int]) -> list[tuple[int, int]]:
    return [(one.range.low, one.range.high) for one in gains(measurement(*rows), counts)]


ALL = dict.fromkeys(range(1, 5000), 1)


def test_neighbours_with_one_configuration_are_one_range_as_far_as_tables_span_gaps() -> None:
    assert claimed(row(1), row(2), row(4), row(16), counts=ALL) == [(1, 4), (16, 16)]
    assert claimed(row(1), row(2, B), row(4, B), counts=ALL) == [(1, 1), (2, 4)]


def test_what_is_not_faster_beyond_doubt_is_claimed_by_nobody() -> None:
    assert claimed(row(1), row(2, ratio=1.05), row(4), counts=ALL) == [(1, 1), (4, 4)]
    assert claimed(row(1, ratio=0.9), counts=ALL) == []


def test_what_the_fleet_does_not_call_is_left_out() -> None:
    assert claimed(row(1), row(8), row(64), counts={1: 5, 64: 1}) == [(1, 1), (64, 64)]
    assert claimed(row(1), row(2), row(4), counts={3: 1}) == [(1, 4)]
    assert claimed(row(1), counts={}) == []


def test_gains_are_weighted_by_the_traffic() -> None:
    (gain,) = gains(measurement(row(1, ratio=2.0), row(2, ratio=1.2)), {1: 3, 2: 1})
    assert gain.ratio == pytest.approx((3 * 2.0 + 1.2) / 4)
    assert (gain.ratio_low, gain.calls) == (pytest.approx(1.1), 4)


def test_the_file_carries_what_it_rests_on() -> None:
    one = measurement(row(1), row(2))
    file = tuned_file(one, gains(one, ALL))
    assert (file.file_name, file.versions, file.baseline) == (one.file_name, one.versions, one.baseline)
    assert [(r.low, r.high, r.configuration) for r in file.ranges] == [(1, 2, A)]


def test_a_measurement_is_a_record() -> None:
    one = measurement(row(1), row(300, B))
    assert records.parse(MoeMeasurement, records.canonical_json(one)) == one


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (measurement(row(4), row(4, B)), "measures 4 tokens twice"),
        (measurement(row(0)), "the row of 0 tokens"),
        (measurement(row(65537)), "the row of 65537 tokens"),
        (measurement(row(1, {})), "a configuration"),
        (measurement(replace(row(1), time_ns=0.0)), "times above 0"),
        (measurement(replace(row(1), ratio_low=float("nan"))), "times above 0"),
        (measurement(replace(row(1), ratio_low=9.0)), "at the least more than that"),
        (replace(measurement(row(1)), baseline=()), "what the engine takes by itself"),
        (replace(measurement(row(1)), versions={"vllm": "0.32.0"}), "versions of vllm and triton"),
        (replace(measurement(row(1)), dtype="bfloat16"), "expected a dtype of"),
    ],
)
def test_a_measurement_that_contradicts_itself_is_refused(spoiled: MoeMeasurement, why: str) -> None:
    with pytest.raises(MoeMeasurementError, match=why):
        gains(spoiled, ALL)


ROWS = st.lists(
    st.builds(row, st.integers(1, 4096), st.sampled_from([A, B]), st.floats(0.5, 3.0), st.floats(0.0, 0.3)),
    max_size=12,
    unique_by=lambda one: one.tokens,
)


@given(rows=ROWS, counts=st.dictionaries(st.integers(1, 4096), st.integers(1, 9), max_size=20))
def test_a_range_holds_no_measured_number_that_its_configuration_did_not_win(
    rows: list[MeasuredRow], counts: dict[int, int]
) -> None:
    one = measurement(*rows)
    check(one)
    found = gains(one, counts)
    by_tokens = sorted(rows, key=lambda found: found.tokens)
    for gain in found:
        inside = [r for r in by_tokens if gain.range.low <= r.tokens <= gain.range.high]
        assert (inside[0].tokens, inside[-1].tokens) == (gain.range.low, gain.range.high)
        assert all(r.configuration == gain.range.configuration and r.ratio_low > LEAST_RATIO_LOW for r in inside)
        assert all(b.tokens <= WIDEST_GAP * a.tokens for a, b in itertools.pairwise(inside))
        assert gain.ratio * 1.01 >= gain.ratio_low and gain.calls > 0
    assert all(a.range.high < b.range.low for a, b in itertools.pairwise(found))


def test_the_fleet_s_numbers_of_tokens_come_from_what_stands_for_the_experts() -> None:
    traffic = profile(rms_norm(4, calls=99), silu_and_mul(1, calls=70), silu_and_mul(512, calls=2), rms_norm(8))
    assert token_counts(traffic) == {1: 70, 512: 2}
    assert token_counts(profile(rms_norm(4, calls=3), rms_norm(4, hidden=96, calls=4))) == {4: 7}
    assert token_counts(profile()) == {}


def test_measured_is_what_is_called_most_until_nearly_all_is_covered() -> None:
    counts = {1: 900, 2: 60, 512: 39, 4096: 1}
    assert worth_measuring(counts, 8) == (1, 2)
    assert worth_measuring({**counts, 512: 100}, 8) == (1, 2, 512)
    assert worth_measuring({**counts, 512: 100}, 1) == (1,)
    assert worth_measuring({}, 8) == ()
