"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gristmill.limits import one_line


def compact_table(rows: Iterable[Sequence[object]], headers: Sequence[str]) -> str:
    """Columns as wide as their widest cell, two spaces apart; a column that holds only numbers is aligned to the right.

    Floats are shown with two decimals, None as a dash, and characters that a terminal would obey as spaces.
    Rows have as many cells as there are headers.
    """
    cells = [[_text(value) for value in row] for row in rows]
    columns = list(zip(headers, *cells, strict=True)) if cells else [(header,) for header in headers]
    widths = [max(map(len, column)) for column in columns]
    right = [bool(cells) and all(map(_numeric, column[1:])) for column in columns]
    lines = [list(headers), ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else one_line(str(value))


def _numeric(cell: str) -> bool:
    """`1.62`, `-`, `3.1x` and `12 %` are; `1 to 8` is not."""
    try:
        float(cell.removesuffix("x").removesuffix("%").replace(",", ""))
    except ValueError:
        return cell == "-"
    return True
