"""The correctness rule. Errors are measured against float64 and allowed in proportion to the production baseline's own.

An element's error is |found - expected| in units of eps(dtype) times the operator's error scale. The largest error of a
tensor may be `factor` times the baseline's largest, and the mean `factor` times the baseline's mean, plus one unit in
the last place of the expected value, plus `ACCUMULATOR_ROUNDINGS` of float32 at the error scale. NaN and infinities
must stand exactly where the reference has them.

The last term is what the roundings of a float32 accumulator cost. Without it a baseline that happens to sum in many
blocks (MKL at 4 tokens) would convict every honest dot product that sums in fewer. It is far below what a lower
precision costs: rounding the inputs to TF32 errs by about 5000 / sqrt(K) such units in a sum of K products.

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
ACCUMULATOR_ROUNDINGS = 4.0
"""In units of eps(float32) times scale. Dot products of 16 interleaved sums reach 1 in one element of ten thousand."""
MAX_TEXT_DIGITS = 9
EXPONENT_BITS = 0x7FF << 52
"""Of a float64."""


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


@dataclass(frozen=True)
class Deviation:
    """Errors of S sets, in units of eps times scale, and what rounding alone may add, likewise: one unit in the last
    place of the expected value and a few of a float32 accumulator.
    """

    errors: Tensor
    roundings: Tensor


def deviate(found: Tensor, expected: Expected) -> Deviation:
    """Errors are infinite where NaN or infinities are misplaced, and 0 where they stand as they should."""
    info = torch.finfo(expected.dtype)
    unit = (expected.scale * info.eps).clamp_(min=info.tiny * info.eps)
    exact = found.to(torch.float64)
    errors = (exact - expected.values).abs_().div_(unit)
    accumulator = ACCUMULATOR_ROUNDINGS * torch.finfo(torch.float32).eps / info.eps
    roundings = _last_place(expected.values, info).div_(unit).add_(accumulator)
    if not bool(torch.isfinite(errors).all()):
        agree = (exact == expected.values) | (torch.isnan(exact) & torch.isnan(expected.values))
        errors = torch.where(agree, 0.0, errors.nan_to_num(torch.inf, torch.inf))
        roundings = roundings.nan_to_num(0.0, 0.0)
    return Deviation(errors, roundings)


@dataclass(frozen=True)
class Allowance:
    """How far S sets of one output may be off, in absolute terms: the rule of `compare` for whoever has many to do."""

    limits: Tensor
    """Per element; NaN where the expected value is not finite."""
    per_unit: Tensor
    """One over eps times scale."""
    mean_limits: Tensor
    """Per set: of the mean error in that unit."""


def allow(expected: Expected, facts: ErrorFacts, factor: float = FACTOR) -> Allowance:
    """The limits under which `compare` finds nothing wrong with finite values."""
    info = torch.finfo(expected.dtype)
    unit = (expected.scale * info.eps).clamp_(min=info.tiny * info.eps)
    roundings = deviate(expected.values, expected).roundings
    limits = torch.where(torch.isfinite(expected.values), unit * (roundings + factor * facts.largest), math.nan)
    return Allowance(limits, 1 / unit, roundings.flatten(1).mean(1) + factor * facts.mean)


def measure(found: Tensor, expected: Expected) -> ErrorFacts:
    """The facts of a baseline's outputs, S sets at once."""
    errors_S = deviate(found, expected).errors.flatten(1)
    return ErrorFacts(float(errors_S.max()), float(errors_S.mean(1).max()))


def element_ratios(deviation: Deviation, facts: ErrorFacts, factor: float = FACTOR) -> Tensor:
    """Error over what is allowed, per element: above 1 is wrong. Infinite where NaN or infinity are misplaced."""
    return deviation.errors / (deviation.roundings + factor * facts.largest)


def mean_ratios(deviation: Deviation, facts: ErrorFacts, factor: float = FACTOR) -> Tensor:
    """Mean error over what is allowed, per set: above 1 the whole tensor is too inexact."""
    allowed_S = deviation.roundings.flatten(1).mean(1) + factor * facts.mean
    return deviation.errors.flatten(1).mean(1) / allowed_S


def compare(
    found: Tensor, expected: Expected, facts: ErrorFacts, *, workload: str, output: str, factor: float = FACTOR
) -> Mismatch | None:
    """None if all S sets are right, else where the worst of them differs."""
    deviation = deviate(found, expected)
    ratios = element_ratios(deviation, facts, factor).nan_to_num_(
        0.0, torch.inf
    )  # 0 / 0: nothing allowed, nothing wrong
    worst_S = ratios.flatten(1).amax(1)
    means_S = mean_ratios(deviation, facts, factor).nan_to_num_(0.0, torch.inf)
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


def _last_place(values: Tensor, info: torch.finfo) -> Tensor:
    """Distance to the next number of the output's dtype, in float64; the spacing of subnormal numbers at least."""
    powers = (values.contiguous().view(torch.int64) & EXPONENT_BITS).view(torch.float64)  # 2 ** floor(log2 |value|)
    return (powers * info.eps).clamp_(min=info.tiny * info.eps)


def _text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return f"{value:.{MAX_TEXT_DIGITS}g}"
