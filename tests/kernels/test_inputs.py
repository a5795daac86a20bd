from __future__ import annotations

import dataclasses
import itertools
import math
import random
import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.domain import AxisRange, Domain, Layout
from gristmill.workload import TensorLayout, Workload, dense
from kernels import catalogue, inputs, layouts
from kernels.definition import DTYPES, Definition
from kernels.errors import WorkloadError

NORM = catalogue.operator("rms_norm")
ROTARY = catalogue.operator("rotary_embedding")


def _relaid(workload: Workload, position: int, strides: tuple[int, ...]) -> Workload:
    layouts = list(workload.inputs)
    layouts[position] = dataclasses.replace(layouts[position], strides=strides)
    return dataclasses.replace(workload, inputs=tuple(layouts))


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


def test_half_a_pair_is_no_head() -> None:
    with pytest.raises(WorkloadError, match=r"axes.head_dim: found 7, expected a multiple of 2"):
        inputs.workload(ROTARY, "float32", tokens=1, query_heads=1, key_heads=1, head_dim=7)


def test_unknown_regime_is_refused() -> None:
    with pytest.raises(WorkloadError, match="regime: found ties"):
        inputs.materialise(NORM, GOOD, "ties", torch.Generator())


@st.composite
def domains(draw: st.DrawFn) -> tuple[Definition, Domain]:
    """Domains of any operator and dtype: some axes restricted, some pinned, some in steps."""
    definition = catalogue.operator(draw(st.sampled_from(catalogue.NAMES)))
    ranges = []
    for axis in draw(st.lists(st.sampled_from(list(definition.axes)), unique=True)):
        low = draw(st.integers(0, 200))
        high = low + draw(st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 1 << 20)))
        ranges.append(AxisRange(axis, low, high, draw(st.sampled_from((1, 1, 2, 3, 16, 64)))))
    domain = Domain(definition.name, draw(st.sampled_from(DTYPES)), tuple(ranges), draw(st.sampled_from(tuple(Layout))))
    return definition, domain


def admitted_ends(definition: Definition, domain: Domain) -> dict[str, tuple[int, int, int]]:
    """By restricted axis: the smallest, second smallest and largest extent, found by trying."""
    ends = {}
    for r in domain.ranges:
        step = definition.axis_steps.get(r.name, 1)
        period = math.lcm(step, r.multiple)
        upwards = [n for n in range(max(1, r.low), r.low + 2 * period + 1) if r.admits(n) and n % step == 0]
        downwards = [n for n in range(r.high, max(0, r.high - period), -1) if r.admits(n) and n % step == 0]
        if not upwards or not downwards:
            return {}
        ends[r.name] = (upwards[0], upwards[min(1, len(upwards) - 1)], downwards[0])
    return ends


@settings(deadline=None, max_examples=150)
@given(domains())
def test_edges_are_valid_calls_inside_the_domain(drawn: tuple[Definition, Domain]) -> None:
    definition, domain = drawn
    edges = inputs.edge_workloads(definition, domain.dtype, domain)
    for edge in edges:
        inputs.check_workload(definition, edge)
        assert domain.admits(edge), edge.label
        assert not inputs.is_far(edge)
    assert len({edge.digest for edge in edges}) == len(edges) <= 20
    assert edges == inputs.edge_workloads(definition, domain.dtype, domain)
    sizes = [sum(math.prod(tensor.shape) for tensor in edge.inputs) for edge in edges]
    assert all(size <= max(inputs.EDGE_ELEMENTS, 2 * min(sizes)) for size in sizes)
    assert sum(sizes) <= inputs.ALL_EDGES_ELEMENTS


@settings(deadline=None, max_examples=150)
@given(domains())
def test_the_ends_of_the_domain_are_edges_where_they_are_cheap(drawn: tuple[Definition, Domain]) -> None:
    definition, domain = drawn
    edges = inputs.edge_workloads(definition, domain.dtype, domain)
    ends = admitted_ends(definition, domain)
    smallest = {axis: min(edge[axis] for edge in definition.edge_axes) for axis in definition.axes}
    smallest |= {axis: low for axis, (low, _, _) in ends.items()}
    for axis, extents in ends.items():
        for extent in extents:
            cheapest = inputs.workload(definition, domain.dtype, **{**smallest, axis: extent})
            if sum(math.prod(tensor.shape) for tensor in cheapest.inputs) <= inputs.EDGE_ELEMENTS // 8:
                assert extent in {edge.axes[axis] for edge in edges}, axis


