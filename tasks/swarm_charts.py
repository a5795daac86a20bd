"""Pictures of a swarm: what its language models cost over time, and who waited for what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from agents.episode import Outcome
from tasks.mlflow_spool import SearchEpisode
from tasks.mlflow_traces import Period, period_of, period_of_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mlflow.entities import TraceInfo

INK, MUTED, MODEL, TOOL, WHOLE, SUBMITTED = "#1f2933", "#66727f", "#a9b4bf", "#c2822e", "#e3e8ed", "#0b7a5b"
MAX_ROWS = 64
"""Of a timeline."""
ROW_IN = 0.22


@dataclass(frozen=True)
class EpisodeCourse:
    """What the pictures need of an episode."""

    agent: str
    outcome: str
    period: Period
    usd: float
    tokens: int
    answers: tuple[Period, ...] = ()
    """Waits for the model."""
    tools: tuple[Period, ...] = ()
    """Waits for a tool, most of them for the judge."""


def course_of(recorded: SearchEpisode) -> EpisodeCourse:
    episode = recorded.episode
    return EpisodeCourse(
        episode.agent,
        episode.outcome.value,
        period_of(recorded),
        episode.usage.usd,
        episode.usage.tokens,
        tuple(period_of_step(step) for step in episode.steps if step.model is not None),
        tuple(period_of_step(step) for step in episode.steps if step.tool is not None),
    )


def course_of_trace(info: TraceInfo) -> EpisodeCourse:
    """Of an episode that only MLflow knows: without its steps."""
    usage = json.loads(info.trace_metadata.get("mlflow.trace.tokenUsage", "{}"))
    cost = json.loads(info.trace_metadata.get("mlflow.trace.cost", "{}"))
    return EpisodeCourse(
        info.tags.get("agent", ""),
        info.tags.get("outcome", ""),
        Period(info.request_time, info.request_time + (info.execution_duration or 0)),
        cost.get("total_cost", 0.0),
        usage.get("total_tokens", 0),
    )


def cost_figure(courses: Sequence[EpisodeCourse]) -> Figure:
    """Dollars and tokens so far, over the time since the first episode."""
    from matplotlib.figure import Figure

    ordered = sorted(courses, key=lambda course: course.period.ended_ms)
    times_s = _seconds([course.period.ended_ms for course in ordered], _began(ordered))
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    money, tokens = figure.subplots(2, 1, sharex=True)
    _draw_total(money, times_s, [course.usd for course in ordered], "USD")
    _draw_total(tokens, times_s, [float(course.tokens) for course in ordered], "tokens")
    tokens.set_xlabel("seconds since the first episode began", loc="left", color=MUTED)
    return figure


def timeline_figure(courses: Sequence[EpisodeCourse]) -> Figure:
    """Who waited for what: a row per agent, or several where it works on more than one episode at a time."""
    from matplotlib.figure import Figure

    rows = lanes(courses)
    shown, began = rows[:MAX_ROWS], _began(courses)
    figure = Figure(figsize=(10.0, ROW_IN * len(shown) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    for row, mine in enumerate(shown):
        _draw_bars(axes, row, [course.period for course in mine], began, WHOLE)
        _draw_bars(axes, row, [period for course in mine for period in course.answers], began, MODEL)
        _draw_bars(axes, row, [period for course in mine for period in course.tools], began, TOOL)
        for good, marker, color in ((True, "o", SUBMITTED), (False, "x", INK)):
            ended = [c.period.ended_ms for c in mine if (c.outcome == Outcome.SUBMITTED.value) is good]
            axes.scatter(_seconds(ended, began), [row] * len(ended), s=16, marker=marker, color=color, zorder=3)
    names = [mine[0].agent for mine in shown]
    labels = [name if name not in names[:row] else "" for row, name in enumerate(names)]
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the first episode began", loc="left", color=MUTED)
    left_out = f"; {len(rows) - len(shown)} more rows" if len(rows) > len(shown) else ""
    title = "grey: waits for its model, orange: for a tool; dot: submitted, cross: did not"
    axes.set_title(title + left_out, loc="left", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def lanes(courses: Sequence[EpisodeCourse]) -> list[list[EpisodeCourse]]:
    """The episodes in rows, each of one agent, within which none overlaps another; agents in the order they began."""
    agents: dict[str, list[list[EpisodeCourse]]] = {}
    for course in sorted(courses, key=lambda course: course.period.started_ms):
        rows = agents.setdefault(course.agent, [])
        free = next((row for row in rows if row[-1].period.ended_ms <= course.period.started_ms), None)
        if free is None:
            rows.append([course])
        else:
            free.append(course)
    return [row for rows in agents.values() for row in rows]


def _draw_total(axes: Axes, times_s: Sequence[float], amounts: Sequence[float], unit: str) -> None:
    totals = list(accumulate(amounts))
    axes.step([0.0, *times_s], [0.0, *totals], where="post", color=SUBMITTED, linewidth=1.8)
    axes.set_ylim(bottom=0.0)
    axes.set_title(f"{totals[-1]:,.6g} {unit}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: Axes, row: int, periods: Sequence[Period], began_ms: int, color: str) -> None:
    bars = [((period.started_ms - began_ms) / 1000, period.duration_ms / 1000) for period in periods]
    axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=color)


def _began(courses: Sequence[EpisodeCourse]) -> int:
    return min(course.period.started_ms for course in courses)


def _seconds(times_ms: Sequence[int], began_ms: int) -> list[float]:
    return [(time_ms - began_ms) / 1000 for time_ms in times_ms]
