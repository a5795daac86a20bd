from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.domain import Layout
from gristmill.workload import TensorLayout, dense
from kernels import inputs, layouts
from kernels.layouts import COLUMNS_APART, ROWS_APART, Arrangement

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
arrangements = st.sampled_from((layouts.fused, layouts.far, *ROWS_APART, *COLUMNS_APART))


@st.composite
def strided(draw: st.DrawFn) -> TensorLayout:
    """Slices, permutations and expansions of dense tensors."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    strides = [0] * len(shape)
    step = 1
    for dim in draw(st.permutations(range(len(shape)))):
        expanded = draw(st.booleans()) and draw(st.booleans())
        strides[dim] = 0 if expanded else step
        step = step if expanded else step * shape[dim] + draw(st.integers(0, 3))
    return TensorLayout(shape, tuple(strides), "float32")


@given(strided())
def test_placed_tensors_have_exactly_the_layout_and_the_values(layout: TensorLayout) -> None:
    values = torch.arange(float(torch.Size(layout.shape).numel())).reshape(layout.shape)
    placed = inputs.place(values, layout)
    assert tuple(placed.shape) == layout.shape
    assert placed.stride() == layout.strides
    for dim, stride in enumerate(layout.strides):
        if stride == 0:
            values = values.narrow(dim, 0, 1)
    assert torch.equal(placed, values.expand(layout.shape))


@given(strided())
def test_memory_between_the_elements_is_poisoned(layout: TensorLayout) -> None:
    placed = inputs.place(torch.zeros(layout.shape), layout)
    storage = torch.empty(0).set_(placed.untyped_storage())
    reached = layouts.distinct_bytes(layout) // 4
    assert storage.numel() == layouts.span(layout)
    assert int(storage.isnan().sum()) == storage.numel() - reached


@given(strided())
def test_honest_layouts_are_not_taken_for_overlapping(layout: TensorLayout) -> None:
    addresses = {0}
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        addresses = {a + i * stride for a in addresses for i in range(extent)}
    assert len(addresses) * 4 == layouts.distinct_bytes(layout)
    assert not layouts.overlaps(layout)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=3))
def test_a_layout_that_passes_really_keeps_its_elements_apart(dims: list[tuple[int, int]]) -> None:
    layout = TensorLayout(tuple(e for e, _ in dims), tuple(s for _, s in dims), "float32")
    if layouts.overlaps(layout):
        return
    addresses = [0]
    for extent, stride in dims:
        addresses = [a + i * stride for a in addresses for i in range(extent if stride else 1)]
    assert len(addresses) == len(set(addresses))


@given(arrangements, shapes, st.integers(0, 3))
def test_arrangements_keep_elements_apart(arrange: Arrangement, shape: tuple[int, ...], position: int) -> None:
    made = arrange(shape, "float32", position)
    assert made.shape == shape
    assert not layouts.overlaps(made)


@given(st.sampled_from((layouts.fused, layouts.far, *ROWS_APART)), shapes, st.integers(0, 3))
def test_rows_stay_contiguous_where_only_rows_are_apart(
    arrange: Arrangement, shape: tuple[int, ...], position: int
) -> None:
    made = arrange(shape, "float32", position)
    assert len(shape) == 1 or Layout.INNER_CONTIGUOUS.admits(made)


@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 6)])
def test_no_arrangement_of_a_matrix_is_dense_and_no_two_are_alike(shape: tuple[int, ...]) -> None:
    made = [arrange(shape, "float32", 0) for arrange in (layouts.fused, layouts.far, *ROWS_APART, *COLUMNS_APART)]
    assert not any(layout.contiguous for layout in made)
    assert len({layout.strides for layout in made}) == len(made)


@given(strided(), st.data())
def test_a_layout_like_another_keeps_its_order_and_what_is_expanded(
    captured: TensorLayout, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.integers(1, 7)) for _ in captured.shape)
    made = layouts.like(captured, shape)
    assert not layouts.overlaps(made)
    if captured.contiguous:
        assert made == dense(shape, "float32")
        return
    assert all((new == 0) == (old == 0) for new, old in zip(made.strides, captured.strides, strict=True))
    assert all(new >= old for new, old in zip(made.strides, captured.strides, strict=True))
    assert not Layout.INNER_CONTIGUOUS.admits(captured) or captured.shape[-1] == 1 or made.inner_contiguous


@given(strided())
def test_a_layout_like_itself_is_itself(captured: TensorLayout) -> None:
    if not captured.contiguous:
        assert layouts.like(captured, captured.shape) == captured
