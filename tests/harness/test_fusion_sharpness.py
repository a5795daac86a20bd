"""Fused definitions prove themselves as the catalogue's do, and a composed rule is as good as one written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness import comparer, sabotage, sharpness
from harness.sharpness import Exam
from kernels import catalogue
from kernels.definition import DTYPES

GATED = "skinny_linear-skinny_linear+silu_and_mul"
FUSED = ("rms_norm+skinny_linear", "silu_and_mul+skinny_linear", GATED)
"""What traffic of a Llama proposes. The one that is in the catalogue already is compared with that below."""


@pytest.fixture(autouse=True)
def short_exams(monkeypatch):
    """Small tensors: more threads only wait for one another."""
    monkeypatch.setattr(sharpness, "MANY_ELEMENTS", 1 << 16)
    monkeypatch.setattr(sharpness, "LONG_ELEMENTS", 1 << 17)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUSED)
def test_the_composed_rule_is_sharp(name, dtype):
    definition = catalogue.operator(name)
    probes = sharpness.examine(definition, dtype)
    assert sharpness.failures(probes) == []
    assert {probe.regime for probe in probes} == set(definition.regimes)


def test_a_composed_rule_without_what_intermediates_carry_convicts_the_engine():
    """The last part's own scale: as if nothing had been rounded on the way."""
    definition = catalogue.operator(GATED)

    def alone(x, gate_weight, up_weight):
        gated = catalogue.operator("silu_and_mul")
        return gated.error_scale(x @ gate_weight.T, x @ up_weight.T)

    lines = sharpness.failures(sharpness.examine(replace(definition, error_scale=alone), "float32"))
    assert any("float32 kernel" in line and "rejected" in line for line in lines), lines


def test_a_blunt_composed_rule_does_not_pass():
    definition = catalogue.operator(GATED)

    def blunt(*tensors):
        return tuple(10_000 * scale for scale in definition.error_scale(*tensors))

    assert sharpness.failures(sharpness.examine(replace(definition, error_scale=blunt), "bfloat16"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regime", catalogue.operator("fused_add_rms_norm").regimes)
def test_a_residual_and_its_norm_accept_and_reject_what_the_hand_written_operator_does(dtype, regime):
    """Wrong answers of all kinds, and right ones; where the hand-written rule itself is in doubt, either may be."""
    known, made = (catalogue.operator(name) for name in ("fused_add_rms_norm", "residual_add++rms_norm"))
    ours, theirs = (_question(definition, dtype, regime, known) for definition in (made, known))
    other = theirs.exam.answer(theirs.exam.inputs(regime, 99))
    answers = dict(sabotage.answers(theirs.inputs, theirs.exam.scalars, known, theirs.right, other))
    answers |= {"the rounded reference": theirs.right, "the engine's answer": theirs.engine}
    verdicts = set()
    for what, outputs in answers.items():
        for index, answer in enumerate(outputs):
            if answer is None:
                continue
            ratios = [_ratio(question, index, answer) for question in (ours, theirs)]
            if not 0.5 < ratios[1] < 2:
                assert (ratios[0] > 1) == (ratios[1] > 1), (what, index, ratios)
                verdicts.add(ratios[1] > 1)
    assert verdicts == {True, False}


def _question(definition, dtype, regime, drawing):
    """Of one definition, on values that `drawing` makes."""
    exam = Exam(replace(definition, make_inputs=drawing.make_inputs), sharpness.enlarged(definition, dtype))
    return exam.question(regime)


def _ratio(question, index, answer):
    """Error over what is allowed, at its worst."""
    expected, facts = question.expected[index], question.facts[index]
    deviation = comparer.deviate(answer.to(expected.dtype).reshape(expected.values.shape), expected)
    ratios = [comparer.element_ratios(deviation, facts), comparer.mean_ratios(deviation, facts)]
    return max(float(one.max()) for one in (*ratios, *comparer.line_ratios(deviation, facts)))
