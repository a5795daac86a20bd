"""Domains admit exactly the calls that their predicates describe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.domain import AxisRange, Domain, Layout
from gristmill.errors import DomainError
from gristmill.workload import TensorLayout, Workload, dense

extents = st.integers(1, 200)


def call(tokens: int, strides: tuple[int, int] | None = None, dtype: str = "float32") -> Workload:
    x = dense((tokens, 8), dtype) if strides is None else TensorLayout((tokens, 8), strides, dtype)
    return Workload("rms_norm", dtype, {"tokens": tokens, "hidden": 8}, (x, dense((8,), dtype)))


@given(extents, extents, st.integers(1, 8), extents)
def test_a_range_admits_its_multiples_between_its_ends(low, width, multiple, extent):
    limits = AxisRange("tokens", low, low + width, multiple)
    assert limits.admits(extent) == (extent in range(low, low + width + 1) and extent % multiple == 0)


@pytest.mark.parametrize(("low", "high", "multiple"), [(5, 4, 1), (-1, 4, 1), (1, 4, 0)])
def test_a_range_that_holds_nothing_is_refused(low, high, multiple):
    with pytest.raises(DomainError, match="axis tokens"):
        AxisRange("tokens", low, high, multiple)


@given(extents)
def test_a_domain_follows_its_ranges(tokens):
    domain = Domain("rms_norm", "float32", (AxisRange("tokens", 3, 9), AxisRange("hidden", 8, 8)))
    assert domain.admits(call(tokens)) == (3 <= tokens <= 9)


def test_another_operator_dtype_or_axis_is_outside():
    assert not Domain("softmax", "float32").admits(call(4))
    assert not Domain("rms_norm", "bfloat16").admits(call(4))
    assert not Domain("rms_norm", "float32", (AxisRange("columns", 1, 9),)).admits(call(4))


@pytest.mark.parametrize(
    ("strides", "admitting"),
    [
        ((8, 1), {Layout.CONTIGUOUS, Layout.INNER_CONTIGUOUS, Layout.ANY}),
        ((16, 1), {Layout.INNER_CONTIGUOUS, Layout.ANY}),
        ((0, 1), {Layout.INNER_CONTIGUOUS, Layout.ANY}),
        ((1, 4), {Layout.ANY}),
    ],
)
def test_layouts_are_ordered_from_strict_to_any(strides, admitting):
    admitted = {layout for layout in Layout if Domain("rms_norm", "float32", (), layout).admits(call(4, strides))}
    assert admitted == admitting


@given(st.lists(extents, max_size=4).map(tuple))
def test_dense_layouts_are_contiguous(shape):
    layout = dense(shape, "float32")
    assert layout.contiguous
    assert layout.inner_contiguous


def test_a_workload_is_its_pattern_not_its_counts():
    counted = Workload("rms_norm", "float32", {"hidden": 8, "tokens": 4}, call(4).inputs, calls=7, time_ns=9)
    assert counted.digest == call(4).digest
    assert counted.digest != call(5).digest
    assert call(4).label == "rms_norm float32 tokens=4 hidden=8"


@pytest.mark.parametrize(
    ("tokens", "strides", "mark"),
    [
        (4, (8, 1), ""),
        (4, (16, 1), " strides0=16,1"),
        (4, (0, 1), " strides0=0,1"),
        (4, (1, 4), " strides0=1,4"),
        (1, (16, 1), ""),
    ],
)
def test_a_label_tells_inputs_that_are_not_dense(tokens, strides, mark):
    assert call(tokens, strides).label == f"rms_norm float32 tokens={tokens} hidden=8{mark}"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=6, unique=True))
def test_layouts_that_are_not_dense_have_labels_of_their_own(strides):
    calls = [call(4, pair) for pair in strides]
    labels = [c.label for c in calls if not c.inputs[0].contiguous]
    assert len(set(labels)) == len(labels)
