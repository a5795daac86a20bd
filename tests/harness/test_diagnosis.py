"""Each mistake is named for what it is, from its answers alone; right answers and unknown mistakes are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gristmill.workload import TensorLayout
from harness.comparer import ErrorFacts
from harness.diagnosis import diagnose
from harness.misplacement import halved, interleaved
from harness.misreading import read_as, reordered
from harness.sabotage import FaultySums, accumulate_in
from kernels import catalogue
from kernels.inputs import materialise, workload

FACTS = ErrorFacts(1.5, 0.4, 0.5, 0.6)
SIZES = {
    "rms_norm": {"tokens": 6, "hidden": 77},
    "fused_add_rms_norm": {"tokens": 6, "hidden": 77},
    "silu_and_mul": {"tokens": 6, "intermediate": 77},
    "rotary_embedding": {"tokens": 6, "query_heads": 4, "key_heads": 2, "head_dim": 16},
    "softmax": {"rows": 6, "columns": 77},
    "skinny_linear": {"tokens": 6, "in_features": 77, "out_features": 33},
}


class Call:
    """A call of an operator, and what some mistake made of it."""

    def __init__(self, name, layouts=None, regime="traffic", sizes=None, dtype="float32"):
        self.definition = catalogue.operator(name)
        self.workload = workload(self.definition, dtype, **(sizes or SIZES[name]))
        if layouts:
            changed = [layouts.get(n, layout) for n, layout in enumerate(self.workload.inputs)]
            self.workload = replace(self.workload, inputs=tuple(changed))
        generator = torch.Generator().manual_seed(5)
        self.inputs = list(materialise(self.definition, self.workload, regime, generator))
        self.scalars = [scalar.default for scalar in self.definition.scalars]

    def answer(self, inputs=None, scalars=None):
        exact = [tensor.double() for tensor in (inputs or self.inputs)]
        return [t.float() for t in self.definition.reference(*exact, *(self.scalars if scalars is None else scalars))]

    def said(self, outputs, output=0, **known):
        facts = [FACTS] * len(self.definition.outputs)
        return diagnose(self.definition, self.workload, self.inputs, outputs, facts, output=output, **known)

    def changed(self, number, value):
        return [value if n == number else tensor for n, tensor in enumerate(self.inputs)]


@pytest.mark.parametrize("name", SIZES)
def test_nothing_is_said_of_right_answers(name):
    call = Call(name)
    right = call.answer()
    for output in range(len(right)):
        assert call.said(right, output) == ""


@pytest.mark.parametrize(
    "layout",
    [
        TensorLayout((6, 77), (100, 1), "float32"),
        TensorLayout((6, 77), (1, 6), "float32"),
        TensorLayout((6, 77), (154, 2), "float32"),
    ],
)
@pytest.mark.parametrize("name", ["rms_norm", "softmax", "skinny_linear", "silu_and_mul"])
def test_ignored_strides(name, layout):
    call = Call(name, {0: layout})
    memory = call.inputs[0].as_strided((6, 77), (77, 1))
    said = call.said(call.answer(call.changed(0, memory)))
    assert "strides" in said and "are ignored" in said and call.definition.inputs[0].name in said


def test_an_ignored_weight_and_an_ignored_residual():
    call = Call("rms_norm")
    assert "weight_H is ignored" in call.said(call.answer(call.changed(1, torch.ones(77))))
    call = Call("fused_add_rms_norm")
    assert "residual_TH is ignored" in call.said(call.answer(call.changed(1, torch.zeros(6, 77))), output=1)


def test_an_offset_weight():
    call = Call("rms_norm")
    assert "1 + weight_H" in call.said(call.answer(call.changed(1, call.inputs[1] + 1)))


def test_an_ignored_epsilon():
    call = Call("rms_norm", regime="small")
    assert "eps is ignored" in call.said(call.answer(scalars=[0.0]))
    assert "taken for 1e-05" in call.said(call.answer(scalars=[1e-5]))


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize(("name", "axis"), [("rms_norm", "hidden"), ("skinny_linear", "in_features")])
def test_a_missing_tail(name, axis, width):
    call = Call(name)
    kept = 77 // width * width
    short = call.inputs[0].clone()
    short[:, kept:] = 0
    answer = call.answer(call.changed(0, short))
    said = call.said(answer)
    assert f"the last {77 - kept} of 77 {axis} left out" in said or f"whole vectors of {width}" in said


@pytest.mark.parametrize("hidden", [3, 17, 77])
def test_a_missing_tail_of_a_sum_alone(hidden):
    """Also where no whole vector fits, and the sum is empty."""
    call = Call("rms_norm", sizes={"tokens": 4, "hidden": hidden})
    x_TH, weight_H = (tensor.double() for tensor in call.inputs)
    sum_T1 = (x_TH[:, : hidden // 8 * 8] ** 2).sum(-1, keepdim=True)
    wrong_TH = x_TH / (sum_T1 / hidden + call.scalars[0]).sqrt() * weight_H
    assert "sums that leave out" in call.said([wrong_TH.float()])


def test_a_missing_tail_of_a_softmax():
    call = Call("softmax")
    x_RC = call.inputs[0].double()
    wrong_RC = x_RC.exp() / x_RC[:, :72].exp().sum(-1, keepdim=True)
    assert "left over of whole vectors of 8" in call.said([wrong_RC.float()])


def test_an_earlier_answer():
    call = Call("softmax")
    other = Call("softmax", regime="wide").answer()
    assert "an earlier answer was kept" in call.said(other, previous=other)


def test_zeros_a_constant_a_copy_and_nothing():
    call = Call("softmax")
    right = call.answer()[0]
    part = right.clone()
    part[3:] = 0
    assert "zeros" in call.said([part])
    part[3:] = 0.25
    assert "the constant 0.25" in call.said([part])
    assert "a copy of x_RC" in call.said([call.inputs[0].clone()])
    part[3:] = float("nan")
    assert "NaN" in call.said([part])


@pytest.mark.parametrize(("change", "words"), [(lambda t: t.roll(1, 0), "row"), (lambda t: t.roll(-1, -1), "column")])
def test_answers_off_by_one(change, words):
    call = Call("silu_and_mul")
    said = call.said([change(call.answer()[0])])
    assert words in said and "off by one" in said


def test_exchanged_tensors():
    call = Call("silu_and_mul")
    assert "gate_TI and up_TI exchanged" in call.said(call.answer(call.inputs[::-1]))
    call = Call("fused_add_rms_norm")
    assert "the outputs are exchanged" in call.said(call.answer()[::-1])


def test_lower_precision():
    call = Call("skinny_linear")
    assert "rounded to bfloat16" in call.said(call.answer([t.bfloat16() for t in call.inputs]))
    assert "results are rounded to float16" in call.said([call.answer()[0].half().float()])
    noise = 1 + 2e-3 * torch.randn(6, 33, generator=torch.Generator().manual_seed(1))
    assert "bits are right" in Call("rms_norm").said([Call("rms_norm").answer()[0] * noise.repeat(1, 3)[:, :77]])


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")])
@pytest.mark.parametrize("operator", ["rms_norm", "softmax", "skinny_linear"])
def test_sums_in_few_bits(operator, dtype, name, lanes):
    call = Call(operator)
    with FaultySums(accumulate_in(dtype, lanes)):
        wrong = call.answer()
    how = "one term after another" if lanes == 1 else f"in {lanes} lanes"
    assert f"sums accumulated in {name}, {how}" in call.said(wrong)


def test_sums_in_few_bits_whose_order_is_unknown():
    """Here in three lanes, over rows so long that each rounding differs."""
    call = Call("rms_norm", sizes={"tokens": 6, "hidden": 385})
    with FaultySums(accumulate_in(torch.bfloat16, 3)):
        wrong = call.answer()
    said = call.said(wrong)
    assert "bits are right" in said or "a factor of its own" in said


def test_a_weight_read_in_the_other_order():
    call = Call("skinny_linear")
    other_NK = call.inputs[1].reshape(77, 33).T
    assert "weight_NK read as in_features x out_features" in call.said(call.answer(call.changed(1, other_NK)))


def test_activations_read_with_their_heads_in_front():
    call = Call("rotary_embedding")
    other_TND = reordered(call.inputs[0], (1, 0, 2))
    said = call.said(call.answer(call.changed(0, other_TND)))
    assert "q_TND read as query_heads x tokens x head_dim" in said


@pytest.mark.parametrize("order", [[2, 3, 0, 1], [0, 2, 1, 3], [0, 0, 1, 1]])
def test_heads_in_another_order(order):
    call = Call("rotary_embedding")
    said = call.said([call.answer()[0][:, order], call.answer()[1]])
    first = next(place for place, held in enumerate(order) if place != held)
    assert f"query_heads are in another order: {first} holds the answer of {order[first]}" in said


def test_single_elements_are_no_order():
    call = Call("softmax", sizes={"rows": 1, "columns": 9})
    wrong = call.answer()[0]
    wrong[0, [2, 5]] = wrong[0, [5, 2]].clone()
    assert "another order" not in call.said([wrong])


def test_pairs_of_other_elements():
    call = Call("rotary_embedding")
    q_TND, k_TMD, cos_TD, sin_TD = call.inputs
    wrong = [interleaved(one) for one in call.answer([halved(q_TND), halved(k_TMD), cos_TD, sin_TD])]
    for output in range(2):
        assert "neighbours (2i, 2i + 1) form a pair where" in call.said(wrong, output)


def test_halves_where_neighbours_are_the_pair():
    """Of a model that rotates neighbours, as GPT-J does."""
    call = Call("rotary_embedding")
    by_halves = call.answer()
    right = call.definition

    def of_neighbours(function):
        def turned(q_TND, k_TMD, cos_TD, sin_TD):
            return tuple(interleaved(one) for one in function(halved(q_TND), halved(k_TMD), cos_TD, sin_TD))

        return turned

    call.definition = replace(
        right, reference=of_neighbours(right.reference), error_scale=of_neighbours(right.error_scale)
    )
    assert "elements i and i + half form a pair where neighbours" in call.said(by_halves)
    assert call.said(call.answer()) == ""


def test_exchanged_tables_and_a_flipped_sign():
    call = Call("rotary_embedding")
    q_TND, k_TMD, cos_TD, sin_TD = call.inputs
    assert "cos_TD and sin_TD exchanged" in call.said(call.answer([q_TND, k_TMD, sin_TD, cos_TD]))
    assert "-sin_TD in place of sin_TD: a sign is flipped" in call.said(call.answer([q_TND, k_TMD, cos_TD, -sin_TD]))


@pytest.mark.parametrize(("own", "other"), [("bfloat16", torch.float16), ("float32", torch.bfloat16)])
def test_memory_of_another_dtype(own, other):
    call = Call("rotary_embedding", dtype=own)
    read = [read_as(tensor, other).float() for tensor in call.inputs]
    values = call.definition.reference(*read)
    kept = [one.to(getattr(torch, own)) for one in values]
    assert f"read as {str(other)[6:]}: tensors of this call are {own}" in call.said(kept)
    memory = [torch.zeros_like(one) for one in kept]
    for one, value in zip(memory, values, strict=True):
        read_as(one, other).copy_(value.to(other))
    assert f"q_out_TND written as {str(other)[6:]}" in call.said(memory)


def test_what_is_unwritten_is_not_held_against_the_rest():
    call = Call("rms_norm")
    wrong = call.answer(call.changed(1, torch.ones(77)))[0]
    missing = torch.zeros(6, 77, dtype=torch.bool)
    missing[3:] = True
    wrong[3:] = float("nan")
    assert "weight_H is ignored" in call.said([wrong], unwritten=missing)
    right = torch.where(missing, torch.nan, call.answer()[0])
    assert call.said([right], unwritten=missing) == ""


def test_wrong_factors():
    call = Call("rms_norm")
    right = call.answer()[0]
    assert "0.5 times" in call.said([right * 0.5])
    rows = torch.tensor([1.0, 1.3, 1.0, 0.7, 1.0, 1.0])[:, None]
    said = call.said([right * rows])
    assert "a factor of its own" in said and "1.3" in said


def test_overflow_is_told_by_the_rows_it_is_in():
    call = Call("softmax")
    call.inputs[0][2] += 100
    right = call.answer()[0]
    right[2] = float("nan")
    said = call.said([right])
    assert "overflows" in said and "above" in said


def test_damage_without_a_name_stays_without_one():
    call = Call("softmax")
    wrong = call.answer()[0]
    wrong[1, 3] *= 1.7
    wrong[4, 9] *= 0.2
    assert call.said([wrong]) == ""


def test_large_weights_are_diagnosed_on_a_part():
    definition = catalogue.operator("skinny_linear")
    made = workload(definition, "float32", tokens=2, in_features=1020, out_features=4096)
    x_TK, weight_NK = materialise(definition, made, "traffic", torch.Generator().manual_seed(1))
    wrong_TN = (x_TK[:, :1016].double() @ weight_NK[:, :1016].double().T).float()
    assert "left over of whole vectors of 8" in diagnose(definition, made, [x_TK, weight_NK], [wrong_TN], [FACTS])
    rough_TN = (x_TK.bfloat16().double() @ weight_NK.bfloat16().double().T).float()
    assert "rounded to bfloat16" in diagnose(definition, made, [x_TK, weight_NK], [rough_TN], [FACTS])
