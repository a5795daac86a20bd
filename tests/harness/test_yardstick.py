"""Sums one by one are what they say, and only they."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness import yardstick
from harness.comparer import ErrorFacts, Expected
from harness.yardstick import SerialSums
from kernels import catalogue


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
    inputs = [torch.randint(-2, 3, (1, 4, 8192)).float()]
    exact = definition.reference(inputs[0].double())[0]
    wanted = [Expected(exact, definition.error_scale(inputs[0].double())[0], torch.float32)]
    narrow = ErrorFacts(0.5, 0.1, 0.2, 0.5)
    wide = ErrorFacts(1e9, 1e9, 1e9, 1e9)
    (grown,) = yardstick.widened(definition, inputs, wanted, [narrow])
    assert grown.largest > narrow.largest and grown.line > narrow.line and grown.places > narrow.places
    assert yardstick.widened(definition, inputs, wanted, [wide]) == (wide,)
    rough = [Expected(wanted[0].values, wanted[0].scale, torch.bfloat16)]
    assert yardstick.widened(definition, [inputs[0].bfloat16()], rough, [narrow]) == (narrow,)
