"""The correctness rule. Errors are measured against float64 and allowed in proportion to the production baseline's own.

An element's error is |found - expected| in units of eps(dtype) times the operator's error scale. Its own roundings are
one unit in the last place of the expected value, and `ACCUMULATOR_ROUNDINGS` of float32 at the error scale.

* The largest error may be its own roundings and `factor` times the baseline's largest. Where the baseline errs by no
  more than `ROUNDED_ONCE` of its own roundings, as one that accumulates in float32 does, the same holds in those units:
  where sums cancel, a small answer that was rounded once has a small error, whatever the scale.
* The mean error of a tensor, of each row and of each column may be half of `factor` times the baseline's such mean, and
  what one rounding costs on average: a quarter of a unit in the last place, and the more the fewer elements there are.
  One rounding looks alike everywhere, so means are sharp: a row with its neighbour's scale and weights of eight bits
  hide below the largest error, and not below these.
* NaN and infinities must stand exactly where the reference has them.

The accumulator's roundings keep a baseline that happens to sum in many blocks (MKL at 4 tokens) from convicting every
honest dot product that sums in fewer. They are far below what a lower precision costs: rounding the inputs to TF32 errs
by about 5000 / sqrt(K) such units in a sum of K products.

Shape suffixes: S sets, then the tensor's own dimensions; R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness import damage
from kernels.verdict import Mismatch

FACTOR = 4.0
ACCUMULATOR_ROUNDINGS = 4.0
"""In units of eps(float32) times scale. Dot products of 16 interleaved sums reach 1 in one element of ten thousand."""
ONE_ROUNDING = 0.5
"""In units in the last place, at most: nobody needs to do better, whatever luck the baseline had."""
ROUNDED_ONCE = 2.0
"""Above, the largest error in such units is that of the smallest answer, and says nothing about the next one."""
MEAN_SHARE = 0.5
"""Of the factor, for means: they vary less between honest kernels than the largest error does."""
MEAN_ROUNDING = 0.25
"""Of a unit in the last place: what rounding once costs on average ..."""
MEAN_SPREAD = 0.75
"""... and over the root of the elements in the mean, what chance adds to it: five standard deviations. For a single
element both make one unit.
"""
EXPONENT_BITS = 0x7FF << 52
"""Of a float64."""


@dataclass(frozen=True)
class ErrorFacts:
    """How far the production baseline is from float64, for one output: the yardstick of candidates."""

    largest: float
    """In units of eps times scale, over all elements of all samples."""
    mean: float
    """Likewise: the largest mean of any one sample."""
    line: float = 0.0
    """Likewise: the largest mean of any one row or column of a sample."""
    places: float = math.inf
    """The largest in units of the element's own roundings; infinite if nobody measured it."""
    sums: float = 0.0
    """What the order of long sums may add, in units of eps times scale; allowed as it is, without the factor."""

    def scaled(self, share: float) -> ErrorFacts:
        """A part of these errors."""
        return ErrorFacts(
            share * self.largest, share * self.mean, share * self.line, share * self.places, share * self.sums
        )


@dataclass(frozen=True)
class Expected:
    """What one output of S sets should be, in float64."""

    values: Tensor
    scale: Tensor
    dtype: torch.dtype
    """Of the candidate's output."""

    def dense(self) -> Expected:
        """The same, without gaps in memory."""
        return Expected(self.values.contiguous(), self.scale.contiguous(), self.dtype)


@dataclass(frozen=True)
class Deviation:
    """Errors of S sets, in units of eps times scale, and what rounding alone may add, likewise."""

    errors: Tensor
    last_places: Tensor
    """One unit in the last place of the expected value."""
    accumulator: float
    """A few roundings of a float32 accumulator."""

    @property
    def roundings(self) -> Tensor:
        """Both."""
        return self.last_places + self.accumulator


def deviate(found: Tensor, expected: Expected) -> Deviation:
    """Errors are infinite where NaN or infinities are misplaced, and 0 where they stand as they should."""
    info = torch.finfo(expected.dtype)
    unit = (expected.scale * info.eps).clamp_(min=info.tiny * info.eps)
    exact = found.to(torch.float64)
    errors = (exact - expected.values).abs_().div_(unit)
    accumulator = _accumulator(info)
    last_places = _last_place(expected.values, info).div_(unit)
    if not bool(torch.isfinite(errors).all()):
        agree = (exact == expected.values) | (torch.isnan(exact) & torch.isnan(expected.values))
        errors = torch.where(agree, 0.0, errors.nan_to_num(torch.inf, torch.inf))
        last_places = last_places.nan_to_num(0.0, 0.0)
    return Deviation(errors, last_places, accumulator)


class Rule(NamedTuple):
    """The rule as `rule` of `native/arena.c` has it: for whoever has many outputs to look at."""

    eps: float
    least: float
    """Of a unit, and of one in the last place."""
    roundings: float
    """Of an element, besides one unit in its last place."""
    largest: float
    """What an error may be besides its own roundings, in units; ..."""
    roundest: float
    """... and how many times those it may be; infinite where that does not count."""
    accumulator: float
    mean: float
    line: float
    """What the mean of a tensor, and of a row or column, may be besides its roundings."""
    mean_rounding: float = MEAN_ROUNDING
    mean_spread: float = MEAN_SPREAD

    @classmethod
    def of(cls, facts: ErrorFacts, dtype: torch.dtype, factor: float) -> Rule:
        info = torch.finfo(dtype)
        accumulator = _accumulator(info)
        rounded_once = facts.places <= ROUNDED_ONCE
        return cls(
            info.eps,
            info.tiny * info.eps,
            accumulator + facts.sums,
            factor * facts.largest,
            1 + factor * max(facts.places, ONE_ROUNDING) if rounded_once else math.inf,
            accumulator,
            _mean_base(facts, factor),
            _line_base(facts, factor),
        )


