"""What every definition must hold, and that a check by its own error scale can fail.

The rule tried here is the judge's: error over scale, in the maximum, at most four times the baseline's, plus one ulp.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from gristmill.workload import ITEM_BYTES, Workload
from kernels import catalogue, inputs, layouts
from kernels.definition import DTYPES, Definition, Role

SIZES = {
    "rms_norm": {"tokens": 5, "hidden": 257},
    "fused_add_rms_norm": {"tokens": 5, "hidden": 257},
    "silu_and_mul": {"tokens": 13, "intermediate": 257},
    "rotary_embedding": {"tokens": 5, "query_heads": 4, "key_heads": 2, "head_dim": 64},
    "softmax": {"rows": 5, "columns": 257},
    "skinny_linear": {"tokens": 5, "in_features": 257, "out_features": 65},
    "residual_add": {"tokens": 5, "hidden": 257},
    "residual_add++rms_norm": {"tokens": 5, "hidden": 257},
    "rms_norm+skinny_linear": {"tokens": 5, "hidden": 257, "out_features": 65},
    "silu_and_mul+skinny_linear": {"tokens": 13, "intermediate": 257, "out_features": 65},
    "skinny_linear-skinny_linear": {"tokens": 5, "in_features": 257, "out_features": 65, "out_features_2": 33},
    "skinny_linear-skinny_linear+silu_and_mul": {"tokens": 5, "in_features": 257, "out_features": 65},
    "skinny_linear+residual_add++rms_norm": {"tokens": 17, "in_features": 65, "out_features": 257},
}
NAMES = tuple(SIZES)
"""The catalogue, its parts, and some that are fused of them."""
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}
"""Bound on any baseline's error over scale: a few roundings."""

POISON = 7e5
"""What an output holds where a kernel did not write."""

CASES = [(name, dtype, regime) for name in NAMES for dtype in DTYPES for regime in catalogue.operator(name).regimes]


class Drawn:
    """One call's inputs, its float64 answer, and the error measure of its definition."""

    def __init__(
        self, name: str, dtype: str, regime: str, axes: Mapping[str, int] | None = None, seed: int = 7
    ) -> None:
        self.definition = catalogue.operator(name)
        self.workload = inputs.workload(self.definition, dtype, **(axes or SIZES[name]))
        self.scalars = tuple(s.default for s in self.definition.scalars)
        generator = torch.Generator().manual_seed(seed)
        self.inputs = inputs.materialise(self.definition, self.workload, regime, generator)
        exact = tuple(tensor.double() for tensor in self.inputs)
        self.expected = self.definition.reference(*exact, *self.scalars)
        self.scales = self.definition.error_scale(*exact, *self.scalars)
        self.ulp = torch.finfo(getattr(torch, dtype)).eps

    def errors(self, outputs: Sequence[Tensor]) -> list[float]:
        """Largest error over scale per output; NaN and infinity are right where they are expected, and infinitely wrong
        elsewhere.
        """
        largest = []
        for found, expected, scale in zip(outputs, self.expected, self.scales, strict=True):
            error = ((found.double() - expected).abs() / scale).nan_to_num(nan=torch.inf)
            alike = (found == expected) | (found.isnan() & expected.isnan())
            largest.append(torch.where(alike, 0.0, error).max().item())
        return largest

    def baseline(self, name: str = "eager") -> tuple[Tensor, ...]:
        return self.definition.baselines[name](*self.inputs, *self.scalars)

    def accepts(self, outputs: Sequence[Tensor]) -> bool:
        allowed = self.errors(self.baseline())
        return all(error <= 4 * base + self.ulp for error, base in zip(self.errors(outputs), allowed, strict=True))


@functools.cache
def drawn_once(name: str, dtype: str, regime: str) -> Drawn:
    return Drawn(name, dtype, regime)


def _zeros(drawn: Drawn) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(e) for e in drawn.expected)


def _constant(drawn: Drawn) -> tuple[Tensor, ...]:
    return tuple(torch.full_like(e, e.mean().item()) for e in drawn.expected)


def _row_constant(drawn: Drawn) -> tuple[Tensor, ...]:
    return tuple(e.mean(-1, keepdim=True).expand_as(e) for e in drawn.expected)


def _tail_unwritten(drawn: Drawn) -> tuple[Tensor, ...]:
    outputs = tuple(e.clone() for e in drawn.expected)
    for output in outputs:
        output[..., -1] = POISON
    return outputs


