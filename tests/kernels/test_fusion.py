"""Fused operators are made of their parts, and of nothing else.

Shape suffixes: T tokens, H hidden.
"""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.store import checked_key
from gristmill.workload import ITEM_BYTES
from kernels import catalogue, fusion_plan, inputs
from kernels.definition import Role
from kernels.errors import UnknownOperatorError
from kernels.fusion_plan import Stage

LINEAR = "skinny_linear"
GATED = f"{LINEAR}-{LINEAR}+silu_and_mul"
names = st.sampled_from((*catalogue.NAMES, *catalogue.PARTS))
plans = st.lists(
    st.builds(Stage, st.lists(names, min_size=1, max_size=3).map(tuple), st.booleans()), min_size=1, max_size=4
).map(lambda stages: (*stages[:-1], Stage(stages[-1].operators)))


def drawn(name: str, **axes: int) -> tuple[torch.Tensor, ...]:
    definition = catalogue.operator(name)
    made = inputs.workload(definition, "float32", **axes)
    return inputs.materialise(definition, made, "traffic", torch.Generator().manual_seed(3))


@given(plans)
def test_a_name_is_its_plan(stages: tuple[Stage, ...]) -> None:
    assert fusion_plan.parse(fusion_plan.render(stages)) == stages


@given(plans)
def test_every_name_is_one_part_of_an_object_key(stages: tuple[Stage, ...]) -> None:
    name = fusion_plan.render(stages)
    assert "/" not in checked_key(f"{name}.float32.json")


@settings(deadline=None, max_examples=40)
@given(plans)
def test_parts_compose_or_are_refused_with_one_line(stages: tuple[Stage, ...]) -> None:
    """What composes is sound in everything that the judge relies on."""
    name = fusion_plan.render(stages)
    try:
        definition = catalogue.operator(name)
    except UnknownOperatorError as error:
        assert name in str(error) and "\n" not in str(error)
        return
    tensors = [spec.name for spec in (*definition.inputs, *definition.outputs)]
    assert len(set(tensors)) == len(tensors) and all(tensor.isidentifier() for tensor in tensors)
    assert {axis for spec in (*definition.inputs, *definition.outputs) for axis in spec.dims} == set(definition.axes)
    assert definition.name == name and definition.regimes[0] == "traffic"
    assert len(definition.axes) - len(definition.constant_axes) == 1
    assert definition.edge_axes[0] == min(definition.edge_axes, key=lambda edge: math.prod(edge.values()))
    for edge in definition.edge_axes:
        inputs.workload(definition, "float32", **edge)
    small = catalogue.operator(name).edge_axes[1]
    drawn_tensors = drawn(name, **small)
    scalars = [scalar.default for scalar in definition.scalars]
    for answers in (definition.reference, definition.error_scale, *definition.baselines.values()):
        found = answers(*drawn_tensors, *scalars)
        assert [tuple(t.shape) for t in found] == [tuple(small[d] for d in s.dims) for s in definition.outputs]


@settings(deadline=None, max_examples=40)
@given(plans)
def test_traffic_is_that_of_inputs_and_outputs(stages: tuple[Stage, ...]) -> None:
    """The parts' own, without what passes between them."""
    name = fusion_plan.render(stages)
    try:
        definition = catalogue.operator(name)
    except UnknownOperatorError:
        return
    axes = dict(definition.edge_axes[5])
    cost = definition.cost(axes, ITEM_BYTES["bfloat16"])
    elements = [
        sum(math.prod(axes[d] for d in spec.dims) for spec in specs)
        for specs in (definition.inputs, definition.outputs)
    ]
    assert (cost.bytes_read, cost.bytes_written) == (2 * elements[0], 2 * elements[1])


def test_unknown_parts_are_named_with_those_that_there_are() -> None:
    for name in ("rms_nrom+skinny_linear", "rms_norm+", "+rms_norm", "rms_norm+++softmax", "rms_norm-", "-"):
        with pytest.raises(UnknownOperatorError, match="choose one of rms_norm") as caught:
            catalogue.operator(name)
        assert repr(name) in str(caught.value)


def test_so_many_parts_are_refused() -> None:
    with pytest.raises(UnknownOperatorError, match="9 parts, expected at most 8"):
        catalogue.check_name("+".join(["rms_norm"] * 9))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{LINEAR}+rotary_embedding", "out_TN of skinny_linear has 2 dimensions, q_TND of rotary_embedding has 3"),
        ("rms_norm-rotary_embedding", "x_TH of rms_norm has 2 dimensions, q_TND of rotary_embedding has 3"),
        (f"rotary_embedding+{LINEAR}", "q_out_TND of rotary_embedding has 3 dimensions"),
    ],
)
def test_what_does_not_compose_says_why(name: str, why: str) -> None:
    with pytest.raises(UnknownOperatorError, match=why):
        catalogue.operator(name)