@settings(deadline=None, max_examples=150)
@given(domains())
def test_a_far_call_is_a_valid_one_inside_the_domain(drawn: tuple[Definition, Domain]) -> None:
    definition, domain = drawn
    far = inputs.far_workload(definition, domain.dtype, domain)
    if far is not None:
        inputs.check_workload(definition, far)
        assert domain.admits(far)
        assert inputs.is_far(far)
        assert sum(math.prod(tensor.shape) for tensor in far.inputs) <= inputs.EDGE_ELEMENTS
    assert far is None or domain.layout is not Layout.CONTIGUOUS


@pytest.mark.parametrize("layout", [Layout.INNER_CONTIGUOUS, Layout.ANY])
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_one_input_of_a_far_call_reaches_beyond_32_bits(name: str, layout: Layout) -> None:
    definition = catalogue.operator(name)
    stretched = {"fused_add_rms_norm": 1, "rotary_embedding": 1, "silu_and_mul": 1, "skinny_linear": 1}.get(name, 0)
    for dtype in DTYPES:
        far = inputs.far_workload(definition, dtype, Domain(name, dtype, layout=layout))
        assert far is not None
        last_rows = [(tensor.shape[0] - 1) * tensor.strides[0] for tensor in far.inputs]
        assert [place for place, offset in enumerate(last_rows) if offset >= 1 << 31] == [stretched]
        assert max(map(layouts.span, far.inputs)) < 1.01 * (1 << 31)


@pytest.mark.parametrize("name", catalogue.NAMES)
@pytest.mark.parametrize("layout", Layout)
def test_every_input_comes_in_every_arrangement_that_the_domain_admits(name: str, layout: Layout) -> None:
    definition = catalogue.operator(name)
    edges = inputs.edge_workloads(definition, "float32", Domain(name, "float32", layout=layout))
    for position, spec in enumerate(definition.inputs):
        found = {_feature(edge.inputs[position]) for edge in edges}
        expected = {"dense"}
        if layout is not Layout.CONTIGUOUS and len(spec.dims) > 1:
            expected |= {"rows apart", "expanded"}
        if layout is Layout.ANY:
            expected |= {"columns 2 apart", "columns 3 apart", "expanded"}
            expected |= {"transposed"} if len(spec.dims) > 1 else set()
        assert expected <= found, spec.name
        assert layout is not Layout.CONTIGUOUS or found == {"dense"}


def _feature(layout: TensorLayout) -> str:
    if layout.contiguous:
        return "dense"
    if 0 in layout.strides:
        return "expanded"
    if layout.strides[0] == 1:
        return "transposed"
    return "rows apart" if layout.strides[-1] == 1 else f"columns {layout.strides[-1]} apart"


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_no_input_can_be_read_with_another_one_s_strides(name: str) -> None:
    """In some edge, any two inputs of one shape have other strides."""
    definition = catalogue.operator(name)
    edges = inputs.edge_workloads(definition, "float32", Domain(name, "float32", layout=Layout.INNER_CONTIGUOUS))
    for (i, one), (j, other) in itertools.combinations(enumerate(definition.inputs), 2):
        if one.dims == other.dims:
            assert any(edge.inputs[i].strides != edge.inputs[j].strides for edge in edges)


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_an_open_domain_gets_every_edge_of_the_definition_and_one_for_threads(name: str) -> None:
    definition = catalogue.operator(name)
    for layout in Layout:
        edges = inputs.edge_workloads(definition, "bfloat16", Domain(name, "bfloat16", layout=layout))
        assert all(dict(axes) in [edge.axes for edge in edges] for axes in definition.edge_axes)
        assert max(math.prod(tensor.shape) for edge in edges for tensor in edge.inputs) > inputs.THREADED_ELEMENTS
        assert len(edges) <= 12


