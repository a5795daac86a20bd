"""What an MLflow run holds: pure functions from a trial to tags, parameters, metrics and artifacts."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING

from gristmill import records
from kernels.candidate import Candidate
from kernels.verdict import Verdict, WorkloadTiming
from tasks import report_rows, search_charts
from tasks.mlflow_spool import SearchStart, SearchTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEARCH_TAG = "search"
CANDIDATE_TAG = "candidate"
PARENT_TAG = "mlflow.parentRunId"
MAX_TEXT = 5000
"""MLflow refuses values of parameters beyond 6000 characters, of tags beyond 8000."""
MAX_NAME = 250
MAX_PARAMETERS = 100
NOT_A_KEY = re.compile(r"[^\w\-./ ]", re.ASCII)
TITLE_CHARS = 48
"""In a line above a chart; names of fused operators are longer."""


def run_name(candidate: Candidate) -> str:
    """Short and telling: `blocked_rows 3f2a9c01d4e7`."""
    return f"{candidate.origin.pattern or candidate.origin.agent} {records.short(candidate.digest)}"


def search_name(start: SearchStart) -> str:
    """For whom and when: `demo llama-8x1024, 2026-12-02 20:15, 0123456789ab`."""
    of = " ".join(start.tags[name] for name in ("fleet", "model") if start.tags.get(name))
    began = datetime.fromtimestamp(start.started_ms / 1000, UTC)
    return f"{of or 'search'}, {began:%Y-%m-%d %H:%M}, {start.search_id}"


def parent_tags(start: SearchStart) -> dict[str, str]:
    """Tags of the search's own run."""
    return _texts({**start.tags, SEARCH_TAG: start.search_id, "kind": "search"})


def child_tags(start: SearchStart, trial: SearchTrial, parent_run_id: str) -> dict[str, str]:
    """Tags of a candidate's run: those of the search, then its own."""
    candidate, verdict = trial.candidate, trial.verdict
    return _texts(
        {
            **start.tags,
            **verdict.host,
            SEARCH_TAG: start.search_id,
            "kind": "candidate",
            "step": str(trial.step),
            CANDIDATE_TAG: candidate.digest,
            "operator": candidate.operator,
            "dtype": candidate.domain.dtype,
            "language": candidate.language.value,
            "agent": candidate.origin.agent,
            "pattern": candidate.origin.pattern,
            "parents": " ".join(candidate.origin.parents),
            **_written_by(candidate),
            "status": verdict.status.value,
            "reason": verdict.reason,
            "object_sha256": verdict.object_sha256,
            "isolation": " ".join(verdict.isolation),
            **_evidence_tags(verdict),
            PARENT_TAG: parent_run_id,
        }
    )


def _written_by(candidate: Candidate) -> dict[str, str]:
    """The language model and the episode, for a candidate that has them."""
    found = {"model": candidate.origin.model, "episode": candidate.origin.episode}
    return {name: value for name, value in found.items() if value}


def _evidence_tags(verdict: Verdict) -> dict[str, str]:
    """What a search page filters by: the kind of damage, the mistake if it is known, and the vector width."""
    tags = {}
    if verdict.mismatches:
        tags["damage"] = verdict.mismatches[0].pattern
    diagnoses = [case.diagnosis for case in verdict.failing if case.diagnosis]
    if diagnoses:
        tags["diagnosis"] = diagnoses[0]
    if verdict.object_report is not None and not verdict.object_report.note:
        tags["vector_bits"] = str(verdict.object_report.vector_bits)
        tags["hint"] = verdict.object_report.hint
    return tags


def parameters(candidate: Candidate) -> dict[str, str]:
    """What the agent chose; MLflow takes a hundred at most."""
    chosen = {NOT_A_KEY.sub("_", name)[:MAX_NAME]: value for name, value in candidate.origin.parameters.items()}
    return _texts(dict(list(chosen.items())[:MAX_PARAMETERS]))