def test_checking_a_fused_name_imports_no_torch() -> None:
    code = f"import sys, kernels.catalogue as c; c.check_name({GATED!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_residual_and_its_norm_are_the_hand_written_operator() -> None:
    made, known = catalogue.operator("residual_add++rms_norm"), catalogue.operator("fused_add_rms_norm")
    assert [(s.name, s.dims, s.role) for s in made.inputs] == [(s.name, s.dims, s.role) for s in known.inputs]
    assert [(s.name, s.dims) for s in made.outputs] == [(s.name, s.dims) for s in known.outputs]
    assert (made.scalars, made.constant_axes, made.row_axis) == (known.scalars, known.constant_axes, known.row_axis)
    assert (made.regimes, tuple(made.edge_axes)) == (known.regimes, tuple(known.edge_axes))
    axes = {"tokens": 5, "hidden": 257}
    assert made.cost(axes, 4) == known.cost(axes, 4)
    tensors = drawn("fused_add_rms_norm", **axes)
    exact = [tensor.double() for tensor in tensors]
    for ours, theirs in zip(made.reference(*exact, 1e-6), known.reference(*exact, 1e-6), strict=True):
        assert torch.equal(ours, theirs)
    for name, baseline in known.baselines.items():
        for ours, theirs in zip(made.baselines[name](*tensors, 1e-6), baseline(*tensors, 1e-6), strict=True):
            assert torch.equal(ours, theirs)


def test_an_intermediate_is_an_output_only_if_it_is_kept() -> None:
    assert [s.name for s in catalogue.operator("residual_add+rms_norm").outputs] == ["out_TH"]
    kept = catalogue.operator(f"rms_norm++{LINEAR}-{LINEAR}")
    assert [s.name for s in kept.outputs] == ["out_TN", "out2_TN", "out_TH"]
    left = catalogue.operator(f"fused_add_rms_norm+{LINEAR}")
    assert [s.name for s in left.outputs] == ["out_TN", "residual_out_TH"], "nobody was fed by the sum"


def test_side_by_side_operators_read_one_input() -> None:
    definition = catalogue.operator(f"{LINEAR}-{LINEAR}")
    assert [s.name for s in definition.inputs] == ["x_TK", "weight_NK", "weight2_NK"]
    assert list(definition.axes) == ["tokens", "in_features", "out_features", "out_features_2"]
    assert any(edge["out_features"] != edge["out_features_2"] for edge in definition.edge_axes)


def test_outputs_feed_inputs_in_their_order() -> None:
    definition = catalogue.operator(GATED)
    x, gate, up = drawn(GATED, tokens=3, in_features=8, out_features=5)
    (found,) = definition.reference(x, gate, up)
    torch.testing.assert_close(found, torch.nn.functional.silu(x @ gate.T) * (x @ up.T))


def test_the_engine_rounds_what_passes_between_parts() -> None:
    x, norm, weight = (t.bfloat16() for t in drawn(f"rms_norm+{LINEAR}", tokens=3, hidden=64, out_features=9))
    (between,) = catalogue.operator("rms_norm").baselines["eager"](x, norm, 1e-6)
    assert between.dtype is torch.bfloat16
    (found,) = catalogue.operator(f"rms_norm+{LINEAR}").baselines["eager"](x, norm, weight, 1e-6)
    assert torch.equal(found, torch.nn.functional.linear(between, weight))


def test_an_independent_axis_needs_weights_that_all_have_it() -> None:
    """The norm's weight has none of the projection's outputs; an elementwise part goes along."""
    assert catalogue.operator(GATED).independent_axis == "out_features"
    for name in (f"rms_norm+{LINEAR}", f"{LINEAR}+softmax", f"{LINEAR}-{LINEAR}", f"{GATED}+{LINEAR}"):
        assert catalogue.operator(name).independent_axis == "", name
    assert all(spec.role is Role.WEIGHT for spec in catalogue.operator(GATED).inputs if "out_features" in spec.dims)


def test_a_gate_that_a_projection_gives_may_be_anything() -> None:
    """Minus infinity among them, for which the gated activation has no answer: that regime is left out."""
    assert "nonfinite" not in catalogue.operator(GATED).regimes
    assert "nonfinite" in catalogue.operator(f"silu_and_mul+{LINEAR}").regimes


def test_what_overflows_between_the_parts_is_not_asked() -> None:
    """Two huge activations are multiplied, and the product is squared: float32 has no answer, nobody can be wrong."""
    for name in ("silu_and_mul+rms_norm", f"{GATED}+rms_norm"):
        assert "extreme" not in catalogue.operator(name).regimes, name
    for name in ("residual_add+rms_norm", f"silu_and_mul+{LINEAR}", GATED):
        assert "extreme" in catalogue.operator(name).regimes, name


@given(plans)
def test_a_fused_operator_is_made_of_its_parts(stages: tuple[Stage, ...]) -> None:
    whole = fusion_plan.render(stages)
    assert fusion_plan.is_part(whole, whole)
    for stage in stages:
        assert fusion_plan.is_part(fusion_plan.render((Stage(stage.operators[:1]),)), whole)
    longer = fusion_plan.render((*stages, Stage(("softmax",))))
    assert fusion_plan.is_part(whole, longer) and not fusion_plan.is_part(longer, whole)


def test_parts_lie_in_a_row() -> None:
    assert fusion_plan.is_part(f"{LINEAR}+silu_and_mul", f"rms_norm+{GATED}")
    assert not fusion_plan.is_part("rms_norm+silu_and_mul", f"rms_norm+{GATED}")
    assert not fusion_plan.is_part(f"{LINEAR}-{LINEAR}-{LINEAR}", GATED)
