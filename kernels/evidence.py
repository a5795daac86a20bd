"""A verdict's evidence as text: for a person's terminal and for an agent's next try alike."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.verdict import FailingCase, InputRow, Mismatch, ObjectReport

BAR_CHARACTERS = 40


def mismatch_text(mismatch: Mismatch) -> str:
    """Where an output is wrong, and how far."""
    share = f"{mismatch.wrong_elements} of {mismatch.total_elements} elements"
    extent = f"{mismatch.pattern}, {share}" if mismatch.wrong_elements else "no element by itself, but their mean"
    lines = [
        f"{mismatch.output} of {mismatch.workload}: {extent}",
        f"  worst at {list(mismatch.worst_index)}: {mismatch.found} instead of {mismatch.expected}, "
        f"{mismatch.error_ratio} times the allowed error",
    ]
    for name, first, count, total in (
        ("rows", mismatch.rows, mismatch.wrong_rows, mismatch.total_rows),
        ("columns", mismatch.columns, mismatch.wrong_columns, mismatch.total_columns),
    ):
        if 0 < count < total:
            listed = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
            lines.append(f"  {name}: {count} of {total} ({listed})")
    if mismatch.magnitudes:
        lines.append(f"  {mismatch.magnitudes}")
    return "\n".join([*lines, *_bars(mismatch)])


def _bars(mismatch: Mismatch) -> Iterator[str]:
    """The error histogram. Any bar that stands for something is seen."""
    most = max((one.elements for one in mismatch.histogram), default=0)
    width = max((len(one.label) for one in mismatch.histogram), default=0)
    if mismatch.histogram:
        yield "  error over allowed, elements"
    for one in mismatch.histogram:
        bar = "#" * max(1, round(BAR_CHARACTERS * one.elements / most))
        yield f"    {one.label:<{width}}  {one.elements:>{len(str(most))}}  {bar}"


def case_text(case: FailingCase) -> str:
    """One wrong call: its sizes, its element, and the values that go into it."""
    sizes = " ".join(f"{name}={extent}" for name, extent in case.axes.items())
    lines = [
        f"  {sizes}, {case.regime} values: {case.output}{list(case.index)} is {case.found}, expected {case.expected}",
        *(f"    {layout}" for layout in case.layouts),
        *(f"    {_row_text(row)}" for row in case.inputs),
    ]
    return "\n".join([*lines, f"    {case.diagnosis}"] if case.diagnosis else lines)


def _row_text(row: InputRow) -> str:
    place = ", ".join([*map(str, row.index), f"0..{row.length - 1}"])
    values = ", ".join(f"[{position}] {value}" for position, value in zip(row.positions, row.values, strict=True))
    return f"{row.tensor}[{place}]: {values}"


def object_text(report: ObjectReport) -> str:
    """What the compiler made of it, in one line, and the hint in another."""
    if report.note:
        return f"object: {report.note}"
    width = f"{report.vector_bits}-bit vectors" if report.vector_bits else "scalar arithmetic"
    width = "scalable vectors" if report.scalable else width
    counts = (
        (report.gathers, "gathers"),
        (report.loop_divisions, "divisions or roots in innermost loops"),
        (report.loop_calls, "calls in innermost loops"),
        (report.spills, "spills in innermost loops"),
    )
    facts = [
        f"object: {report.architecture}, {width}",
        *(["FMA"] if report.fma else []),
        f"{report.instructions} instructions, {report.loop_instructions} in innermost loops",
        *(f"{count} {what}" for count, what in counts if count),
    ]
    return "\n".join([", ".join(facts), *([f"hint: {report.hint}"] if report.hint else [])])
