"""Every definition's correctness rule can fail: it rejects what is wrong, and accepts what is right, in every dtype.

It runs over the whole catalogue, with sizes from the definitions, so that no definition comes into use without it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness import comparer, sabotage, sharpness, yardstick
from harness.sharpness import Exam
from kernels import catalogue
from kernels.definition import DTYPES
from kernels.inputs import workload

CASES = [(definition.name, dtype) for definition in catalogue.operators() for dtype in DTYPES]
SEVERAL_KINDS = 40
"""So many ways to be wrong are tried at least on each definition, all regimes together."""


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: more threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_rule_is_sharp(name, dtype):
    definition = catalogue.operator(name)
    probes = sharpness.examine(definition, dtype)
    assert sharpness.failures(probes) == []
    assert {probe.regime for probe in probes} == set(definition.regimes)
    assert {probe.output for probe in probes} == {spec.name for spec in definition.outputs}
    assert len({probe.what for probe in probes if probe.wrong and probe.told}) >= SEVERAL_KINDS
    for kind in ("zeros", "ones", "a copy of input 0", "the last call's answer", "the last column dropped"):
        assert any(p.what == kind and not p.accepted for p in probes), kind


def test_a_blunt_definition_does_not_pass():
    """An error scale that is ten thousand times too large, and inputs for which the answer is constant."""
    definition = catalogue.operator("rms_norm")

    def blunt(*tensors):
        return tuple(10_000 * scale for scale in definition.error_scale(*tensors))

    def same(_generator, axes, dtype, _regime):
        x_TH = torch.ones((axes["tokens"], axes["hidden"]), dtype=getattr(torch, dtype))
        return x_TH, x_TH[0]

    assert sharpness.failures(sharpness.examine(replace(definition, error_scale=blunt), "float32"))
    assert sharpness.failures(sharpness.examine(replace(definition, make_inputs=same), "float32"))


def test_a_definition_that_convicts_the_honest_does_not_pass():
    """An error scale without the condition of the sum."""
    definition = catalogue.operator("skinny_linear")

    def harsh(*tensors):
        return tuple(value.abs().clamp(min=1e-30) for value in definition.reference(*tensors))

    lines = sharpness.failures(sharpness.examine(replace(definition, error_scale=harsh), "float32"))
    assert any("float32 kernel" in line and "rejected" in line for line in lines), lines


def question(name, regime, dtype="float32", **axes):
    definition = catalogue.operator(name)
    return Exam(definition, workload(definition, dtype, **axes)).question(regime)


def accepted(asked, answer):
    return comparer.compare(answer[None], asked.expected[0], asked.facts[0], workload="", output="o") is None


def test_a_plain_loop_over_ties_is_honest():
    """Equal terms round the same way each time, so its error grows with their number. The engine's own does not."""
    asked = question("softmax", "ties", rows=8, columns=8192)
    with yardstick.SerialSums():
        plain = catalogue.operator("softmax").reference(*asked.inputs)[0]
    assert accepted(asked, plain)
    for what, answers in sabotage.rounded_outputs(asked.right):
        assert not accepted(asked, answers[0]), what
    short = catalogue.operator("softmax").reference(asked.inputs[0][:, :-1].double())[0].float()
    assert not accepted(asked, torch.cat((short, asked.right[0][:, -1:]), dim=1)), "one of 8192 terms left out"


def test_weights_of_eight_bits_are_told_from_bfloat16():
    """They halve what a skinny linear layer reads, which is all that it costs."""
    asked = question("skinny_linear", "traffic", "bfloat16", tokens=4, in_features=1024, out_features=512)
    x_TK, weight_NK = (tensor.double() for tensor in asked.inputs)
    step_N1 = weight_NK.abs().amax(-1, keepdim=True) / 127
    rough_NK = (weight_NK / step_N1).round() * step_N1
    assert accepted(asked, (x_TK @ weight_NK.T).bfloat16())
    assert not accepted(asked, (x_TK @ rough_NK.T).bfloat16())


def test_the_neighbour_s_scale_is_told_in_bfloat16():
    """Two rows of a norm differ in scale by a few per cent: less than the largest error that is allowed."""
    asked = question("rms_norm", "traffic", "bfloat16", tokens=16, hidden=1024)
    x_TH, weight_H = (tensor.double() for tensor in asked.inputs)
    scale_T1 = (x_TH * x_TH).mean(-1, keepdim=True).rsqrt()
    gap_T = (scale_T1[1:] / scale_T1[:-1] - 1).abs().flatten()
    row = int(gap_T.argmax())
    wrong_T1 = scale_T1.clone()
    wrong_T1[row] = scale_T1[row + 1]
    assert 0.01 < float(gap_T[row]) < 0.10
    assert accepted(asked, (x_TH * scale_T1 * weight_H).bfloat16())
    assert not accepted(asked, (x_TH * wrong_T1 * weight_H).bfloat16())


@pytest.mark.parametrize("columns", [1, 2, 5, 33, 1024])
@pytest.mark.parametrize("name", ["rms_norm", "softmax", "silu_and_mul"])
def test_correctly_rounded_answers_are_never_convicted_by_chance(name, columns):
    """A thousand rows of every length: the rule for means allows for what chance does to the mean of few."""
    axes = dict(zip(catalogue.operator(name).axes, (1000, columns), strict=True))
    for dtype in DTYPES:
        asked = question(name, "traffic", dtype, **axes)
        assert accepted(asked, asked.right[0])
