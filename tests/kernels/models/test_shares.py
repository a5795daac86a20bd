"""How the time of a step is shared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.definition import Cost
from kernels.errors import ModelError
from kernels.models.shares import DEVICES, Device, device, shares
from kernels.models.step import OperatorCall

COSTS = st.builds(Cost, st.integers(0, 10**12), st.integers(1, 10**10), st.integers(0, 10**10))
CALLS = st.lists(
    st.tuples(
        st.builds(
            OperatorCall,
            st.sampled_from(["rms_norm", "embedding"]),
            st.just({"tokens": 3}),
            st.sampled_from(["float32", "bfloat16", "float16", "int8"]),
            st.integers(1, 99),
        ),
        COSTS,
    ),
    min_size=1,
    max_size=12,
)


@given(calls=CALLS, name=st.sampled_from(sorted(DEVICES)))
def test_shares_sum_to_one_and_come_in_order(calls: list[tuple[OperatorCall, Cost]], name: str) -> None:
    found = shares(calls, device(name))
    assert math.isclose(sum(share.time_share for share in found), 1.0, rel_tol=1e-9)
    assert [s.time_ns for s in found] == sorted((s.time_ns for s in found), reverse=True)
    assert len(found) == len(calls)


def test_a_call_is_limited_by_whichever_takes_longer() -> None:
    slow = Device("toy", memory_bandwidth_gb_s=2.0, gflops={"float32": 10.0})
    call = OperatorCall("x", {}, "float32", 1)
    times = [shares([(call, cost)], slow)[0].time_ns for cost in (Cost(1000, 10, 10), Cost(10, 300, 100))]
    assert times == [100.0, 200.0]


def test_what_takes_no_time_cannot_be_shared() -> None:
    with pytest.raises(ModelError, match="operators: none"):
        shares([], device("h100"))


def test_unknown_devices_are_refused_with_the_names_of_known_ones() -> None:
    with pytest.raises(ModelError, match=r"device 'abacus': expected local, a100, .*h200"):
        device("abacus")
