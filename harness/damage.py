"""What wrong elements look like: where they lie, how far off they are, and which values they are.

Which elements are wrong is for others to say: the comparer, or who finds them unwritten. Tensors are those of one call.

Shape suffixes: R rows (all dimensions but the last), C columns (the last).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.verdict import ErrorBin, Mismatch

MAX_TEXT_DIGITS = 9
NAMED_PLACES = 4
"""Wrong rows and columns that a mismatch names."""
DECADES = 6
"""Of error over what is allowed that a histogram tells apart above 1."""
LEAST_PERIODS = 3
"""Equal distances are told from chance by so many marked places."""


def describe(
    found: Tensor,
    expected: Tensor,
    ratios: Tensor,
    wrong: Tensor,
    *,
    workload: str,
    output: str,
    call: int,
    error_ratio: float,
) -> Mismatch:
    """The mismatch of one call whose errors are `ratios` times what is allowed. `wrong` may have no element at all."""
    flat_index = int(torch.where(wrong, ratios, 0.0).argmax() if bool(wrong.any()) else ratios.argmax())
    mismatch = Mismatch(
        workload=workload,
        output=output,
        worst_index=tuple(int(i) for i in torch.unravel_index(torch.tensor(flat_index), found.shape)),
        found=as_text(found.flatten()[flat_index].item()),
        expected=as_text(expected.flatten()[flat_index].item()),
        error_ratio=as_text(error_ratio),
        wrong_elements=0,
        total_elements=0,
        pattern="",
        call=call,
        magnitudes=magnitudes(wrong, expected),
        histogram=histogram(ratios),
    )
    placed = locate(mismatch, wrong)
    of_nan = bool(wrong.any()) and bool(torch.isnan(found[wrong]).all())
    return replace(placed, pattern="nan") if of_nan else placed


def locate(mismatch: Mismatch, wrong: Tensor) -> Mismatch:
    """The same mismatch with the place of the wrong elements."""
    rows_R, columns_C = (_as_rows(wrong).any(dim) for dim in (1, 0))
    return replace(
        mismatch,
        wrong_elements=int(wrong.sum()),
        total_elements=wrong.numel(),
        pattern=pattern(wrong),
        rows=_first(rows_R),
        wrong_rows=int(rows_R.sum()),
        total_rows=rows_R.numel(),
        columns=_first(columns_C),
        wrong_columns=int(columns_C.sum()),
        total_columns=columns_C.numel(),
    )


def to_blame(ratios: Tensor, lines: Sequence[Tensor]) -> Tensor:
    """Which elements of one set are to blame: the wrong ones; where there are none, those of rows or columns whose mean
    is wrong; else none by itself.
    """
    wrong = ratios > 1
    if bool(wrong.any()):
        return wrong
    for line, dim in zip(lines, (1, 0), strict=False):
        if bool((line > 1).any()):
            return (line > 1).unsqueeze(dim).expand_as(_as_rows(wrong)).reshape(wrong.shape)
    return wrong


def histogram(ratios: Tensor) -> tuple[ErrorBin, ...]:
    """Elements by decade of error over what is allowed."""
    finite = ratios[torch.isfinite(ratios)]
    decades = finite.log10().floor().clamp(-2, DECADES - 1).to(torch.int64)
    counts = [(_decade(decade), int((decades == decade).sum())) for decade in range(-2, DECADES)]
    counts.append(("NaN or infinity misplaced", ratios.numel() - finite.numel()))
    return tuple(ErrorBin(label, count) for label, count in counts if count)


def _decade(decade: int) -> str:
    if decade == -2:
        return "below 0.1"
    if decade == DECADES - 1:
        return f"{10.0**decade:g} and more"
    return f"{10.0**decade:g} to {10.0 ** (decade + 1):g}"


def magnitudes(wrong: Tensor, expected: Tensor) -> str:
    """Whether the size of the expected values tells the wrong elements from the right ones: a clause, or nothing."""
    sizes = expected.abs()
    bad, good = sizes[wrong & torch.isfinite(sizes)], sizes[~wrong & torch.isfinite(sizes)]
    if min(bad.numel(), good.numel()) < 2:
        return ""
    if bool(bad.min() > good.max()):
        return f"only where |expected| > {float(good.max()):.3g}"
    if bool(bad.max() < good.min()):
        return f"only where |expected| < {float(good.min()):.3g}"
    return ""


def pattern(wrong: Tensor) -> str:
    """Where the wrong elements lie: `all`, `tail`, `rows`, `columns`, `one row in 4`, `all but one column in 2`,
    `one element in 3` or `scattered`.

    `all` also stands for a tensor none of whose elements is wrong by itself, but whose mean is.
    """
    count = int(wrong.sum())
    if count in (0, wrong.numel()):
        return "all"
    flat = wrong.flatten()
    if _reaches_the_end(flat):
        return "tail"
    wrong_RC = _as_rows(wrong)
    rows_R, columns_C = wrong_RC.any(1), wrong_RC.any(0)
    if count == int(rows_R.sum()) * columns_C.numel():
        return _period(rows_R, "row") or "rows"
    if rows_R.numel() > 1 and count == int(columns_C.sum()) * rows_R.numel():
        return "tail" if _reaches_the_end(columns_C) else _period(columns_C, "column") or "columns"
    return _period(flat, "element") or "scattered"


def _reaches_the_end(marked: Tensor) -> bool:
    """Whether all places are marked from the first marked one on."""
    return bool(marked[int(marked.to(torch.uint8).argmax()) :].all())


def _period(marked: Tensor, name: str) -> str:
    """How places at equal distances, from end to end, are called; nothing if they are not."""
    for some, words in ((marked, "one"), (~marked, "all but one")):
        places = some.nonzero().flatten()
        distances = torch.unique(places.diff()).tolist()
        if places.numel() < LEAST_PERIODS or len(distances) > 1:
            continue
        (step,) = distances
        if int(places[0]) < step and int(places[-1]) + step >= marked.numel():
            return f"{words} {name} in {step}"
    return ""


def _as_rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _first(wrong: Tensor) -> tuple[int, ...]:
    return tuple(wrong.nonzero().flatten()[:NAMED_PLACES].tolist())


def as_text(value: float) -> str:
    """A number as mismatches show it."""
    if math.isnan(value):
        return "nan"
    return f"{value:.{MAX_TEXT_DIGITS}g}"
