from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.joined_workloads import joined
from kernels.profile import by_operator
from tests.kernels.test_profile import call_pattern

many = st.lists(
    st.builds(
        call_pattern,
        st.sampled_from(["rms_norm", "silu_and_mul"]),
        st.integers(1, 8192),
        st.integers(1, 1000),
        st.integers(0, 10**9),
        st.sampled_from(["float32", "bfloat16"]),
    ),
    max_size=40,
    unique_by=lambda w: (w.operator, w.dtype, w.axes["tokens"]),
)


@given(many, st.integers(4, 40))
def test_no_call_is_lost_and_each_that_stays_was_seen(workloads, most: int) -> None:
    found = joined(workloads, most)
    before, after = by_operator(workloads), by_operator(found)
    assert before.keys() == after.keys()
    for key, members in before.items():
        assert sum(w.calls for w in members) == sum(w.calls for w in after[key])
        assert sum(w.time_ns for w in members) == sum(w.time_ns for w in after[key])
    assert {w.digest for w in found} <= {w.digest for w in workloads}
    assert len(found) <= max(most, 14 * 4), "octaves of each operator and dtype are the coarsest"


@given(many, st.randoms(use_true_random=False))
def test_order_does_not_matter(workloads, rng) -> None:
    shuffled = list(workloads)
    rng.shuffle(shuffled)
    assert sorted(joined(workloads, 5), key=lambda w: w.digest) == sorted(joined(shuffled, 5), key=lambda w: w.digest)


def test_where_there_is_room_nothing_is_joined() -> None:
    workloads = [call_pattern("rms_norm", tokens, 1, 1) for tokens in range(1, 600)]
    assert joined(workloads) == workloads


def test_the_one_that_took_most_time_stands_for_its_neighbours() -> None:
    workloads = [call_pattern("rms_norm", tokens, 2, 10 + (tokens == 1030)) for tokens in range(1024, 1152)]
    (one,) = joined(workloads, 10)
    assert (one.axes["tokens"], one.calls, one.time_ns) == (1030, 256, 1281)


@pytest.mark.parametrize("tokens", [1, 100, 256])
def test_small_batches_stay_apart_while_others_can_be_joined(tokens: int) -> None:
    workloads = [call_pattern("rms_norm", n, 1, 1) for n in (tokens - 1 or 2, tokens, *range(4096, 4200))]
    assert {w.axes["tokens"] for w in joined(workloads, 10)} >= {tokens, tokens - 1 or 2}
