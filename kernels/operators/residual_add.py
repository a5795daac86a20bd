"""Residual addition: `residual_out = residual + x`. No engine calls it by itself; fused operators are made of it.

Shape suffixes: T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Generator, Tensor

from kernels import distributions
from kernels.definition import Cost, Definition, TensorSpec


def reference(x_TH: Tensor, residual_TH: Tensor) -> tuple[Tensor, ...]:
    return (residual_TH + x_TH,)


def eager(x_TH: Tensor, residual_TH: Tensor) -> tuple[Tensor, ...]:
    """As a transformers' Llama layer: the sum rounded to the dtype."""
    return (residual_TH + x_TH,)


def error_scale(x_TH: Tensor, residual_TH: Tensor) -> tuple[Tensor, ...]:
    """The answer itself: one addition of exact inputs is rounded relative to its result. It may be off by what is
    negligible.
    """
    return ((residual_TH + x_TH).abs() + distributions.NEGLIGIBLE,)


def sensitivity(position: int, off_TH: Tensor, x_TH: Tensor, residual_TH: Tensor) -> tuple[Tensor, ...]:
    return (off_TH,)


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    """NaN, but no infinities: what follows an addition is a norm."""
    shape = (axes["tokens"], axes["hidden"])
    draw = distributions.NORMALISED[regime]
    return distributions.rounded(dtype, draw(generator, *shape), draw(generator, *shape))


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """One addition per element; two tensors in, one out."""
    elements = axes["tokens"] * axes["hidden"]
    return Cost(flops=elements, bytes_read=2 * elements * item_bytes, bytes_written=elements * item_bytes)


DEFINITION = Definition(
    name="residual_add",
    summary="Residual addition",
    axes={"tokens": "rows, one per token of the step", "hidden": "width of the residual stream"},
    inputs=(TensorSpec("x_TH", ("tokens", "hidden")), TensorSpec("residual_TH", ("tokens", "hidden"))),
    outputs=(TensorSpec("residual_out_TH", ("tokens", "hidden")),),
    scalars=(),
    row_axis="tokens",
    constant_axes=("hidden",),
    reference=reference,
    baselines={"eager": eager},
    error_scale=error_scale,
    sensitivity=sensitivity,
    elementwise=True,
    make_inputs=make_inputs,
    regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    fed_regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    cost=cost,
    edge_axes=(
        {"tokens": 1, "hidden": 1},
        {"tokens": 3, "hidden": 7},
        {"tokens": 1, "hidden": 17},
        {"tokens": 2, "hidden": 33},
        {"tokens": 17, "hidden": 64},
        {"tokens": 4, "hidden": 63},
        {"tokens": 7, "hidden": 127},
        {"tokens": 5, "hidden": 257},
    ),
)