def measure(found: Tensor, expected: Expected) -> ErrorFacts:
    """The facts of a baseline's outputs, S sets at once."""
    deviation = deviate(found, expected)
    errors = deviation.errors
    lines = [float(_mean(errors, kept).max()) for kept in _lines(errors)]
    return ErrorFacts(
        largest=float(errors.max()),
        mean=float(_mean(errors, (0,)).max()),
        line=max(lines, default=0.0),
        places=float((errors / deviation.roundings).max()),
    )


def element_ratios(deviation: Deviation, facts: ErrorFacts, factor: float = FACTOR) -> Tensor:
    """Error over what is allowed, per element: above 1 is wrong. Infinite where NaN or infinity are misplaced."""
    return _over(deviation.errors, _element_allowance(deviation, facts, factor))


def _element_allowance(deviation: Deviation, facts: ErrorFacts, factor: float) -> Tensor:
    roundings = deviation.roundings + facts.sums
    allowed = roundings + factor * facts.largest
    if facts.places <= ROUNDED_ONCE:
        allowed = torch.minimum(allowed, roundings * (1 + factor * max(facts.places, ONE_ROUNDING)))
    return allowed


def mean_ratios(deviation: Deviation, facts: ErrorFacts, factor: float = FACTOR) -> Tensor:
    """Mean error over what is allowed, per set: above 1 the whole tensor is too inexact."""
    return _mean_ratios(deviation, (0,), _mean_base(facts, factor))


def _accumulator(info: torch.finfo) -> float:
    """What a float32 accumulator may add, in units of another dtype."""
    return ACCUMULATOR_ROUNDINGS * torch.finfo(torch.float32).eps / info.eps


def _mean_base(facts: ErrorFacts, factor: float) -> float:
    """What the mean of a tensor may be besides its roundings."""
    return MEAN_SHARE * factor * facts.mean + facts.sums


def line_ratios(deviation: Deviation, facts: ErrorFacts, factor: float = FACTOR) -> list[Tensor]:
    """Likewise for each row, and for each column: `[(S, R), (S, C)]`; nothing for tensors of one row or column only."""
    return [_mean_ratios(deviation, kept, _line_base(facts, factor)) for kept in _lines(deviation.errors)]


def _line_base(facts: ErrorFacts, factor: float) -> float:
    """What the mean of a row or column may be besides its roundings."""
    return MEAN_SHARE * factor * max(facts.line, facts.mean) + facts.sums


def compare(
    found: Tensor, expected: Expected, facts: ErrorFacts, *, workload: str, output: str, factor: float = FACTOR
) -> Mismatch | None:
    """None if all S sets are right, else where the worst of them differs."""
    deviation = deviate(found, expected)
    ratios = element_ratios(deviation, facts, factor)
    lines = line_ratios(deviation, facts, factor)
    worst_S = torch.stack(
        [ratios.flatten(1).amax(1), mean_ratios(deviation, facts, factor), *(line.amax(1) for line in lines)]
    ).amax(0)
    if not bool((worst_S > 1).any()):
        return None
    number = int(worst_S.argmax())
    return damage.describe(
        found[number],
        expected.values[number],
        ratios[number],
        damage.to_blame(ratios[number], [line[number] for line in lines]),
        workload=workload,
        output=output,
        call=number,
        error_ratio=float(worst_S[number]),
    )


def merge(facts: Sequence[ErrorFacts]) -> ErrorFacts:
    """The widest of several samples' facts."""
    return ErrorFacts(
        max(fact.largest for fact in facts),
        max(fact.mean for fact in facts),
        max(fact.line for fact in facts),
        max(fact.places for fact in facts),
        max(fact.sums for fact in facts),
    )


def _lines(tensor: Tensor) -> list[tuple[int, ...]]:
    """By which dimensions the S sets, seen as (S, R, C), fall into rows and into columns. A single row or column is the
    whole tensor, and single elements are lines of their own already.
    """
    columns = tensor.shape[-1]
    rows = tensor[0].numel() // columns
    return [(0, 1), (0, 2)] if rows > 1 and columns > 1 else []


def _mean(tensor: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Over all but the kept dimensions of (S, R, C)."""
    if kept == (0,):
        return tensor.flatten(1).mean(1)
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1]).mean(3 - sum(kept))


def _mean_ratios(deviation: Deviation, kept: tuple[int, ...], base: float) -> Tensor:
    return _over(_mean(deviation.errors, kept), _mean_allowance(deviation, kept, base))


def _mean_allowance(deviation: Deviation, kept: tuple[int, ...], base: float) -> Tensor:
    last_places = _mean(deviation.last_places, kept)
    rounding = MEAN_ROUNDING + MEAN_SPREAD / math.sqrt(deviation.last_places.numel() / last_places.numel())
    return last_places * rounding + (deviation.accumulator + base)


def _over(errors: Tensor, allowed: Tensor) -> Tensor:
    """Where nothing is allowed, nothing is wrong with being exact."""
    return (errors / allowed).nan_to_num_(0.0, torch.inf)


def _last_place(values: Tensor, info: torch.finfo) -> Tensor:
    """Distance to the next number of the output's dtype, in float64; the spacing of subnormal numbers at least."""
    powers = (values.contiguous().view(torch.int64) & EXPONENT_BITS).view(torch.float64)  # 2 ** floor(log2 |value|)
    return (powers * info.eps).clamp_(min=info.tiny * info.eps)
