"""Every definition's correctness rule can fail: it rejects what is wrong, and accepts what is right, in every dtype.

It runs over the whole catalogue, so that no definition comes into use without it.
"""

from __future__ import annotations

import pytest
import torch

from harness import comparer
from harness.draws import Draws
from kernels import catalogue
from kernels.definition import DTYPES
from kernels.inputs import workload

LARGER = {
    "rms_norm": {"tokens": 9, "hidden": 320},
    "fused_add_rms_norm": {"tokens": 9, "hidden": 320},
    "silu_and_mul": {"tokens": 9, "intermediate": 320},
    "rotary_embedding": {"tokens": 9, "query_heads": 4, "key_heads": 2, "head_dim": 64},
    "softmax": {"rows": 9, "columns": 320},
    "skinny_linear": {"tokens": 9, "in_features": 320, "out_features": 200},
}
"""A new operator without sizes here fails the first test."""
CASES = [(definition.name, dtype) for definition in catalogue.operators() for dtype in DTYPES]
LOST_BITS = {"float32": 13, "bfloat16": 4}
"""Of the mantissa, in the lower-precision reference: TF32 for float32, three bits left for bfloat16."""


class Case:
    """One operator, dtype and regime with the outputs of its baseline."""

    def __init__(self, name: str, dtype: str, regime: str, seed: int = 11) -> None:
        self.definition = catalogue.operator(name)
        made = workload(self.definition, dtype, **LARGER[name])
        first = self.definition.regimes[0]
        traffic = Draws(self.definition, made, first, seed)
        self.draws = traffic if regime == first else Draws(self.definition, made, regime, seed, traffic)
        self.scalars = tuple(scalar.default for scalar in self.definition.scalars)
        self.dtype = getattr(torch, dtype)
        generator = torch.Generator().manual_seed(seed + 1)
        self.inputs = self.definition.make_inputs(generator, made.axes, dtype, regime)
        self.expected = self.draws.expected([tensor[None] for tensor in self.inputs])
        self.right = [expected.values.to(self.dtype) for expected in self.expected]

    def accepts(self, index: int, output: torch.Tensor) -> bool:
        return comparer.compare(output, self.expected[index], self.draws.facts[index], workload="w", output="o") is None


@pytest.fixture(scope="module", params=CASES, ids=[f"{name}-{dtype}" for name, dtype in CASES])
def case(request):
    name, dtype = request.param
    return Case(name, dtype, "traffic")


def outputs(case):
    return range(len(case.definition.outputs))


def test_the_rounded_reference_and_all_baselines_are_accepted(case):
    for regime in case.definition.regimes:
        other = Case(case.definition.name, str(case.dtype).removeprefix("torch."), regime)
        for index in outputs(other):
            assert other.accepts(index, other.right[index]), f"{regime}: rounded reference"
        for name, baseline in other.definition.baselines.items():
            for index, output in enumerate(baseline(*other.inputs, *other.scalars)):
                assert other.accepts(index, output[None]), f"{regime}: {name}"


def test_zeros_and_constants_are_rejected(case):
    for index in outputs(case):
        for value in (0.0, 1.0, float(case.right[index].to(torch.float64).mean()), float("nan"), float("inf")):
            assert not case.accepts(index, torch.full_like(case.right[index], value)), value


def test_copies_of_inputs_are_rejected(case):
    for index in outputs(case):
        wanted = case.right[index]
        for tensor in case.inputs:
            if tensor.numel() >= wanted.numel():
                copy = tensor.flatten()[: wanted.numel()].reshape(wanted.shape)
                assert not case.accepts(index, copy)


def test_a_lower_precision_reference_is_rejected(case):
    """Inputs rounded to fewer bits, the rest exact."""
    lost = LOST_BITS[str(case.dtype).removeprefix("torch.")]
    kind = {4: torch.int32, 2: torch.int16}[case.dtype.itemsize]
    rough = [
        ((t.view(kind) + (1 << (lost - 1))) & -(1 << lost)).view(case.dtype).to(torch.float64) for t in case.inputs
    ]
    for index, output in enumerate(case.definition.reference(*rough, *case.scalars)):
        assert not case.accepts(index, output.to(case.dtype)[None])


def test_lower_precision_outputs_are_rejected(case):
    lost = LOST_BITS[str(case.dtype).removeprefix("torch.")]
    kind = {4: torch.int32, 2: torch.int16}[case.dtype.itemsize]
    for index in outputs(case):
        rough = ((case.right[index].view(kind) + (1 << (lost - 1))) & -(1 << lost)).view(case.dtype)
        assert not case.accepts(index, rough)


def test_a_dropped_tail_is_rejected(case):
    for index in outputs(case):
        for kept in (-1, -7):
            output = case.right[index].clone()
            output.flatten()[kept:] = 0
            assert not case.accepts(index, output)


def test_a_tail_dropped_from_the_inputs_is_rejected(case):
    """The last value of each row is not read: as a loop over whole vectors would have it."""
    short = [tensor.clone().to(torch.float64) for tensor in case.inputs]
    for tensor in short:
        tensor[..., -1] = 0
    for index, output in enumerate(case.definition.reference(*short, *case.scalars)):
        assert not case.accepts(index, output.to(case.dtype)[None])


def test_one_wrong_row_is_rejected(case):
    for index in outputs(case):
        output = case.right[index].clone()
        output[0, 3] = output[0, 4]
        assert not case.accepts(index, output)


def test_one_wrong_element_among_many_is_rejected(case):
    for index in outputs(case):
        output = case.right[index].clone()
        flat = output.view(-1)
        position = int(flat.abs().to(torch.float64).sort().indices[flat.numel() // 2])
        flat[position] = -flat[position]
        assert not case.accepts(index, output)


def test_one_misplaced_nan_is_rejected(case):
    for index in outputs(case):
        for value in (float("nan"), float("inf"), float("-inf")):
            output = case.right[index].clone()
            output.view(-1)[-2] = value
            assert not case.accepts(index, output)


def test_another_call_s_output_is_rejected(case):
    other = Case(case.definition.name, str(case.dtype).removeprefix("torch."), "traffic", seed=23)
    for index in outputs(case):
        assert not case.accepts(index, other.right[index])
