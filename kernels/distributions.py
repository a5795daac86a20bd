"""Input distributions that the operators share: what activations look like in traffic, and what breaks kernels.

All values are drawn in float32 and rounded once to the operator's dtype, so that one seed gives the same picture in
every dtype. Rows whose answer is zero or constant never come alone: among several rows some have an answer that only
the operator gives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

OFFSET = 8.0
OFFSET_SPREAD = 2.0
SMALLEST_EXPONENT = -18.0
"""Rows of `small` go down to 1e-18: their squares are still normal float32 numbers."""
LARGEST_SMALL_EXPONENT = -3.0
"""... and up to 1e-3, whose square equals the usual epsilon of a norm."""
TAIL_CLIP = 1e3
OUTLIER = 30.0
HUGE = 1e16
"""Its square, summed over any row that a model has, is still a finite float32."""
DENORMAL = 1e-39
"""Normal values times this are denormal numbers of float32 and bfloat16."""
NONFINITE = (math.nan, math.inf, -math.inf)
LEAST_NORMAL = float(torch.finfo(torch.float32).tiny)
NEGLIGIBLE = LEAST_NORMAL / torch.finfo(torch.float32).eps
"""Where the error scale is this, one unit of float32 is `LEAST_NORMAL`: a kernel may take denormal numbers for zero, as
-ffast-math and most devices do.
"""


def normal(generator: Generator, *shape: int) -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=generator)


def offset(generator: Generator, *shape: int) -> Tensor:
    """Values around a mean four times their spread: what a kernel that subtracts or drops the mean gets wrong."""
    return normal(generator, *shape) * OFFSET_SPREAD + OFFSET


def small(generator: Generator, *shape: int) -> Tensor:
    """Normal values, each row (all but the last dimension) scaled by its own power between 1e-18 and 1e-3."""
    exponents = torch.rand((*shape[:-1], 1), generator=generator)
    exponents = exponents * (LARGEST_SMALL_EXPONENT - SMALLEST_EXPONENT) + SMALLEST_EXPONENT
    return normal(generator, *shape) * torch.pow(10.0, exponents)


def wide(generator: Generator, *shape: int) -> Tensor:
    """Heavy tails (Student t with two degrees of freedom), and an outlier at the end of every row.

    Activations of language models have such outlier channels. At the end it also shows a kernel that drops the tail
    of a sum.
    """
    uniform = torch.rand(shape, generator=generator)
    values = (normal(generator, *shape) / (uniform + 1e-6).sqrt()).clamp(-TAIL_CLIP, TAIL_CLIP)
    signs = torch.randint(0, 2, (*shape[:-1],), generator=generator) * 2 - 1
    values[..., -1] = OUTLIER * signs * (1 + torch.rand((*shape[:-1],), generator=generator))
    return values


def extreme(generator: Generator, *shape: int) -> Tensor:
    """Normal values, the rows in turn as they are, huge, denormal and zero; chance decides which comes first."""
    scales = torch.tensor((1.0, HUGE, DENORMAL, 0.0))
    return normal(generator, *shape) * scales[_kinds(generator, len(scales), *shape[:-1])][..., None]


def nonfinite(generator: Generator, *shape: int, values: tuple[float, ...] = NONFINITE) -> Tensor:
    """Normal values, with the given ones at one random place each of a row, the rows in turn; every so often a row has
    none. No row's answer may depend on another's.
    """
    special = torch.tensor((0.0, *values))
    kinds = _kinds(generator, len(special), *shape[:-1])[..., None]
    places = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
    hit = (torch.arange(shape[-1]) == places) & (kinds > 0)
    return torch.where(hit, special[kinds], normal(generator, *shape))


def _kinds(generator: Generator, count: int, *shape: int) -> Tensor:
    """Numbers below `count` in turn, from a random one on."""
    first = torch.randint(0, count, (1,), generator=generator)
    return ((torch.arange(math.prod(shape)) + first) % count).reshape(shape)


ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "traffic": normal,
    "large_offset": offset,
    "small": small,
    "wide": wide,
    "extreme": extreme,
    "nonfinite": nonfinite,
}
"""Distribution of an activation by regime name."""
NORMALISED: Mapping[str, Callable[..., Tensor]] = {
    **ACTIVATIONS,
    "nonfinite": functools.partial(nonfinite, values=(math.nan,)),
}
"""Likewise, of rows that are divided by their own size: infinity over infinity is nobody's answer, so NaN only."""


def norm_weight(generator: Generator, hidden: int) -> Tensor:
    """Weights of a trained norm: around one, with spread, never zero."""
    return (1 + 0.25 * normal(generator, hidden)).clamp(min=0.1)


def rounded(dtype: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the operator's dtype."""
    return tuple(tensor.to(TORCH_DTYPES[dtype]) for tensor in tensors)


def positive(scale: Tensor) -> Tensor:
    """An error scale, `NEGLIGIBLE` at least. Where the answer is zero, only zero and denormal numbers are close."""
    return scale.clamp(min=NEGLIGIBLE)
