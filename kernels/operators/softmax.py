"""Softmax over the columns of each row, with rows as attention scores make them: masked columns hold minus infinity.

A row of nothing but minus infinity has no answer and never occurs here; neither does plus infinity. NaN makes its row
NaN. Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor
from torch.nn import functional

from kernels import distributions
from kernels.definition import Cost, Definition, TensorSpec

SCORE_LIMIT = 35.0
"""Scores within +-35 keep every unmasked answer above 1e-35: a normal float32 number, whose relative error means
something.
"""
OVERFLOW_OFFSET = 128.0
"""Beyond the logarithm of float32's largest number: exp without the maximum subtracted overflows."""


def reference(x_RC: Tensor) -> tuple[Tensor, ...]:
    exponential_RC = torch.exp(x_RC - x_RC.max(-1, keepdim=True).values)
    return (exponential_RC / exponential_RC.sum(-1, keepdim=True),)


def eager(x_RC: Tensor) -> tuple[Tensor, ...]:
    """As transformers' eager attention: in float32, rounded at the end."""
    return (functional.softmax(x_RC, dim=-1, dtype=torch.float32).to(x_RC.dtype),)


def single_call(x_RC: Tensor) -> tuple[Tensor, ...]:
    return (functional.softmax(x_RC, dim=-1),)


def error_scale(x_RC: Tensor) -> tuple[Tensor, ...]:
    """`p (3 + |x - max|)`: exponential, sum and quotient are rounded, and rounding the argument of exp by one part in
    2^24 moves the answer by `|x - max|` such parts. What the order of the sum adds, the judge measures.
    """
    distance_RC = (x_RC - x_RC.max(-1, keepdim=True).values).abs()
    scale_RC = reference(x_RC)[0] * (3 + distance_RC)
    return (distributions.positive(torch.where(torch.isinf(x_RC), 0.0, scale_RC)),)


def sensitivity(position: int, off_RC: Tensor, x_RC: Tensor) -> tuple[Tensor, ...]:
    """Through the score itself, and through the sum of its row."""
    (out_RC,) = reference(x_RC)
    return (out_RC * (off_RC + (out_RC * off_RC).sum(-1, keepdim=True)),)


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    rows, columns = axes["rows"], axes["columns"]
    if regime == "large_offset":
        x_RC = OVERFLOW_OFFSET + 8 * distributions.normal(generator, rows, columns).clamp(-4, 4)
    elif regime == "ties":
        x_RC = torch.randint(-2, 3, (rows, columns), generator=generator).to(torch.float32)
    elif regime == "wide":
        x_RC = distributions.wide(generator, rows, columns).clamp(-SCORE_LIMIT, SCORE_LIMIT)
    elif regime == "extreme":
        x_RC = distributions.extreme(generator, rows, columns)
    elif regime == "nonfinite":
        x_RC = _masked(generator, 2 * distributions.NORMALISED[regime](generator, rows, columns))
    else:
        x_RC = 2 * distributions.normal(generator, rows, columns)
    return distributions.rounded(dtype, x_RC)


def _masked(generator: Generator, x_RC: Tensor) -> Tensor:
    """Minus infinity on about half of the columns; one random column per row stays, so that every row has an answer."""
    mask_RC = torch.rand(x_RC.shape, generator=generator) < 0.5
    kept_R1 = torch.randint(0, x_RC.shape[1], (x_RC.shape[0], 1), generator=generator)
    return x_RC.masked_fill(mask_RC.scatter(1, kept_R1, False) & ~x_RC.isnan(), float("-inf"))


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """Maximum, difference, exponential (counted as one), sum and product per element; once in, once out."""
    elements = axes["rows"] * axes["columns"]
    return Cost(flops=5 * elements, bytes_read=elements * item_bytes, bytes_written=elements * item_bytes)


DEFINITION = Definition(
    name="softmax",
    summary="Softmax over the columns of each row; columns may be masked with minus infinity",
    axes={"rows": "independent distributions", "columns": "entries of one distribution"},
    inputs=(TensorSpec("x_RC", ("rows", "columns")),),
    outputs=(TensorSpec("out_RC", ("rows", "columns")),),
    scalars=(),
    row_axis="rows",
    constant_axes=("columns",),
    reference=reference,
    baselines={"eager": eager, "torch": single_call},
    error_scale=error_scale,
    sensitivity=sensitivity,
    make_inputs=make_inputs,
    regimes=("traffic", "large_offset", "ties", "wide", "extreme", "nonfinite"),
    fed_regimes=("traffic", "large_offset"),
    cost=cost,
    edge_axes=(
        {"rows": 1, "columns": 1},
        {"rows": 3, "columns": 7},
        {"rows": 1, "columns": 17},
        {"rows": 2, "columns": 33},
        {"rows": 17, "columns": 64},
        {"rows": 4, "columns": 63},
        {"rows": 7, "columns": 127},
        {"rows": 5, "columns": 257},
    ),
)
