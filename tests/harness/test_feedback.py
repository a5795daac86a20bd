"""Failing cases and reasons: what an agent reads is short, whole, and about the element that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gristmill import records
from gristmill.workload import TensorLayout
from harness import comparer, feedback
from harness.comparer import ErrorFacts, Expected
from kernels import catalogue
from kernels.inputs import materialise, workload
from kernels.verdict import FailingCase, Mismatch, ObjectReport, Status, Verdict

FACTS = ErrorFacts(1.0, 0.3)


def failing(name, axes, damage, layouts=(), output=0):
    """A wrong call of an operator as the judge would describe it."""
    definition = catalogue.operator(name)
    made = workload(definition, "float32", **axes)
    if layouts:
        made = replace(made, inputs=tuple(layouts) + made.inputs[len(layouts) :])
    inputs = materialise(definition, made, "traffic", torch.Generator().manual_seed(3))
    exact = [tensor.double() for tensor in inputs]
    scalars = [scalar.default for scalar in definition.scalars]
    values = definition.reference(*exact, *scalars)[output]
    scale = definition.error_scale(*exact, *scalars)[output]
    found = values.float()
    damage(found)
    wanted = Expected(values[None], scale[None], torch.float32)
    mismatch = comparer.compare(found[None], wanted, FACTS, workload=made.label, output=definition.outputs[output].name)
    case = feedback.describe_case(definition, made, "traffic", inputs, found, values, mismatch, diagnosis="why")
    return case, mismatch, inputs


def test_a_case_holds_the_values_that_feed_the_element():
    case, mismatch, (x_TH, weight_H) = failing("rms_norm", {"tokens": 3, "hidden": 50}, lambda t: t[1, 20].mul_(9))
    assert case.index == mismatch.worst_index == (1, 20)
    assert case.axes == {"tokens": 3, "hidden": 50} and case.layouts == () and case.diagnosis == "why"
    x, weight = case.inputs
    assert (x.tensor, x.index, x.length) == ("x_TH", (1,), 50)
    assert (weight.tensor, weight.index) == ("weight_H", ())
    for row, values in ((x, x_TH[1]), (weight, weight_H)):
        assert {0, 19, 20, 21, 49, int(values.abs().argmax())} <= set(row.positions) and len(row.positions) <= 8
        assert [float(text) for text in row.values] == pytest.approx(
            [float(values[p]) for p in row.positions], rel=1e-5
        )


def test_a_case_of_a_product_holds_both_rows():
    axes = {"tokens": 2, "in_features": 40, "out_features": 7}
    case, _, _ = failing("skinny_linear", axes, lambda t: t[1, 5].add_(9))
    assert [(row.tensor, row.index, row.length) for row in case.inputs] == [("x_TK", (1,), 40), ("weight_NK", (5,), 40)]


def test_inputs_that_do_not_feed_an_output_are_left_out():
    axes = {"tokens": 2, "query_heads": 4, "key_heads": 2, "head_dim": 8}
    case, _, _ = failing("rotary_embedding", axes, lambda t: t[1, 1, 3].add_(9), output=1)
    assert [row.tensor for row in case.inputs] == ["k_TMD", "cos_TD", "sin_TD"]


def test_layouts_are_named_where_they_are_not_dense():
    case, _, _ = failing(
        "softmax", {"rows": 3, "columns": 5}, lambda t: t[1].mul_(2), [TensorLayout((3, 5), (1, 3), "float32")]
    )
    assert case.layouts == ("x_RC 3x5 in steps of 1x3",)


def test_a_reason_is_one_line_that_says_where_and_why():
    _, mismatch, _ = failing("rms_norm", {"tokens": 9, "hidden": 50}, lambda t: t[4:6].mul_(1.5))
    line = feedback.reason(mismatch, "traffic", "the weight is ignored")
    assert "\n" not in line and line.endswith("the weight is ignored")
    assert "out_TH is wrong (rows; 100 of 450 elements; rows 4, 5)" in line and "traffic values" in line
    _, one, _ = failing("rms_norm", {"tokens": 9, "hidden": 50}, lambda t: t[4, 7].mul_(1.5))
    assert "row 4; column 7" in feedback.reason(one, "wide") and "[4, 7]" in feedback.reason(one, "wide")


def test_a_mismatch_counts_elements_by_error():
    def damage(t):
        t[0, 0] *= 1 + 1e-5
        t[1, 1] *= 1.5
        t[2, 2] = float("nan")

    _, mismatch, _ = failing("rms_norm", {"tokens": 4, "hidden": 50}, damage)
    bars = {bar.label: bar.elements for bar in mismatch.histogram}
    assert bars["below 0.1"] == 197 and bars["NaN or infinity misplaced"] == 1
    assert sum(bars.values()) == 200 and bars["100000 and more"] == 1 and len(bars) == 4


def test_a_mismatch_says_which_magnitudes_go_wrong():
    def damage(t):
        t[t.abs() < 0.1] = 0

    _, mismatch, _ = failing("rms_norm", {"tokens": 8, "hidden": 200}, damage)
    assert mismatch.magnitudes.startswith("only where |expected| < 0.1")


def test_verdicts_with_evidence_are_records_and_old_ones_still_load():
    case, mismatch, _ = failing("rms_norm", {"tokens": 3, "hidden": 50}, lambda t: t[1, 20].mul_(9))
    verdict = Verdict(
        Status.INCORRECT,
        "wrong",
        "c",
        "rms_norm",
        mismatches=(mismatch,),
        failing=(case,),
        object_report=ObjectReport("x86-64", 10, 4, 512, fma=True),
    )
    assert records.parse(Verdict, records.canonical_json(verdict)) == verdict
    old = records.encode(verdict)
    for field in ("failing", "build_errors", "object_report"):
        del old[field]
    for field in ("call", "rows", "wrong_rows", "total_rows", "columns", "wrong_columns", "total_columns"):
        del old["mismatches"][0][field]
    del old["mismatches"][0]["magnitudes"], old["mismatches"][0]["histogram"]
    loaded = records.decode(Verdict, old)
    assert loaded.failing == () and loaded.object_report is None
    assert isinstance(loaded.mismatches[0], Mismatch) and isinstance(verdict.failing[0], FailingCase)


def test_a_hint_is_for_those_who_are_not_faster():
    report = ObjectReport("x86-64", hint="the hot loop is scalar")
    slower = Verdict(Status.SLOWER, "not proven faster", "c", "rms_norm", object_report=report)
    assert feedback.timed_reason(slower) == "not proven faster; the hot loop is scalar"
    assert feedback.timed_reason(replace(slower, status=Status.FASTER)) == "not proven faster"
    assert feedback.timed_reason(replace(slower, object_report=None)) == "not proven faster"


def test_a_mean_that_is_wrong_is_said_to_be_one():
    mismatch = Mismatch("w", "out", (0, 3), "1", "1.01", "1.3", 0, 64, "all")
    assert "is wrong (no element by itself, but their mean)" in feedback.reason(mismatch, "traffic")
