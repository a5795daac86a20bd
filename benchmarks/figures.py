"""The claimed figures: what was aimed at, what was measured, where, and by which command.

A benchmark calls `record`; `docs/figures.json` holds one row per name and `docs/figures.md` is rendered from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.hardware import Hardware, local_cpu

ROOT = Path(__file__).resolve().parent.parent
FIGURES_JSON = ROOT / "docs" / "figures.json"
FIGURES_MD = ROOT / "docs" / "figures.md"


class Outcome(StrEnum):
    """Whether the target was reached."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Figure:
    """One row. Numbers are None until they are measured."""

    name: str
    """What was measured; the key by which rows are merged."""
    issue: int
    target: str
    """In words and with its direction: `at least 1.5`."""
    unit: str
    """`x` for a ratio, `s`, `GiB`, ..."""
    command: str
    """What makes the row again, run in the checkout."""
    measured: float | None = None
    interval: tuple[float, float] | None = None
    """95 % interval of `measured`."""
    verdict: Outcome = Outcome.NOT_MEASURED
    host: str = ""
    """Hardware and cores, never the machine's name."""
    commit: str = ""
    """Abbreviated; ends in `+` when the tree differed from it."""
    date: str = ""
    """Day of the measurement, UTC."""
    note: str = ""


def record(figure: Figure, path: Path = FIGURES_JSON) -> Figure:
    """Writes a row, in the place of the one of that name, and renders the page beside it.

    A measured row without host, commit or date gets those of now. Both files appear by rename.
    """
    if figure.measured is not None:
        figure = replace(
            figure,
            host=figure.host or describe_host(local_cpu()),
            commit=figure.commit or current_commit(),
            date=figure.date or datetime.now(UTC).date().isoformat(),
        )
    rows = merge(load(path), figure)
    _write(path, json.dumps(records.encode(rows), indent=1, ensure_ascii=False) + "\n")
    write_page(rows, path.with_suffix(".md"))
    return figure


def report(rows: Iterable[Figure], *, keep: bool) -> int:
    """Prints each row on a line, and writes it if it is to be kept. The exit code: 0 if every target was met."""
    code = 0
    for row in rows:
        print(f"{row.name}: target {row.target}, measured {measurement(row)}: {row.verdict.value}; {row.note}")
        if keep:
            record(row)
        if row.verdict is not Outcome.MET:
            code = 1
    return code


def merge(rows: Iterable[Figure], figure: Figure) -> tuple[Figure, ...]:
    """The rows with one replaced, or added; ordered by issue, and within an issue as they came."""
    kept = list(rows)
    names = [row.name for row in kept]
    if figure.name in names:
        kept[names.index(figure.name)] = figure
    else:
        kept.append(figure)
    return tuple(sorted(kept, key=lambda row: row.issue))


def load(path: Path = FIGURES_JSON) -> tuple[Figure, ...]:
    """All rows; none if nothing was recorded yet.

    Raises:
        MalformedRecordError: with the file and the field.
    """
    if not path.exists():
        return ()
    try:
        rows = json.loads(path.read_text())
    except ValueError as error:
        raise MalformedRecordError(f"{path.name}: not JSON ({error})") from None
    return tuple(records.decode(Figure, row, f"{path.name}[{index}]") for index, row in enumerate(rows))


def render_markdown(rows: Iterable[Figure]) -> str:
    """The page, one table per issue."""
    lines = [
        "# Figures",
        "",
        "Rendered from `figures.json` by `./mill figures`; each row says which command makes it again.",
        "",
    ]
    issue = None
    for row in rows:
        if row.issue != issue:
            issue = row.issue
            lines += [
                *([""] if lines[-1] else []),
                f"## Issue {issue}",
                "",
                "| figure | target | measured | verdict | command | host | commit, date | note |",
                "|---|---|---|---|---|---|---|---|",
            ]
        cells = [row.name, row.target, measurement(row), row.verdict.value, f"`{row.command}`", row.host]
        cells += [", ".join(filter(None, [row.commit, row.date])), row.note]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines).rstrip() + "\n"


def write_page(rows: Iterable[Figure], path: Path = FIGURES_MD) -> None:
    """Renders the page to a file."""
    _write(path, render_markdown(rows))


def measurement(row: Figure) -> str:
    """The measured value with its interval and unit: `1.62 x [1.55, 1.70]`."""
    if row.measured is None:
        return "-"
    value = f"{row.measured:.4g} {row.unit}".rstrip()
    return value + (f" [{row.interval[0]:.4g}, {row.interval[1]:.4g}]" if row.interval else "")


def describe_host(hardware: Hardware) -> str:
    return f"{hardware.description}, {hardware.cores} cores"


def current_commit(root: Path = ROOT) -> str:
    """The checkout's commit, or an empty string outside of git."""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        result = subprocess.run(command, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
