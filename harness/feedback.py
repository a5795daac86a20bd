"""What an agent can learn from a wrong answer: where it is wrong, how far, on which call, and from which values.

Which mistake would give just that answer is found in `diagnosis.py`. Tensors here are those of one call, without an
axis of sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gristmill.workload import Workload
from kernels.definition import Definition
from kernels.verdict import FailingCase, InputRow, Mismatch, Verdict

FAILING_CASES = 3
SHOWN_VALUES = 8


def reason(mismatch: Mismatch, regime: str, diagnosis: str = "") -> str:
    """One line: where, how many, how far, and why if that is known."""
    where = f"{mismatch.workload}, {regime} values: {mismatch.output} is wrong"
    values = f"found {mismatch.found}, expected {mismatch.expected}, {mismatch.error_ratio} times the allowed error"
    worst = f"{where} ({extent(mismatch)}), worst at {list(mismatch.worst_index)}: {values}"
    return f"{worst}; {diagnosis}" if diagnosis else worst


def extent(mismatch: Mismatch) -> str:
    """Which elements are wrong: their pattern, how many, the first rows and columns."""
    if not mismatch.wrong_elements:
        return "no element by itself, but their mean"
    parts = [f"{mismatch.pattern}; {mismatch.wrong_elements} of {mismatch.total_elements} elements"]
    for name, first, count, total in (
        ("row", mismatch.rows, mismatch.wrong_rows, mismatch.total_rows),
        ("column", mismatch.columns, mismatch.wrong_columns, mismatch.total_columns),
    ):
        if 0 < count < total:
            listed = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
            parts.append(f"{name}{'s' if count > 1 else ''} {listed}")
    return "; ".join([*parts, *([mismatch.magnitudes] if mismatch.magnitudes else [])])


def describe_case(
    definition: Definition,
    workload: Workload,
    regime: str,
    inputs: Sequence[Tensor],
    found: Tensor | None,
    expected: Tensor | None,
    mismatch: Mismatch,
    *,
    diagnosis: str = "",
) -> FailingCase:
    """A wrong call with the input values that feed its worst element.

    `mismatch.worst_index` is that of the whole output. Values of `found` and `expected`, where given, replace the
    mismatch's.
    """
    index = mismatch.worst_index
    return FailingCase(
        workload=workload.label,
        axes=dict(workload.axes),
        layouts=tuple(
            f"{spec.name} {_by(layout.shape)} in steps of {_by(layout.strides)}"
            for spec, layout in zip(definition.inputs, workload.inputs, strict=True)
            if not layout.contiguous
        ),
        regime=regime,
        output=mismatch.output,
        index=index,
        found=mismatch.found if found is None else f"{float(found[index]):.9g}",
        expected=mismatch.expected if expected is None else f"{float(expected[index]):.9g}",
        error_ratio=mismatch.error_ratio,
        inputs=tuple(_feeding(definition, inputs, mismatch.output, index)),
        diagnosis=diagnosis,
    )


def _feeding(
    definition: Definition, inputs: Sequence[Tensor], output: str, index: tuple[int, ...]
) -> Iterator[InputRow]:
    """Per input, the row that the element is made from; inputs whose row the output's axes do not name are left out."""
    dims = next(spec.dims for spec in definition.outputs if spec.name == output)
    at = dict(zip(dims, index, strict=True))
    for spec, tensor in zip(definition.inputs, inputs, strict=True):
        if not spec.dims or any(dim not in at for dim in spec.dims[:-1]):
            continue
        row = tuple(at[dim] for dim in spec.dims[:-1])
        values = tensor[row].to(torch.float64)
        positions = _telling(values, at.get(spec.dims[-1]))
        yield InputRow(spec.name, row, values.numel(), positions, tuple(f"{float(values[p]):.6g}" for p in positions))


def _telling(values: Tensor, own: int | None) -> tuple[int, ...]:
    """Up to eight positions of a row: the element's own and its neighbours, the ends, and the largest value."""
    last = values.numel() - 1
    near = [] if own is None else [own, own - 1, own + 1]
    wanted = [*near, 0, last, int(values.abs().nan_to_num(torch.inf).argmax()), 1, last - 1, 2]
    kept = list(dict.fromkeys(place for place in wanted if 0 <= place <= last))
    return tuple(sorted(kept[:SHOWN_VALUES]))


def _by(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def timed_reason(verdict: Verdict) -> str:
    """The reason of a verdict with timings, and what its object suggests if the candidate is not faster."""
    hint = verdict.object_report.hint if verdict.object_report is not None else ""
    return f"{verdict.reason}; {hint}" if hint and not verdict.won else verdict.reason
