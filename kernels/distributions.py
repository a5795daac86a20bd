"""Input distributions that the operators share: what activations look like in traffic, and what breaks kernels.

All values are drawn in float32 and rounded once to the operator's dtype, so that one seed gives the same picture in
every dtype. No distribution holds values whose answer would be constant, zero or equal to an input: a check on it
must be able to fail.
"""

from __future__ import annotations

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


ACTIVATIONS = {"traffic": normal, "large_offset": offset, "small": small, "wide": wide}
"""Distribution of an activation by regime name."""


def norm_weight(generator: Generator, hidden: int) -> Tensor:
    """Weights of a trained norm: around one, with spread, never zero."""
    return (1 + 0.25 * normal(generator, hidden)).clamp(min=0.1)


def rounded(dtype: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the operator's dtype."""
    return tuple(tensor.to(TORCH_DTYPES[dtype]) for tensor in tensors)


def positive(scale: Tensor) -> Tensor:
    """An error scale that is nowhere zero: where the answer is exactly zero, only zero is close."""
    return scale.clamp(min=torch.finfo(torch.float32).tiny)
