"""The report's pictures, as SVG to be put inside HTML. Text stays text, so it prints, scales and can be searched."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.report_data import ConcurrencyRow, KernelRow, OperatorTimeRow, SearchRow, TrafficRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2933", "#66727f", "#e3e8ed"
ENGINE, GRISTMILL, FAILED = "#a9b4bf", "#0b7a5b", "#c2502e"
WIDTH_IN = 9.2
ROW_IN = 0.36
TITLE_CHARS = 34
"""In a line above one of three charts side by side; names of fused operators are longer."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gristmill",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "xtick.bottom": False,
    "ytick.left": False,
    "text.parse_math": False,
}
"""One look for all; the fonts are those of the page."""


def concurrency(rows: Sequence[ConcurrencyRow]) -> str:
    """Tokens per second with the engine's own kernels and with the promoted ones."""
    labels = [f"{row.concurrency} request{'s' if row.concurrency > 1 else ''}" for row in rows]
    notes = [f"{row.ratio:.2f}x" for row in rows]
    return _pairs(
        labels,
        [row.off_tokens_s for row in rows],
        [row.on_tokens_s for row in rows],
        notes,
        "decoded tokens per second",
    )


def operator_times(rows: Sequence[OperatorTimeRow]) -> str:
    """Time per operator over the same requests, before and after."""
    notes = [f"{row.before_ms / row.after_ms:.2f}x" if row.after_ms > 0 else "" for row in rows]
    return _pairs(
        [row.operator for row in rows], [r.before_ms for r in rows], [r.after_ms for r in rows], notes, "milliseconds"
    )


def traffic(rows: Sequence[TrafficRow]) -> str:
    """Share of time per operator, and which part of it could be saved."""
    figure, axes = _axes(len(rows))
    places = range(len(rows))
    axes.barh(places, [100 * row.share for row in rows], color=ENGINE, height=0.62, label="share of time")
    axes.barh(places, [100 * row.saving for row in rows], color=GRISTMILL, height=0.62, label="could be saved")
    for place, row in zip(places, rows, strict=True):
        _note(axes, 100 * row.share, place, f"{100 * row.share:.1f} %", MUTED)
    _finish(axes, [f"{row.operator} {row.dtype}" for row in rows], "per cent of the engine's time")
    return svg(figure, "Share of time and possible saving per operator")


def kernels(rows: Sequence[KernelRow]) -> str:
    """The proven ratio of every promoted range, from the lower end of its interval."""
    figure, axes = _axes(len(rows), legend=False)
    for place, row in enumerate(rows):
        axes.plot([row.ratio_low, row.ratio], [place, place], color=GRISTMILL, linewidth=2.2, solid_capstyle="butt")
        axes.plot([row.ratio_low], [place], marker="|", color=GRISTMILL, markersize=9, markeredgewidth=2)
        axes.plot([row.ratio], [place], marker="o", color=GRISTMILL, markersize=6)
        _note(axes, row.ratio, place, f"{row.ratio:.2f}x", INK)
    axes.axvline(1.0, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1.12 * max(row.ratio for row in rows))
    labels = [f"{row.operator} {row.dtype}, {row.range}" for row in rows]
    _finish(axes, labels, "ratio over the engine's own kernel; the bar ends where the 95 % interval does")
    return svg(figure, "Ratio per promoted range")


def searches(rows: Sequence[SearchRow]) -> str:
    """One small chart per operator: a dot per candidate and the best so far."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    with rc_context({**STYLE, "axes.grid.axis": "y"}):
        spaced = ConstrainedLayoutEngine(hspace=0.12, wspace=0.05)
        figure = Figure(figsize=(WIDTH_IN, 2.1 * lines), layout=spaced)
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes, row in zip(grid.flat, rows, strict=False):
            _search(axes, row)
        for axes in grid.flat[len(rows) :]:
            axes.set_axis_off()
        return svg(figure, "Best ratio over candidates, per operator")


def _search(axes: Axes, row: SearchRow) -> None:
    from matplotlib.ticker import MaxNLocator

    timed = [(place, ratio) for place, ratio in enumerate(row.ratios, start=1) if ratio is not None]
    untimed = [place for place, ratio in enumerate(row.ratios, start=1) if ratio is None]
    best, series = 1.0, []
    for ratio in row.ratios:
        best = max(best, ratio or 0.0)
        series.append(best)
    axes.axhline(1.0, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.scatter([p for p, _ in timed], [r for _, r in timed], s=9, color=ENGINE, zorder=3)
    axes.scatter(untimed, [0.0] * len(untimed), s=12, marker="x", color=FAILED, linewidths=1, zorder=3, clip_on=False)
    axes.step(range(1, len(series) + 1), series, where="post", color=GRISTMILL, linewidth=1.8, zorder=4)
    axes.set_ylim(0, 1.18 * max([best, *[ratio for _, ratio in timed]]))
    axes.set_xlim(0.5, max(len(series), 2) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    title = textwrap.fill(f"{row.operator} {row.dtype}: {best:.2f}x", TITLE_CHARS)
    axes.set_title(title, loc="left", color=INK, fontsize=9.5)


def _pairs(labels: list[str], engine: list[float], promoted: list[float], notes: list[str], unit: str) -> str:
    """Two bars per row, with a note behind the longer one."""
    figure, axes = _axes(len(labels), rows_in=0.58)
    for place, (before, after, note) in enumerate(zip(engine, promoted, notes, strict=True)):
        axes.barh(place - 0.19, before, height=0.34, color=ENGINE, label="engine's own kernels" if place == 0 else None)
        axes.barh(place + 0.19, after, height=0.34, color=GRISTMILL, label="promoted kernels" if place == 0 else None)
        _note(axes, after, place + 0.19, note, GRISTMILL)
    axes.set_xlim(0, 1.1 * max([*engine, *promoted]) or 1)
    _finish(axes, labels, unit)
    return svg(figure, unit)


def _axes(rows: int, *, legend: bool = True, rows_in: float = ROW_IN) -> tuple[Figure, Axes]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, rows_in * rows + (0.95 if legend else 0.65)), layout="constrained")
        return figure, figure.add_subplot()


def _note(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    """Text just right of a point."""
    axes.annotate(text, (x, y), (7, 0), textcoords="offset points", va="center", color=color)


def _finish(axes: Axes, labels: Sequence[str], unit: str) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(unit, loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0, handlelength=1.2)


def svg(figure: Figure, description: str) -> str:
    """The figure as one `svg` element that scales with the page."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for shown in figure.findobj(Text):  # what was made outside of STYLE would take names with dollars for formulas
        shown.set_parse_math(False)
    text = io.StringIO()
    options: dict[str, Any] = {"format": "svg", "transparent": True, "metadata": {"Date": None, "Creator": None}}
    with rc_context(STYLE):
        figure.savefig(text, **options)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)
