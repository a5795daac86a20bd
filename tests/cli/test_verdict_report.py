"""What `./mill judge` prints of a verdict, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cli import judge, verdict_report
from gristmill import records
from kernels import catalogue, evidence
from kernels.inputs import workload
from kernels.verdict import (
    ErrorBin,
    FailingCase,
    InputRow,
    Mismatch,
    ObjectReport,
    Status,
    Verdict,
    WorkloadTiming,
)

MADE = workload(catalogue.operator("rms_norm"), "float32", tokens=4, hidden=1024)
TIMING = WorkloadTiming(MADE, 2.5, 2.25, 2.75, 4000.0, 10000.0, 9, 0.42, 12.5)
MISMATCH = Mismatch(
    workload=MADE.label,
    output="out_TH",
    worst_index=(3, 7),
    found="1",
    expected="2",
    error_ratio="1000",
    wrong_elements=3,
    total_elements=4096,
    pattern="columns",
    rows=(0, 1, 3),
    wrong_rows=3,
    total_rows=4,
    columns=(7,),
    wrong_columns=1,
    total_columns=1024,
    magnitudes="only where |expected| > 1.5",
    histogram=(ErrorBin("below 0.1", 4093), ErrorBin("1000 to 10000", 3)),
)
CASE = FailingCase(
    workload=MADE.label,
    axes=dict(MADE.axes),
    layouts=("x_TH 4x1024 in steps of 2048x1",),
    regime="traffic",
    output="out_TH",
    index=(3, 7),
    found="1",
    expected="2",
    error_ratio="1000",
    inputs=(InputRow("x_TH", (3,), 1024, (0, 7), ("0.5", "-1.25")),),
    diagnosis="strides are ignored",
)
BLANK = Verdict(Status.INCORRECT, "out_TH is wrong", "digest", "rms_norm", seed=7, isolation=("namespaces",))


def test_a_wrong_answer_is_shown_with_its_place_its_errors_and_its_calls():
    text = verdict_report.render(replace(BLANK, mismatches=(MISMATCH,), failing=(CASE,)))
    lines = text.splitlines()
    assert lines[0] == "incorrect: out_TH is wrong"
    assert "  rows: 3 of 4 (0, 1, 3)" in lines and "  columns: 1 of 1024 (7)" in lines
    assert "  only where |expected| > 1.5" in lines
    bars = [line for line in lines if line.endswith("#")]
    assert [line.count("#") for line in bars] == [evidence.BAR_CHARACTERS, 1]
    assert bars[0].split() == ["below", "0.1", "4093", "#" * evidence.BAR_CHARACTERS]
    assert "  tokens=4 hidden=1024, traffic values: out_TH[3, 7] is 1, expected 2" in lines
    assert "    x_TH 4x1024 in steps of 2048x1" in lines
    assert "    x_TH[3, 0..1023]: [0] 0.5, [7] -1.25" in lines and "    strides are ignored" in lines
    assert lines[-1] == "seed 7, 0.0 s, isolation: namespaces"


def test_timings_are_a_table_and_the_object_has_its_line():
    report = ObjectReport("x86-64", 359, 96, 512, fma=True, loop_calls=2, hint="call less")
    verdict = replace(BLANK, status=Status.SLOWER, timings=(TIMING,), object_report=report, setup_ns={"w": 1500})
    text = verdict_report.render(verdict)
    row = next(line for line in text.splitlines() if line.startswith("tokens=4 hidden=1024"))
    assert row.split()[2:] == ["2.50x", "2.25", "to", "2.75", "4.0", "us", "10.0", "us", "12.5", "GB/s", "42%"]
    assert "512-bit vectors, FMA, 359 instructions, 96 in innermost loops, 2 calls in innermost loops" in text
    assert "hint: call less" in text and "1.5 us" in text


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (ObjectReport("", note="objdump is not installed"), "object: objdump is not installed"),
        (ObjectReport("x86-64", 5, 2), "object: x86-64, scalar arithmetic, 5 instructions"),
        (ObjectReport("aarch64", 5, 2, 128, scalable=True), "object: aarch64, scalable vectors"),
    ],
)
def test_objects_are_described_as_far_as_they_are_known(report, words):
    assert evidence.object_text(report).startswith(words)


def test_a_failed_build_shows_its_errors_and_not_the_whole_log():
    verdict = replace(BLANK, status=Status.BUILD_FAILED, build_log="noise\n" * 9, build_errors="main.cpp:2: error: x")
    text = verdict_report.render(verdict)
    assert "main.cpp:2: error: x" in text and "noise" not in text
    assert "noise" in verdict_report.render(replace(verdict, status=Status.SLOWER))


def test_json_is_one_object_with_status_reason_and_ratios():
    verdict = replace(BLANK, status=Status.FASTER, ratio=2.5, timings=(TIMING,))
    told = json.loads(json.dumps(judge.as_json(verdict)))
    assert (told["status"], told["reason"], told["ratio"]) == ("faster", "out_TH is wrong", 2.5)
    assert told["ratios"] == [{"workload": MADE.label, "ratio": 2.5, "low": 2.25, "high": 2.75}]
    del told["ratios"]
    assert records.decode(Verdict, told) == verdict
    assert judge.as_json(BLANK)["ratios"] == [] and judge.as_json(BLANK)["ratio"] is None
