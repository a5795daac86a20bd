"""Wrong C++ kernels through the judge: each verdict says where, and which mistake it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gristmill.domain import Domain
from kernels import catalogue
from kernels.inputs import workload
from kernels.verdict import Status

SEED = 7
"""Halves of random numbers, read as whole ones, overflow in most draws: then nothing is left to tell the dtype by."""
SIZES = {
    "rms_norm": {"tokens": 4, "hidden": 96},
    "rotary_embedding": {"tokens": 3, "query_heads": 4, "key_heads": 2, "head_dim": 16},
}


@pytest.fixture
def judged(judge, cpp, source):
    """The verdict on a kernel some of whose parts are defined otherwise."""

    def judged(operator, dtype="float32", **parts):
        defines = "".join(f"#define {name} {text}\n" for name, text in parts.items())
        candidate = cpp(operator, defines + source(f"wrong_{operator}"))
        candidate = replace(candidate, domain=Domain(operator, dtype))
        return judge.judge(candidate, [workload(catalogue.operator(operator), dtype, **SIZES[operator])], seed=SEED)

    return judged


def test_the_kernels_are_right_as_they_stand(judged):
    for verdict in (
        judged("rms_norm"),
        judged("rms_norm", "bfloat16", IN="bf16", OUT="bf16"),
        judged("rotary_embedding"),
    ):
        assert verdict.status in (Status.SLOWER, Status.FASTER), verdict.reason


@pytest.mark.parametrize(
    ("parts", "extent", "words"),
    [
        ({"LAST": "H / 8 * 8"}, "tail; 1 of 17 elements; column 16", "whole vectors of 4 or 8 or 16 leave over"),
        ({"STEP": "2"}, "one column in 2; 9 of 21 elements; columns 1, 3, 5", ""),
        ({"ROWS": "(t % 2 == 0)"}, "rows; 7 of 21 elements; row 1", ""),
        ({"ROWS": "(t + 1 < T || T == 1)"}, "tail; 7 of 21 elements; row 2", ""),
        ({"FIRST": "1"}, "all; 1 of 1 elements", ""),
    ],
)
def test_what_is_left_unwritten_is_told_with_its_place_and_three_calls(judged, parts, extent, words):
    verdict = judged("rms_norm", **parts)
    assert verdict.status is Status.INCORRECT
    assert f"left unwritten in 12 of 12 calls ({extent})" in verdict.reason and words in verdict.reason
    assert len(verdict.failing) == 3 and all(case.found == "unwritten" and case.inputs for case in verdict.failing)
    (mismatch,) = verdict.mismatches
    assert sum(one.elements for one in mismatch.histogram) == mismatch.total_elements
    assert mismatch.histogram[-1].elements == mismatch.wrong_elements


def test_writes_behind_the_end_are_told_with_how_far_they_reach(judged):
    verdict = judged("rms_norm", LAST="H + 1")
    assert verdict.status is Status.INCORRECT and verdict.reason.endswith("up to 4 bytes behind its end")
    assert [case.found for case in verdict.failing] == ["followed by 4 bytes of writes"] * 3
    assert verdict.failing[1].index == (2, 6)


@pytest.mark.parametrize(
    ("dtype", "parts", "words"),
    [
        ("float32", {"ROUND": "as_bf16"}, "sums accumulated in bfloat16"),
        ("float32", {"ROUND": "as_half"}, "sums accumulated in float16"),
        ("bfloat16", {"ROUND": "as_bf16", "IN": "bf16", "OUT": "bf16"}, "sums accumulated in bfloat16"),
        ("float32", {"IN": "bf16"}, "read as bfloat16: tensors of this call are float32"),
        ("float32", {"IN": "bf16", "OUT": "bf16"}, "weight_H read as bfloat16 and out_TH written as bfloat16"),
        ("float32", {"OUT": "bf16"}, "out_TH written as bfloat16: tensors of this call are float32"),
        ("bfloat16", {"IN": "bf16"}, "out_TH written as float32: tensors of this call are bfloat16"),
        ("bfloat16", {"OUT": "bf16"}, "read as float32"),
        ("bfloat16", {}, "its elements are bfloat16, 2 bytes each"),
    ],
)
def test_dtypes_that_are_mixed_up_or_too_narrow_for_a_sum(judged, dtype, parts, words):
    verdict = judged("rms_norm", dtype, **parts)
    assert verdict.status is Status.INCORRECT, verdict.reason
    said = [case.diagnosis for case in verdict.failing]
    assert any(words in one for one in said), said
    assert verdict.failing[0].diagnosis in verdict.reason or any(one in verdict.reason for one in said if one)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"HEAD": "N - 1 - n"}, "query_heads are in another order: 0 holds the answer of 5"),
        ({"HEAD": "n / 2"}, "query_heads are in another order: 1 holds the answer of 0"),
        ({"WHERE": "n * T + t"}, "written transposed, as query_heads x tokens x head_dim"),
        ({"ONE": "2 * i", "OTHER": "2 * i + 1"}, "neighbours (2i, 2i + 1) form a pair"),
        ({"COS": "3", "SIN": "2"}, "cos_TD and sin_TD exchanged"),
        ({"SIGN": "-1"}, "-sin_TD in place of sin_TD: a sign is flipped"),
    ],
)
def test_mistakes_of_rotary_embeddings(judged, parts, words):
    verdict = judged("rotary_embedding", **parts)
    assert verdict.status is Status.INCORRECT and words in verdict.reason, verdict.reason
