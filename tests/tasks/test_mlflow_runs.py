"""What a run holds, from a trial alone."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gristmill.domain import Domain
from gristmill.workload import TensorLayout, Workload
from kernels.candidate import Candidate, Language, Origin
from kernels.verdict import FailingCase, Mismatch, ObjectReport, Status, Verdict, WorkloadTiming
from tasks import mlflow_runs
from tasks.mlflow_spool import SearchStart, SearchTrial

VALID_NAME = re.compile(r"[\w\-./ ]{1,250}", re.ASCII)
ROW = TensorLayout((1024,), (1,), "float32")


def trial(step: int, ratio: float | None = None, operator: str = "rms_norm", **parameters: str) -> SearchTrial:
    origin = Origin("pattern", "rows", {"step": str(step), **parameters})
    candidate = Candidate(operator, Language.CPP, {"main.cpp": f"// {step}"}, Domain(operator, "float32"), origin)
    status = Status.CRASHED if ratio is None else Status.FASTER if ratio > 1 else Status.SLOWER
    return SearchTrial(step, 0, candidate, Verdict(status, "r", candidate.digest, operator, ratio))


def timing(ratio: float, baseline_ns: float, calls: int, layout: TensorLayout = ROW) -> WorkloadTiming:
    workload = Workload("rms_norm", "float32", {"tokens": 1}, (layout,), calls=calls)
    return WorkloadTiming(workload, ratio, ratio, ratio, baseline_ns / ratio, baseline_ns, 9, 0.5, 1.0)


def test_the_overall_low_end_is_total_time_over_total_time() -> None:
    timings = (timing(2.0, 100.0, 3), timing(4.0, 200.0, 1, replace(ROW, strides=(2,))))
    verdict = Verdict(Status.FASTER, "", "", "rms_norm", 2.5, timings)
    # 3 x 100 + 200 = 500 ns become 3 x 50 + 50 = 200 ns.
    assert mlflow_runs.metrics(verdict)["ratio_low"] == 2.5


def test_workloads_that_differ_in_layout_only_get_names_of_their_own() -> None:
    names = mlflow_runs.workload_names([timing(2.0, 1.0, 1), timing(2.0, 1.0, 1, replace(ROW, strides=(2,)))])
    assert len(set(names)) == 2
    assert all(name.startswith("tokens_1.") for name in names)


def test_the_metric_of_a_fused_operator_has_a_name_that_mlflow_takes() -> None:
    assert VALID_NAME.fullmatch(mlflow_runs.best_name(trial(0, 1.5, "skinny_linear-skinny_linear+silu_and_mul")))


def test_the_leaderboard_ranks_within_an_operator() -> None:
    trials = [trial(0, 1.5), trial(1), trial(2, 3.0, "softmax"), trial(3, 2.0), trial(4, 0.5, "softmax")]
    rows = list(csv.DictReader(mlflow_runs.leaderboard_csv(trials).splitlines()))
    assert [(row["operator"], row["rank"], row["step"], row["ratio"]) for row in rows] == [
        ("rms_norm", "1", "3", "2.000"),
        ("rms_norm", "2", "0", "1.500"),
        ("rms_norm", "3", "1", ""),
        ("softmax", "1", "2", "3.000"),
        ("softmax", "2", "4", "0.500"),
    ]


def test_a_search_is_called_by_whom_it_is_for_and_when() -> None:
    start = SearchStart("0123456789ab", "x", 1_764_706_500_000, {"fleet": "chat", "model": "llama-8b"})
    assert mlflow_runs.search_name(start) == "chat llama-8b, 2025-12-02 20:15, 0123456789ab"
    assert mlflow_runs.search_name(replace(start, tags={})) == "search, 2025-12-02 20:15, 0123456789ab"


def test_the_figure_has_a_panel_per_operator_and_ends_at_the_best() -> None:
    figure = mlflow_runs.best_ratio_figure([trial(0, 1.5), trial(1, None, "softmax"), trial(2, 2.0), trial(3, 1.8)])
    four = mlflow_runs.best_ratio_figure([trial(step, 2.0, f"operator_{step}") for step in range(4)])
    assert sum(axes.axison for axes in four.axes) == 4 < len(four.axes)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert titles == ["rms_norm float32: 2.00x", "softmax float32: 1.00x"]
    line = figure.axes[0].lines[-1]
    assert list(line.get_ydata()) == [1.5, 2.0, 2.0]


@given(st.dictionaries(st.text(min_size=1, max_size=300), st.text(max_size=7000), max_size=120))
def test_any_parameters_become_what_mlflow_takes(parameters: dict[str, str]) -> None:
    candidate = replace(trial(0).candidate, origin=Origin("agent", "", parameters))
    kept = mlflow_runs.parameters(candidate)
    assert len(kept) <= 100
    assert all(VALID_NAME.fullmatch(name) for name in kept)
    assert all(len(value) <= 6000 for value in kept.values())


def test_a_childs_tags_tell_where_it_came_from() -> None:
    start = SearchStart("s1", "gristmill", 0, {"hardware": "x86_64"})
    tags = mlflow_runs.child_tags(start, trial(0, 2.0), "parent")
    assert (
        tags.items()
        >= {
            "search": "s1",
            "hardware": "x86_64",
            "operator": "rms_norm",
            "dtype": "float32",
            "agent": "pattern",
            "pattern": "rows",
            "status": "faster",
            "mlflow.parentRunId": "parent",
        }.items()
    )


def test_evidence_goes_along_as_tags_and_files() -> None:
    plain = trial(0)
    mismatch = Mismatch("w", "out", (0,), "1", "2", "9", 1, 2, "tail")
    case = FailingCase("w", {"tokens": 1}, (), "traffic", "out", (0,), "1", "2", "9", diagnosis="strides are ignored")
    report = ObjectReport("x86-64", 9, 4, 512, hint="call less")
    verdict = replace(
        plain.verdict,
        status=Status.INCORRECT,
        mismatches=(mismatch,),
        failing=(case,),
        object_report=report,
        build_errors="main.cpp:1: error",
    )
    rich = replace(plain, verdict=verdict)
    tags = mlflow_runs.child_tags(SearchStart("s1", "gristmill", 0, {}), rich, "parent")
    assert (tags["damage"], tags["diagnosis"]) == ("tail", "strides are ignored")
    assert (tags["vector_bits"], tags["hint"]) == ("512", "call less")
    files = mlflow_runs.artifacts(rich)
    assert json.loads(files["failing.json"])[0]["axes"] == {"tokens": 1}
    assert json.loads(files["object.json"])["vector_bits"] == 512 and files["build_errors.txt"] == "main.cpp:1: error"
    assert set(mlflow_runs.artifacts(plain)) == {"sources/main.cpp", "verdict.json"}
    assert "damage" not in mlflow_runs.child_tags(SearchStart("s1", "gristmill", 0, {}), plain, "parent")