def test_a_domain_pinned_to_a_model_is_still_tried_at_several_token_counts() -> None:
    linear = catalogue.operator("skinny_linear")
    pinned = (AxisRange("in_features", 1024, 1024), AxisRange("out_features", 2816, 2816))
    domain = Domain("skinny_linear", "float32", (AxisRange("tokens", 1, 8), *pinned))
    assert {w.axes["tokens"] for w in inputs.edge_workloads(linear, "float32", domain)} >= {1, 2, 3, 8}
    strided = dataclasses.replace(domain, layout=Layout.ANY)
    assert not all(w.inputs[1].contiguous for w in inputs.edge_workloads(linear, "float32", strided))


def test_a_domain_that_admits_nothing_has_no_edges() -> None:
    for ranges in ((AxisRange("tokens", 0, 0),), (AxisRange("head_dim", 5, 5),), (AxisRange("columns", 1, 4),)):
        domain = Domain("rotary_embedding", "float32", ranges, Layout.ANY)
        assert inputs.edge_workloads(ROTARY, "float32", domain) == []
        assert inputs.far_workload(ROTARY, "float32", domain) is None


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_enlarged_axes_are_a_call_of_at_least_that_size(name: str) -> None:
    definition = catalogue.operator(name)
    axes = inputs.enlarged_axes(definition, 10_000)
    inputs.workload(definition, "float32", **axes)
    for spec in definition.outputs:
        assert 10_000 <= math.prod(axes[axis] for axis in spec.dims) < 1_000_000


def test_a_far_tensor_is_placed_without_touching_what_lies_between() -> None:
    far = inputs.far_workload(NORM, "bfloat16", Domain("rms_norm", "bfloat16", layout=Layout.ANY))
    assert far is not None
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x_TH, _ = inputs.materialise(NORM, far, "traffic", torch.Generator().manual_seed(0))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 1 << 16
    assert x_TH.stride() == far.inputs[0].strides
    assert bool(x_TH.isfinite().all())


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


@pytest.mark.parametrize(
    ("strides", "expected"),
    [((24, 1), {(24, 1)}), ((0, 1), {(0, 1)}), ((48, 3), {(48, 3)}), ((8, 1), {(8, 1)})],
)
def test_held_out_shapes_keep_strides(strides: tuple[int, int], expected: set[tuple[int, int]]) -> None:
    captured = _relaid(inputs.workload(NORM, "float32", tokens=4, hidden=8), 0, strides)
    found = inputs.held_out(NORM, [captured], random.Random(0))
    assert {w.inputs[0].strides for w in found} == expected


def test_held_out_shapes_of_a_transposed_call_are_transposed() -> None:
    captured = _relaid(inputs.workload(NORM, "float32", tokens=4, hidden=8), 0, (1, 4))
    found = inputs.held_out(NORM, [captured], random.Random(0))
    assert all(w.inputs[0].strides == (1, max(4, w.axes["tokens"])) for w in found)


@settings(deadline=None)
@given(domains(), st.integers(0, 1000))
def test_neighbours_of_edges_are_valid_new_and_of_the_same_layout(drawn: tuple[Definition, Domain], seed: int) -> None:
    """Edges stand for captured calls of every layout."""
    definition, domain = drawn
    captured = inputs.edge_workloads(definition, domain.dtype, domain)
    open_domain = dataclasses.replace(domain, ranges=())
    found = inputs.held_out(definition, captured, random.Random(seed))
    for neighbour in found:
        inputs.check_workload(definition, neighbour)
        assert open_domain.admits(neighbour)
        assert neighbour.axes not in [w.axes for w in captured]
    assert len({w.digest for w in found}) == len(found)


@pytest.mark.parametrize("axes", [{"tokens": 4}, {"tokens": 4, "hidden": 0}, {"tokens": 4, "hidden": 8, "x": 1}])
def test_a_dense_workload_needs_every_axis(axes: dict[str, int]) -> None:
    with pytest.raises(WorkloadError):
        inputs.workload(NORM, "float32", **axes)
