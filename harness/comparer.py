"""The correctness rule. Errors are measured against float64 and allowed in proportion to the production baseline's own.

An element's error is |found - expected| in units of eps(dtype) times the operator's error scale. The largest error of a tensor may
be `factor` times the baseline's largest, and the mean `factor` times the baseline's mean, plus one unit in the last place of the
expected value. NaN and infinities must stand exactly where the reference has them.

Shape suffixes: S sets, then the tensor's own dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.verdict import Mismatch

FACTOR = 4.0
MAX_TEXT_DIGITS = 9


@dataclass(frozen=True)
class ErrorFacts:
    """How far the production baseline is from float64, for one output: the yardstick of candidates."""

    largest: float
    """In units of eps times scale, over all elements of all samples."""
    mean: float
    """Likewise: the largest mean of any one sample."""


@dataclass(frozen=True)
class Expected:
    """What one output of S sets should be, in float64."""

    values: Tensor
    scale: Tensor
    dtype: torch.dtype
    """Of the candidate's output."""


def units(found: Tensor, expected: Expected) -> Tensor:
    """Errors in units of eps times scale; elements that are not finite in the reference count as 0."""
    difference = (found.to(torch.float64) - expected.values).abs()
    finite = torch.isfinite(expected.values)
    return torch.where(finite, difference, 0.0) / _unit(expected)


def measure(found: Tensor, expected: Expected) -> ErrorFacts:
    """The facts of a baseline's outputs, S sets at once."""
    errors_S = units(found, expected).flatten(1)
    return ErrorFacts(float(errors_S.max()), float(errors_S.mean(1).max()))


def wrong_elements(found: Tensor, expected: Expected, facts: ErrorFacts, factor: float = FACTOR) -> Tensor:
    """Error over what is allowed, per element: above 1 is wrong. Infinite where NaN or infinity are misplaced."""
    allowed = factor * facts.largest + _last_place(expected) / _unit(expected)
    ratios = units(found, expected) / allowed
    exact = found.to(torch.float64)
    agree = (exact == expected.values) | (torch.isnan(exact) & torch.isnan(expected.values))
    classes_differ = ~(torch.isfinite(exact) & torch.isfinite(expected.values)) & ~agree
    return torch.where(classes_differ, torch.inf, ratios)


def mean_ratios(found: Tensor, expected: Expected, facts: ErrorFacts, factor: float = FACTOR) -> Tensor:
    """Mean error over what is allowed, per set: above 1 the whole tensor is too inexact."""
    last_place_S = (_last_place(expected) / _unit(expected)).flatten(1).nan_to_num(0.0, 0.0, 0.0).mean(1)
    return units(found, expected).flatten(1).nan_to_num(torch.inf).mean(1) / (factor * facts.mean + last_place_S)


def compare(
    found: Tensor, expected: Expected, facts: ErrorFacts, *, workload: str, output: str, factor: float = FACTOR
) -> Mismatch | None:
    """None if all S sets are right, else where the worst of them differs."""
    ratios = wrong_elements(found, expected, facts, factor)
    worst_S = ratios.flatten(1).amax(1)
    means_S = mean_ratios(found, expected, facts, factor)
    if not bool(((worst_S > 1) | (means_S > 1)).any()):
        return None
    number = int(torch.maximum(worst_S, means_S).argmax())
    wrong = ratios[number] > 1
    flat_index = int(ratios[number].argmax())
    shape = tuple(found.shape[1:])
    return Mismatch(
        workload=workload,
        output=output,
        worst_index=tuple(int(i) for i in torch.unravel_index(torch.tensor(flat_index), shape)),
        found=_text(found[number].flatten()[flat_index].item()),
        expected=_text(expected.values[number].flatten()[flat_index].item()),
        error_ratio=_text(max(float(worst_S[number]), float(means_S[number]))),
        wrong_elements=int(wrong.sum()),
        total_elements=wrong.numel(),
        pattern=pattern(wrong, found[number]),
    )


def pattern(wrong: Tensor, found: Tensor) -> str:
    """The shape of the damage: `all`, `nan`, `tail`, `rows`, `columns` or `scattered`.

    `all` also stands for a tensor none of whose elements is wrong by itself, but whose mean is.
    """
    count = int(wrong.sum())
    if count in (0, wrong.numel()):
        return "all" if not bool(torch.isnan(found).all()) else "nan"
    if bool(torch.isnan(found[wrong]).all()):
        return "nan"
    flat = wrong.flatten()
    first = int(flat.to(torch.uint8).argmax())
    if bool(flat[first:].all()):
        return "tail"
    rows_RC = wrong.reshape(-1, wrong.shape[-1])
    if count == int(rows_RC.any(1).sum()) * rows_RC.shape[1]:
        return "rows"
    columns = rows_RC.any(0)
    if rows_RC.shape[0] > 1 and count == int(columns.sum()) * rows_RC.shape[0]:
        first_column = int(columns.to(torch.uint8).argmax())
        return "tail" if bool(columns[first_column:].all()) else "columns"
    return "scattered"


def merge(facts: Sequence[ErrorFacts]) -> ErrorFacts:
    """The widest of several samples' facts."""
    return ErrorFacts(max(fact.largest for fact in facts), max(fact.mean for fact in facts))


def _unit(expected: Expected) -> Tensor:
    info = torch.finfo(expected.dtype)
    return (expected.scale * info.eps).clamp(min=info.tiny * info.eps)


def _last_place(expected: Expected) -> Tensor:
    """Distance to the next number of the output's dtype; the spacing of subnormal numbers at least."""
    info = torch.finfo(expected.dtype)
    exponents = torch.frexp(expected.values.nan_to_num(0.0, 0.0, 0.0)).exponent
    return torch.ldexp(torch.full_like(expected.values, info.eps), exponents - 1).clamp(min=info.tiny * info.eps)


def _text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return f"{value:.{MAX_TEXT_DIGITS}g}"