def metrics(verdict: Verdict) -> dict[str, float]:
    """Overall and per workload. A candidate without timings has only its duration."""
    values = {"duration_s": verdict.duration_s}
    if verdict.ratio is not None:
        values["ratio"] = verdict.ratio
    if verdict.timings:
        values["ratio_low"] = _weighted_harmonic(verdict.timings, [t.ratio_low for t in verdict.timings])
        values["roofline_fraction"] = _roofline_fraction(verdict.timings)
    for name, timing in zip(workload_names(verdict.timings), verdict.timings, strict=True):
        values[f"ratio/{name}"] = timing.ratio
        values[f"ratio_low/{name}"] = timing.ratio_low
        values[f"candidate_ns/{name}"] = timing.candidate_ns
        values[f"baseline_ns/{name}"] = timing.baseline_ns
        values[f"roofline_fraction/{name}"] = timing.roofline_fraction
    return values


def workload_names(timings: Sequence[WorkloadTiming]) -> list[str]:
    """Metric-safe name per workload: `hidden_1024.tokens_4`, with a piece of its digest where layouts differ only."""
    names = []
    for timing in timings:
        axes = ".".join(f"{axis}_{extent}" for axis, extent in sorted(timing.workload.axes.items()))
        names.append(NOT_A_KEY.sub("_", axes) or "scalar")
    doubled = {name for name in names if names.count(name) > 1}
    return [
        f"{name}.{records.short(timing.workload.digest)}" if name in doubled else name
        for name, timing in zip(names, timings, strict=True)
    ]


def artifacts(trial: SearchTrial) -> dict[str, str]:
    """Text by path: the sources as they were built, the compiler's output, the evidence apart, the whole verdict."""
    files = {f"sources/{path}": text for path, text in trial.candidate.files.items()}
    if trial.verdict.build_log:
        files["build.log"] = trial.verdict.build_log
    if trial.verdict.build_errors:
        files["build_errors.txt"] = trial.verdict.build_errors
    if trial.verdict.failing:
        files["failing.json"] = json.dumps(records.encode(trial.verdict.failing), indent=1)
    if trial.verdict.object_report is not None:
        files["object.json"] = json.dumps(records.encode(trial.verdict.object_report), indent=1)
    files["verdict.json"] = json.dumps(records.encode(trial.verdict), indent=1)
    return files


def proven_ratio(verdict: Verdict) -> float:
    """The ratio of a winner, and 1 for anything else: what would be served in its place."""
    return verdict.ratio if verdict.won and verdict.ratio is not None else 1.0


def best_name(trial: SearchTrial) -> str:
    """The parent's metric for the operator of a trial: the best proven ratio so far."""
    return NOT_A_KEY.sub("_", f"best_ratio/{trial.candidate.operator}.{trial.candidate.domain.dtype}")


def by_operator(trials: Iterable[SearchTrial]) -> dict[str, list[SearchTrial]]:
    """`rms_norm float32` to its trials, in the order they were judged."""
    groups: dict[str, list[SearchTrial]] = {}
    for trial in trials:
        groups.setdefault(f"{trial.candidate.operator} {trial.candidate.domain.dtype}", []).append(trial)
    return groups


def leaderboard(trials: Iterable[SearchTrial]) -> list[dict[str, str]]:
    """Every trial, per operator the best first; those without a ratio last, in the order they were judged."""
    return [
        row
        for group in by_operator(trials).values()
        for row in _ranked(sorted(group, key=lambda trial: (-(trial.verdict.ratio or 0.0), trial.step)))
    ]