def _rows_swapped(drawn: Drawn) -> tuple[Tensor, ...]:
    return tuple(e.roll(1, 0) for e in drawn.expected)


def _columns_shifted(drawn: Drawn) -> tuple[Tensor, ...]:
    return tuple(e.roll(1, -1) for e in drawn.expected)


WRONG = (_zeros, _constant, _row_constant, _tail_unwritten, _rows_swapped, _columns_shifted)


@pytest.mark.parametrize(("name", "dtype", "regime"), CASES)
class TestEveryRegime:
    """What holds of every operator, dtype and regime; a new definition cannot skip it."""

    @pytest.fixture
    def drawn(self, name: str, dtype: str, regime: str) -> Drawn:
        return drawn_once(name, dtype, regime)

    def test_baselines_agree_with_the_float64_reference(self, drawn: Drawn, dtype: str) -> None:
        for baseline in drawn.definition.baselines:
            outputs = drawn.baseline(baseline)
            assert max(drawn.errors(outputs)) < TOLERANCE[dtype], baseline
            assert [tuple(o.shape) for o in outputs] == [tuple(e.shape) for e in drawn.expected]
            assert all(o.dtype is getattr(torch, dtype) for o in outputs)
            assert drawn.accepts(outputs)

    def test_the_rounded_reference_is_accepted(self, drawn: Drawn, dtype: str) -> None:
        assert drawn.accepts([expected.to(getattr(torch, dtype)) for expected in drawn.expected])

    def test_baselines_hold_at_every_edge(self, drawn: Drawn, name: str, dtype: str, regime: str) -> None:
        for axes in drawn.definition.edge_axes:
            edge = Drawn(name, dtype, regime, axes)
            assert edge.accepts(edge.baseline()), axes

    def test_no_wrong_answer_passes(self, drawn: Drawn) -> None:
        for wrong in WRONG:
            assert not drawn.accepts(wrong(drawn)), wrong.__name__

    def test_no_copy_of_an_input_passes(self, drawn: Drawn) -> None:
        for position, expected in enumerate(drawn.expected):
            for tensor in drawn.inputs:
                if tensor.dim() > expected.dim() or tensor.shape[-1] != expected.shape[-1]:
                    continue
                if tensor.dim() == expected.dim() and tensor.shape != expected.shape:
                    continue
                copy = tensor.double()
                while copy.dim() < expected.dim():
                    copy = copy.unsqueeze(1) if copy.dim() > 1 else copy.unsqueeze(0)
                outputs = list(drawn.expected)
                outputs[position] = copy.expand_as(expected)
                assert not drawn.accepts(outputs)

    def test_inputs_depend_on_the_seed_and_on_nothing_else(
        self, drawn: Drawn, name: str, dtype: str, regime: str
    ) -> None:
        again, other = (Drawn(name, dtype, regime, seed=seed) for seed in (7, 8))
        assert all(_same(a, b) for a, b in zip(drawn.inputs, again.inputs, strict=True))
        assert not any(_same(a, b) for a, b in zip(drawn.inputs, other.inputs, strict=True))

    def test_scales_are_positive_where_answers_are_finite(self, drawn: Drawn, regime: str) -> None:
        for expected, scale in zip(drawn.expected, drawn.scales, strict=True):
            assert scale.shape == expected.shape
            assert scale.dtype is torch.float64
            finite = expected.isfinite()
            assert bool(finite.all()) or regime == "nonfinite"
            assert bool(((scale > 0) & scale.isfinite())[finite].all())

    def test_a_row_does_not_depend_on_nan_and_infinity_in_others(self, drawn: Drawn) -> None:
        """Rows with a finite answer, of which there are some, keep it when the other rows are zero."""
        alone = [
            tensor if spec.role is Role.WEIGHT else tensor.where(_sound(tensor), torch.zeros_like(tensor))
            for spec, tensor in zip(drawn.definition.inputs, drawn.inputs, strict=True)
        ]
        outputs = drawn.definition.baselines["eager"](*alone, *drawn.scalars)
        for found, beside in zip(outputs, drawn.baseline(), strict=True):
            finite = beside.isfinite().all(-1)
            assert bool(finite.any())
            torch.testing.assert_close(found[finite], beside[finite])

    def test_weights_are_drawn_alike(self, drawn: Drawn, name: str, dtype: str) -> None:
        """What is stressed is activations: a weight from one regime serves in any other."""
        first = drawn_once(name, dtype, drawn.definition.regimes[0])
        for spec, tensor, usual in zip(drawn.definition.inputs, drawn.inputs, first.inputs, strict=True):
            if spec.role is Role.WEIGHT:
                levels = torch.tensor((0.1, 0.25, 0.5, 0.75, 0.9))
                found, expected = (t.float().flatten().quantile(levels) for t in (tensor, usual))
                assert bool(((found - expected).abs() < 0.5 * usual.float().std()).all())
                assert bool((tensor.abs() <= 2 * usual.abs().max()).all())


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(nan=POISON), b.nan_to_num(nan=POISON))


