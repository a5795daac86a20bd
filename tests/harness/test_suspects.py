"""One wrong element of a large output is among the suspects, however it is wrong."""

from __future__ import annotations

import pytest
import torch

from harness.suspects import suspects
from kernels import catalogue
from kernels.inputs import materialise, workload


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def call(request):
    definition = catalogue.operator("skinny_linear")
    made = workload(definition, request.param, tokens=3, in_features=512, out_features=6000)
    inputs = materialise(definition, made, "traffic", torch.Generator().manual_seed(1))
    exact = [tensor.double() for tensor in inputs]
    return definition, inputs, definition.reference(*exact)[0].to(getattr(torch, request.param))


@pytest.mark.parametrize(
    "damage",
    [
        lambda value, _: -value,
        lambda _, neighbour: neighbour,
        lambda value, _: value * 2,
        lambda value, _: value * 0,
        lambda value, _: value * float("nan"),
    ],
)
def test_a_single_wrong_element_is_found(call, damage):
    definition, inputs, right_TN = call
    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        token = int(torch.randint(0, 3, (1,), generator=generator))
        middling = right_TN[token].float().abs().sort().indices
        place = int(middling[int(torch.randint(2500, 6000, (1,), generator=generator))])
        found_TN = right_TN.clone()
        found_TN[token, place] = damage(right_TN[token, place], right_TN[token, place - 1])
        assert place in suspects(definition, "out_features", inputs, [found_TN], 16).tolist()


def test_a_thousandth_is_found_in_float32():
    definition = catalogue.operator("skinny_linear")
    made = workload(definition, "float32", tokens=1, in_features=512, out_features=4000)
    inputs = materialise(definition, made, "traffic", torch.Generator().manual_seed(1))
    found_TN = definition.reference(*(tensor.double() for tensor in inputs))[0].float()
    found_TN[0, 1234] *= 1 + 2**-10
    assert 1234 in suspects(definition, "out_features", inputs, [found_TN], 4).tolist()


def test_places_are_in_order_and_no_more_than_there_are(call):
    definition, inputs, right_TN = call
    places = suspects(definition, "out_features", inputs, [right_TN], 32).tolist()
    assert places == sorted(set(places)) and len(places) == 32
    assert len(suspects(definition, "out_features", inputs, [right_TN], 99999)) == 6000


def test_rows_can_be_suspected_as_well():
    definition = catalogue.operator("rms_norm")
    made = workload(definition, "float32", tokens=700, hidden=64)
    inputs = materialise(definition, made, "traffic", torch.Generator().manual_seed(1))
    found_TH = definition.reference(*(tensor.double() for tensor in inputs), 1e-6)[0].float()
    found_TH[432, 7] *= -1
    assert 432 in suspects(definition, "tokens", inputs, [found_TH], 4).tolist()