def _ranked(trials: Sequence[SearchTrial]) -> list[dict[str, str]]:
    return [
        {
            "rank": str(rank),
            "candidate": records.short(trial.candidate.digest),
            "operator": trial.candidate.operator,
            "dtype": trial.candidate.domain.dtype,
            "agent": trial.candidate.origin.agent,
            "pattern": trial.candidate.origin.pattern,
            "status": trial.verdict.status.value,
            "ratio": "" if trial.verdict.ratio is None else f"{trial.verdict.ratio:.3f}",
            "step": str(trial.step),
            "parameters": " ".join(f"{name}={value}" for name, value in trial.candidate.origin.parameters.items()),
            "reason": trial.verdict.reason,
        }
        for rank, trial in enumerate(trials, start=1)
    ]


def leaderboard_csv(trials: Iterable[SearchTrial]) -> str:
    """The leaderboard as MLflow's artifact page shows it: a table."""
    rows = leaderboard(trials)
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def pictures(trials: Sequence[SearchTrial]) -> dict[str, Figure]:
    """By file: the traffic's shapes, time before and after, where candidates ended, and who is best for which range."""
    workloads = {t.workload.digest: t.workload for trial in trials for t in trial.verdict.timings}
    heat = report_rows.heat_rows(list(workloads.values()))
    shares = report_rows.share_rows(list(workloads.values()), trials)
    front = report_rows.pareto_rows(trials)
    made = {"fates.png": search_charts.fates(report_rows.fate_rows(trials))}
    made |= {"traffic.png": search_charts.heat_map(heat)} if heat else {}
    made |= {"time_share.png": search_charts.time_shares(shares)} if shares else {}
    return made | ({"pareto.png": search_charts.pareto(front)} if front else {})


def best_ratio_figure(trials: Sequence[SearchTrial]) -> Figure:
    """The search at a glance, per operator: a dot per timed candidate, a cross per failed one, a line for the best."""
    from matplotlib.figure import Figure

    groups = by_operator(trials)
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(4.2 * columns + 1.5, 3.0 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, (name, group) in zip(grid.flat, groups.items(), strict=False):
        _draw_search(axes, name, [trial.verdict for trial in group])
    for axes in grid.flat[len(groups) :]:
        axes.set_axis_off()
    figure.supxlabel("candidate")
    figure.supylabel("ratio over the engine's own kernel")
    return figure


def _draw_search(axes: Axes, name: str, verdicts: Sequence[Verdict]) -> None:
    timed = [(place, verdict.ratio) for place, verdict in enumerate(verdicts, start=1) if verdict.ratio is not None]
    failed = [place for place, verdict in enumerate(verdicts, start=1) if verdict.ratio is None]
    best = list(accumulate((proven_ratio(verdict) for verdict in verdicts), max))
    axes.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
    axes.scatter([place for place, _ in timed], [ratio for _, ratio in timed], s=12, color="#a9b4bf", zorder=3)
    axes.scatter(failed, [0.0] * len(failed), s=14, marker="x", color="#c2502e", zorder=3, clip_on=False)
    axes.step(range(1, len(best) + 1), best, where="post", color="#0b7a5b", linewidth=1.8, zorder=4)
    axes.set_ylim(bottom=0.0)
    axes.set_title(textwrap.fill(f"{name}: {best[-1]:.2f}x", TITLE_CHARS), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _weights(timings: Sequence[WorkloadTiming]) -> list[float]:
    """Baseline time that each workload stands for; a workload never counted stands for one call."""
    return [timing.baseline_ns * max(timing.workload.calls, 1) for timing in timings]


def _weighted_harmonic(timings: Sequence[WorkloadTiming], ratios: Sequence[float]) -> float:
    """Total baseline time over total candidate time, were each workload sped up by its ratio."""
    weights = _weights(timings)
    return sum(weights) / sum(weight / ratio for weight, ratio in zip(weights, ratios, strict=True))


def _roofline_fraction(timings: Sequence[WorkloadTiming]) -> float:
    """Total floor over total candidate time."""
    times = [timing.candidate_ns * max(timing.workload.calls, 1) for timing in timings]
    return sum(t * timing.roofline_fraction for t, timing in zip(times, timings, strict=True)) / sum(times)


def _texts(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 3] + "..." for name, value in values.items()}
