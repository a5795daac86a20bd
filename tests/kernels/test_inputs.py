from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.domain import AxisRange, Domain, Layout
from gristmill.workload import TensorLayout, Workload, dense
from kernels import catalogue, inputs
from kernels.errors import WorkloadError

NORM = catalogue.operator("rms_norm")
ROTARY = catalogue.operator("rotary_embedding")


def _relaid(workload: Workload, position: int, strides: tuple[int, ...]) -> Workload:
    layouts = list(workload.inputs)
    layouts[position] = dataclasses.replace(layouts[position], strides=strides)
    return dataclasses.replace(workload, inputs=tuple(layouts))


@st.composite
def layouts(draw: st.DrawFn) -> TensorLayout:
    """Slices, permutations and expansions of dense tensors."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    strides = [0] * len(shape)
    step = 1
    for dim in draw(st.permutations(range(len(shape)))):
        expanded = draw(st.booleans()) and draw(st.booleans())
        strides[dim] = 0 if expanded else step
        step = step if expanded else step * shape[dim] + draw(st.integers(0, 3))
    return TensorLayout(shape, tuple(strides), "float32")


@given(layouts())
def test_placed_tensors_have_exactly_the_layout_and_the_values(layout: TensorLayout) -> None:
    values = torch.arange(float(torch.Size(layout.shape).numel())).reshape(layout.shape)
    placed = inputs.place(values, layout)
    assert tuple(placed.shape) == layout.shape
    assert placed.stride() == layout.strides
    for dim, stride in enumerate(layout.strides):
        if stride == 0:
            values = values.narrow(dim, 0, 1)
    assert torch.equal(placed, values.expand(layout.shape))


@given(layouts())
def test_memory_between_the_elements_is_poisoned(layout: TensorLayout) -> None:
    placed = inputs.place(torch.zeros(layout.shape), layout)
    storage = torch.empty(0).set_(placed.untyped_storage())
    reached = inputs.distinct_bytes(layout) // 4
    assert storage.numel() == inputs.span(layout)
    assert int(storage.isnan().sum()) == storage.numel() - reached


@given(layouts())
def test_honest_layouts_are_not_taken_for_overlapping(layout: TensorLayout) -> None:
    addresses = {0}
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        addresses = {a + i * stride for a in addresses for i in range(extent)}
    assert len(addresses) * 4 == inputs.distinct_bytes(layout)
    assert not inputs._overlaps(layout)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=3))
def test_a_layout_that_passes_really_keeps_its_elements_apart(dims: list[tuple[int, int]]) -> None:
    layout = TensorLayout(tuple(e for e, _ in dims), tuple(s for _, s in dims), "float32")
    if inputs._overlaps(layout):
        return
    addresses = [0]
    for extent, stride in dims:
        addresses = [a + i * stride for a in addresses for i in range(extent if stride else 1)]
    assert len(addresses) == len(set(addresses))


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_materialised_inputs_follow_the_workload(name: str) -> None:
    definition = catalogue.operator(name)
    workload = inputs.workload(definition, "bfloat16", **definition.edge_axes[1])
    tensors = inputs.materialise(definition, workload, "traffic", torch.Generator().manual_seed(0))
    for tensor, layout in zip(tensors, workload.inputs, strict=True):
        assert (tuple(tensor.shape), tensor.stride()) == (layout.shape, layout.strides)
        assert tensor.dtype is torch.bfloat16


def test_strided_and_expanded_inputs_give_the_same_answer_as_dense_copies() -> None:
    workload = inputs.workload(ROTARY, "float32", tokens=3, query_heads=2, key_heads=1, head_dim=4)
    strided = _relaid(_relaid(workload, 0, (24, 4, 1)), 2, (0, 1))
    tensors = inputs.materialise(ROTARY, strided, "traffic", torch.Generator().manual_seed(0))
    assert tensors[0].stride() == (24, 4, 1)
    assert tensors[2].stride() == (0, 1)
    found = ROTARY.baselines["eager"](*tensors)
    expected = ROTARY.baselines["eager"](*(t.clone(memory_format=torch.contiguous_format) for t in tensors))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_no_two_inputs_share_memory() -> None:
    definition = catalogue.operator("fused_add_rms_norm")
    workload = inputs.workload(definition, "float32", tokens=2, hidden=8)
    tensors = inputs.materialise(definition, workload, "traffic", torch.Generator().manual_seed(0))
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


GOOD = inputs.workload(NORM, "float32", tokens=4, hidden=8)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (dataclasses.replace(GOOD, operator="softmax"), "operator"),
        (dataclasses.replace(GOOD, dtype="float16"), "dtype"),
        (dataclasses.replace(GOOD, axes={"tokens": 4}), "axes"),
        (dataclasses.replace(GOOD, axes={"tokens": 4, "hidden": 8, "rows": 1}), "axes"),
        (dataclasses.replace(GOOD, axes={"tokens": 0, "hidden": 8}), "axes.tokens"),
        (dataclasses.replace(GOOD, inputs=GOOD.inputs[:1]), "inputs"),
        (dataclasses.replace(GOOD, inputs=(dense((4, 9), "float32"), GOOD.inputs[1])), "inputs[0] (x_TH).shape"),
        (dataclasses.replace(GOOD, inputs=(GOOD.inputs[0], dense((8,), "bfloat16"))), "inputs[1] (weight_H).dtype"),
        (_relaid(GOOD, 0, (-8, 1)), "inputs[0] (x_TH).strides"),
        (_relaid(GOOD, 0, (1,)), "inputs[0] (x_TH).strides"),
        (_relaid(GOOD, 0, (4, 1)), "inputs[0] (x_TH).strides"),
    ],
)
def test_a_workload_that_does_not_fit_names_the_field(bad: Workload, field: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        inputs.check_workload(NORM, bad)
    assert f"{field}: found" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_regime_is_refused() -> None:
    with pytest.raises(WorkloadError, match="regime: found ties"):
        inputs.materialise(NORM, GOOD, "ties", torch.Generator())


def test_edges_stay_within_the_domain() -> None:
    domain = Domain("rms_norm", "float32", (AxisRange("tokens", 2, 16), AxisRange("hidden", 32, 4096, 32)))
    edges = inputs.edge_workloads(NORM, "float32", domain)
    assert edges
    assert all(domain.admits(w) for w in edges)
    assert {2, 16} <= {w.axes["tokens"] for w in edges}
    assert len({w.digest for w in edges}) == len(edges)


def test_a_domain_pinned_to_a_model_is_still_tried_at_odd_token_counts() -> None:
    linear = catalogue.operator("skinny_linear")
    pinned = (AxisRange("in_features", 1024, 1024), AxisRange("out_features", 2816, 2816))
    domain = Domain("skinny_linear", "float32", (AxisRange("tokens", 1, 8), *pinned))
    assert {w.axes["tokens"] for w in inputs.edge_workloads(linear, "float32", domain)} >= {1, 3, 5, 8}


def test_an_open_domain_gets_every_edge_of_the_definition() -> None:
    for definition in catalogue.operators():
        domain = Domain(definition.name, "bfloat16", layout=Layout.ANY)
        found = [w.axes for w in inputs.edge_workloads(definition, "bfloat16", domain)]
        assert all(dict(axes) in found for axes in definition.edge_axes)


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True), st.integers(0, 1000))
def test_held_out_shapes_are_new_near_and_of_the_same_model(tokens: list[int], seed: int) -> None:
    captured = [inputs.workload(NORM, "float32", tokens=t, hidden=64) for t in tokens]
    found = inputs.held_out(NORM, captured, random.Random(seed))
    assert all(w.axes["hidden"] == 64 and w.calls == 0 for w in found)
    extents = [w.axes["tokens"] for w in found]
    assert not set(extents) & set(tokens)
    assert len(set(extents)) == len(extents)
    assert all(any(abs(e - t) <= max(2, t // 2) for t in tokens) for e in extents)
    for w in found:
        inputs.check_workload(NORM, w)


def test_a_single_captured_shape_has_neighbours() -> None:
    for tokens in (1, 4, 512):
        captured = [inputs.workload(NORM, "float32", tokens=tokens, hidden=64)]
        assert len(inputs.held_out(NORM, captured, random.Random(0))) >= 2


def test_held_out_shapes_keep_strides() -> None:
    captured = _relaid(inputs.workload(NORM, "float32", tokens=4, hidden=8), 0, (24, 1))
    found = inputs.held_out(NORM, [captured], random.Random(0))
    assert {w.inputs[0].strides for w in found} == {(24, 1)}


@pytest.mark.parametrize("axes", [{"tokens": 4}, {"tokens": 4, "hidden": 0}, {"tokens": 4, "hidden": 8, "x": 1}])
def test_a_dense_workload_needs_every_axis(axes: dict[str, int]) -> None:
    with pytest.raises(WorkloadError):
        inputs.workload(NORM, "float32", **axes)
