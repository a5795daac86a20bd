"""Pictures of a search: which shapes the traffic has, where the time goes before and after, where candidates ended, and
which are worth keeping for which range of the traffic.

Rows are made by `tasks.report_rows`; the figures go to MLflow as they are and into the report as SVG.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernels.verdict import Status
from tasks.report_data import FateRow, HeatRow, ParetoRow, TimeShareRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, ENGINE, GRISTMILL = "#1f2933", "#66727f", "#a9b4bf", "#0b7a5b"
WIDTH_IN = 9.2
ROW_IN = 0.3
TITLE_CHARS = 40
MOST_TICKS = 8
FATES = {
    Status.REJECTED: "#5b2a1f",
    Status.BUILD_FAILED: "#8a3b26",
    Status.CRASHED: "#c2502e",
    Status.TIMED_OUT: "#d98255",
    Status.INCORRECT: "#e8b08c",
    Status.CHEATED: "#7d4aa8",
    Status.SLOWER: ENGINE,
    Status.FASTER: GRISTMILL,
}
"""Colour by what became of a candidate, from caught earliest to best."""


def heat_map(rows: Sequence[HeatRow]) -> Figure:
    """Share of the time by shape: what the model fixes downwards, what varies from call to call sideways."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.name for row in rows))
    extents = sorted({row.extent for row in rows})
    grid = [[0.0] * len(extents) for _ in names]
    for row in rows:
        grid[names.index(row.name)][extents.index(row.extent)] += 100 * row.share
    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(names) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    axes.pcolormesh(grid, cmap="YlGn", vmin=0.0, edgecolors="white", linewidth=1)
    largest = max(max(line) for line in grid)
    for y, line in enumerate(grid):
        for x, share in enumerate(line):
            if share >= 0.05:
                color = "white" if share > 0.6 * largest else INK
                axes.text(x + 0.5, y + 0.5, f"{share:.1f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks([x + 0.5 for x in range(len(extents))], [_bin(extent) for extent in extents], fontsize=8)
    axes.set_yticks([y + 0.5 for y in range(len(names))], names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("tokens or rows of a call; per cent of the sampled time", loc="left", color=MUTED)
    axes.spines[:].set_visible(False)
    return figure


def _bin(low: int) -> str:
    return str(low) if low == 1 else f"{low} to {2 * low - 1}"


def time_shares(rows: Sequence[TimeShareRow]) -> Figure:
    """Each operator's part of the time before, and what is left of it with the best proven candidates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, 0.55 * len(rows) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        axes.barh(place - 0.19, 100 * row.before, 0.34, color=ENGINE, label="before" if place == 0 else None)
        axes.barh(place + 0.19, 100 * row.after, 0.34, color=GRISTMILL, label="after" if place == 0 else None)
        axes.annotate(
            f"{100 * row.before:.1f} to {100 * row.after:.1f}",
            (100 * max(row.before, row.after), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [f"{row.operator} {row.dtype}" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    left = sum(row.after for row in rows)
    axes.set_xlabel(f"per cent of the time before; {100 * left:.1f} are left of 100", loc="left", color=MUTED)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def fates(rows: Sequence[FateRow]) -> Figure:
    """Where candidates ended, by who proposed them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(rows) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    for status, color in FATES.items():
        counts = [row.statuses.get(status.value, 0) for row in rows]
        if any(counts):
            starts = [_before(row, status) for row in rows]
            axes.barh(range(len(rows)), counts, 0.7, left=starts, color=color, label=status.value.replace("_", " "))
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("candidates", loc="left", color=MUTED)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(FATES), frameon=False, fontsize=8, handlelength=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _before(row: FateRow, status: Status) -> int:
    """How many ended earlier."""
    order = list(FATES)
    return sum(row.statuses.get(one.value, 0) for one in order[: order.index(status)])


def pareto(rows: Sequence[ParetoRow]) -> Figure:
    """Per operator the ratio of every timed candidate over the range; those that none beats everywhere stand out."""
    from matplotlib.figure import Figure

    groups: dict[str, list[ParetoRow]] = {}
    for row in rows:
        groups.setdefault(f"{row.operator} {row.dtype}", []).append(row)
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(WIDTH_IN, 2.6 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, (name, group) in zip(grid.flat, groups.items(), strict=False):
        _draw_front(axes, name, group)
    for axes in grid.flat[len(groups) :]:
        axes.set_axis_off()
    figure.supxlabel("tokens or rows of a call", fontsize=9, color=MUTED)
    figure.supylabel("ratio over the engine's own kernel", fontsize=9, color=MUTED)
    return figure


def _draw_front(axes: Axes, name: str, rows: Sequence[ParetoRow]) -> None:
    from matplotlib.ticker import NullLocator

    for row in sorted(rows, key=lambda row: row.efficient):
        color, order = (GRISTMILL, 3) if row.efficient else (ENGINE, 2)
        extents, ratios = zip(*row.points, strict=True)
        axes.plot(extents, ratios, marker="o", markersize=3, linewidth=1.4, color=color, zorder=order)
    kept = sum(row.efficient for row in rows)
    axes.axhline(1.0, color=MUTED, linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    measured = sorted({extent for row in rows for extent, _ in row.points})
    axes.set_xticks(measured[:: -(-len(measured) // MOST_TICKS)])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0.0)
    axes.set_title(textwrap.fill(f"{name}: {kept} of {len(rows)}", TITLE_CHARS), loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