def _sound(tensor: Tensor) -> Tensor:
    """Rows without NaN and plus infinity; minus infinity may be a mask."""
    return (tensor < torch.inf).all(-1, keepdim=True)


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_told_from_bfloat16_arithmetic(name: str) -> None:
    drawn = Drawn(name, "float32", "traffic")
    low = tuple(tensor.bfloat16() for tensor in drawn.inputs)
    assert not drawn.accepts(drawn.definition.baselines["eager"](*low, *drawn.scalars))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm", "softmax", "skinny_linear"])
def test_dropping_the_last_term_of_a_sum_is_seen(name: str, dtype: str) -> None:
    """`wide` puts an outlier there."""
    drawn = Drawn(name, dtype, "wide")
    shortened = tuple(t.double().clone() for t in drawn.inputs)
    shortened[0][..., -1] = -torch.inf if name == "softmax" else 0
    if name == "fused_add_rms_norm":
        shortened[1][..., -1] = 0
    assert not drawn.accepts(drawn.definition.reference(*shortened, *drawn.scalars))


@pytest.mark.parametrize("name", NAMES)
def test_cost_counts_every_byte_once(name: str) -> None:
    definition = catalogue.operator(name)
    for dtype in DTYPES:
        axes = SIZES[name]
        workload = inputs.workload(definition, dtype, **axes)
        cost = definition.cost(axes, ITEM_BYTES[dtype])
        assert cost.bytes_read == sum(layouts.distinct_bytes(layout) for layout in workload.inputs)
        assert cost.bytes_written == _output_bytes(definition, workload)
        assert cost.flops > 0


def _output_bytes(definition: Definition, workload: Workload) -> int:
    elements = 0
    for spec in definition.outputs:
        product = 1
        for axis in spec.dims:
            product *= workload.axes[axis]
        elements += product
    return elements * ITEM_BYTES[workload.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in NAMES if catalogue.operator(name).independent_axis])
def test_a_part_of_the_weights_gives_that_part_of_the_answer(name: str, dtype: str) -> None:
    definition = catalogue.operator(name)
    axis = definition.independent_axis
    assert all((axis in spec.dims) == (spec.role is Role.WEIGHT) for spec in definition.inputs)
    drawn = drawn_once(name, dtype, "traffic")
    part = [
        tensor.double().narrow(spec.dims.index(axis), 3, 5) if axis in spec.dims else tensor.double()
        for spec, tensor in zip(definition.inputs, drawn.inputs, strict=True)
    ]
    for spec, found, whole in zip(
        definition.outputs, definition.reference(*part, *drawn.scalars), drawn.expected, strict=True
    ):
        torch.testing.assert_close(found, whole.narrow(spec.dims.index(axis), 3, 5))


@pytest.mark.parametrize("name", [name for name in NAMES if "nonfinite" in catalogue.operator(name).regimes])
def test_extreme_and_nonfinite_values_really_occur(name: str) -> None:
    extreme = Drawn(name, "float32", "extreme").inputs[0]
    tiny = torch.finfo(torch.float32).tiny
    assert bool((extreme == 0).any())
    assert bool(((extreme.abs() < tiny) & (extreme != 0)).any())
    assert bool((extreme.abs() > 1e14).any())
    assert bool(Drawn(name, "float32", "nonfinite").inputs[0].isnan().any())


def test_the_whole_catalogue_is_tried() -> None:
    assert {*catalogue.NAMES, *catalogue.PARTS} <= set(NAMES)


def test_softmax_of_a_row_is_masked_in_part() -> None:
    x_RC = Drawn("softmax", "float32", "nonfinite").inputs[0]
    masked_RC = torch.isinf(x_RC)
    assert masked_RC.any()
    assert not masked_RC.all(-1).any()
