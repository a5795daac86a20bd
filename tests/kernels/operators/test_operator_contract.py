"""What every definition must hold, and that a check by its own error scale can fail.

The rule tried here is the judge's: error over scale, in the maximum, at most four times the baseline's, plus one ulp.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gristmill.workload import ITEM_BYTES, Workload
from kernels import catalogue, inputs
from kernels.definition import DTYPES, Definition

SIZES = {
    "rms_norm": {"tokens": 5, "hidden": 257},
    "fused_add_rms_norm": {"tokens": 5, "hidden": 257},
    "silu_and_mul": {"tokens": 5, "intermediate": 257},
    "rotary_embedding": {"tokens": 5, "query_heads": 4, "key_heads": 2, "head_dim": 64},
    "softmax": {"rows": 5, "columns": 257},
    "skinny_linear": {"tokens": 5, "in_features": 257, "out_features": 65},
}
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}
"""Bound on any baseline's error over scale: a few roundings."""

POISON = 7e5
"""What an output holds where a kernel did not write."""

CASES = [(d.name, dtype, regime) for d in catalogue.operators() for dtype in DTYPES for regime in d.regimes]


class Drawn:
    """One call's inputs, its float64 answer, and the error measure of its definition."""

    def __init__(self, name: str, dtype: str, regime: str, axes: dict[str, int] | None = None, seed: int = 7) -> None:
        self.definition = catalogue.operator(name)
        sizes = axes or {axis: SIZES[name][axis] for axis in self.definition.axes}
        self.workload = inputs.workload(self.definition, dtype, **sizes)
        self.scalars = tuple(s.default for s in self.definition.scalars)
        generator = torch.Generator().manual_seed(seed)
        self.inputs = inputs.materialise(self.definition, self.workload, regime, generator)
        exact = tuple(tensor.double() for tensor in self.inputs)
        self.expected = self.definition.reference(*exact, *self.scalars)
        self.scales = self.definition.error_scale(*exact, *self.scalars)
        self.ulp = torch.finfo(getattr(torch, dtype)).eps

    def errors(self, outputs: tuple[Tensor, ...]) -> list[float]:
        """Largest error over scale per output; a value that is not finite counts as infinitely wrong."""
        return [
            ((found.double() - expected).abs() / scale).nan_to_num(nan=torch.inf).max().item()
            for found, expected, scale in zip(outputs, self.expected, self.scales, strict=True)
        ]

    def baseline(self, name: str = "eager") -> tuple[Tensor, ...]:
        return self.definition.baselines[name](*self.inputs, *self.scalars)

    def accepts(self, outputs: tuple[Tensor, ...]) -> bool:
        allowed = self.errors(self.baseline())
        return all(error <= 4 * base + self.ulp for error, base in zip(self.errors(outputs), allowed, strict=True))


@pytest.mark.parametrize(("name", "dtype", "regime"), CASES)
def test_baselines_agree_with_the_float64_reference(name: str, dtype: str, regime: str) -> None:
    drawn = Drawn(name, dtype, regime)
    for baseline in drawn.definition.baselines:
        outputs = drawn.baseline(baseline)
        assert max(drawn.errors(outputs)) < TOLERANCE[dtype]
        assert [tuple(o.shape) for o in outputs] == [tuple(e.shape) for e in drawn.expected]
        assert all(o.dtype is getattr(torch, dtype) for o in outputs)
        assert drawn.accepts(outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_baselines_hold_at_every_edge(name: str, dtype: str) -> None:
    for axes in catalogue.operator(name).edge_axes:
        for regime in catalogue.operator(name).regimes:
            assert Drawn(name, dtype, regime, dict(axes)).accepts(Drawn(name, dtype, regime, dict(axes)).baseline())


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


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "dtype", "regime"), CASES)
def test_no_regime_lets_a_wrong_answer_pass(
    name: str, dtype: str, regime: str, wrong: Callable[[Drawn], tuple[Tensor, ...]]
) -> None:
    drawn = Drawn(name, dtype, regime)
    assert not drawn.accepts(wrong(drawn))


@pytest.mark.parametrize(("name", "dtype", "regime"), CASES)
def test_no_regime_lets_a_copy_of_an_input_pass(name: str, dtype: str, regime: str) -> None:
    drawn = Drawn(name, dtype, regime)
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
            assert not drawn.accepts(tuple(outputs))


@pytest.mark.parametrize("name", catalogue.NAMES)
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


@pytest.mark.parametrize(("name", "dtype", "regime"), CASES)
def test_inputs_depend_on_the_seed_and_on_nothing_else(name: str, dtype: str, regime: str) -> None:
    first, again, other = (Drawn(name, dtype, regime, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.inputs, again.inputs, strict=True))
    changing = [not torch.equal(a, b) for a, b in zip(first.inputs, other.inputs, strict=True)]
    assert all(changing)


@pytest.mark.parametrize(("name", "dtype", "regime"), CASES)
def test_answers_are_finite_and_scales_positive(name: str, dtype: str, regime: str) -> None:
    drawn = Drawn(name, dtype, regime)
    assert all(e.isfinite().all() for e in drawn.expected)
    assert all((s > 0).all() and s.isfinite().all() and s.dtype is torch.float64 for s in drawn.scales)
    assert [s.shape for s in drawn.scales] == [e.shape for e in drawn.expected]


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_cost_counts_every_byte_once(name: str) -> None:
    definition = catalogue.operator(name)
    for dtype in DTYPES:
        axes = {axis: SIZES[name][axis] for axis in definition.axes}
        workload = inputs.workload(definition, dtype, **axes)
        cost = definition.cost(axes, ITEM_BYTES[dtype])
        assert cost.bytes_read == sum(inputs.distinct_bytes(layout) for layout in workload.inputs)
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


def test_masks_occur_and_never_cover_a_whole_row() -> None:
    drawn = Drawn("softmax", "float32", "nonfinite")
    masked_RC = torch.isinf(drawn.inputs[0])
    assert masked_RC.any()
    assert not masked_RC.all(-1).any()
