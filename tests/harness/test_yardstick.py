"""Sums one by one are what they say, and only they."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness import yardstick
from harness.comparer import ErrorFacts, Expected
from harness.sharpness import Exam
from harness.yardstick import SerialSums
from kernels import catalogue
from kernels.inputs import workload


def serially(function, *tensors):
    with torch.no_grad(), SerialSums():
        return function(*tensors)


def loop_sum(values):
    total = np.float32(0)
    for value in values:
        total = np.float32(total + np.float32(value))
    return float(total)


def test_a_sum_is_the_loop_s():
    x_RC = torch.randn(3, 777, generator=torch.Generator().manual_seed(1)) + 5
    found = serially(lambda x: x.sum(-1), x_RC)
    assert found.tolist() == [loop_sum(row) for row in x_RC.tolist()]
    assert serially(lambda x: x.mean(-1, keepdim=True), x_RC).shape == (3, 1)
    assert serially(lambda x: x.mean(), x_RC).shape == ()
    assert serially(lambda x: x.sum((0, 1)), x_RC).dim() == 0


@pytest.mark.parametrize("shapes", [((4, 33), (33, 5)), ((2, 4, 33), (2, 33, 5))])
def test_a_product_sums_one_by_one(shapes):
    generator = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(shape, generator=generator) for shape in shapes)
    found = serially(torch.matmul, x, weight)
    torch.testing.assert_close(found, x @ weight)
    terms = (x.reshape(-1, 33)[0] * weight.reshape(-1, 33, 5)[0, :, 0]).tolist()
    assert float(found.flatten()[0]) == loop_sum(terms)


def test_float64_is_left_alone():
    x_C = torch.randn(999, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert float(serially(torch.sum, x_C)) == float(x_C.sum())


def test_facts_only_grow_and_only_in_float32():
    definition = catalogue.operator("softmax")
    inputs = [torch.randint(-2, 3, (1, 4, 8192), generator=torch.Generator().manual_seed(5)).float()]
    exact = definition.reference(inputs[0].double())[0]
    wanted = [Expected(exact, definition.error_scale(inputs[0].double())[0], torch.float32)]
    narrow = ErrorFacts(0.5, 0.1, 0.2, 0.5)
    wide = ErrorFacts(1e9, 1e9, 1e9, 1e9)
    (grown,) = yardstick.widened(definition, inputs, wanted, [narrow])
    assert grown.largest > narrow.largest and grown.line > narrow.line and grown.sums > narrow.sums == 0
    assert yardstick.widened(definition, inputs, wanted, [wide]) == (replace(wide, sums=grown.sums),)
    rough = [Expected(wanted[0].values, wanted[0].scale, torch.bfloat16)]
    assert yardstick.widened(definition, [inputs[0].bfloat16()], rough, [narrow]) == (narrow,)


@pytest.mark.parametrize(("name", "axes"), [("softmax", (6, 4096)), ("rms_norm", (6, 8192))])
def test_any_order_of_a_plain_sum_is_honest(name, axes):
    """Forwards, backwards, in steps and shuffled, over every regime."""
    definition = catalogue.operator(name)
    exam = Exam(definition, workload(definition, "float32", **dict(zip(definition.axes, axes, strict=True))))
    length = axes[1]
    shuffled = torch.randperm(length, generator=torch.Generator().manual_seed(4))
    forwards = torch.arange(length)
    orders = [forwards, forwards.flip(0), forwards.reshape(-1, 8).T.flatten(), shuffled]
    for regime in definition.regimes:
        asked = exam.question(regime)
        for order in orders:
            inputs = [tensor[..., order] for tensor in asked.inputs]
            answer = serially(definition.reference, *inputs, *exam.scalars)[0][..., order.argsort()]
            assert all(probe.passed for probe in asked.put("a sum", [answer], wrong=False)), regime


def test_only_sums_of_one_sign_count_as_long():
    positive, mixed = torch.rand(2, 900), torch.randn(2, 800)
    with SerialSums() as sums:
        mixed.sum(-1)
        assert sums.longest == 0
        positive.sum(-1)
    assert sums.longest == 900
