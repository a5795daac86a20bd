"""Root mean square norm: `out = x / sqrt(mean(x^2) + eps) * weight` over the last dimension.

Shape suffixes: T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor
from torch.nn import functional

from kernels import distributions
from kernels.definition import Cost, Definition, Role, ScalarSpec, TensorSpec


def reference(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    mean_square_T1 = (x_TH * x_TH).mean(-1, keepdim=True)
    return (x_TH / torch.sqrt(mean_square_T1 + eps) * weight_H,)


def eager(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    """As transformers' LlamaRMSNorm: the norm in float32, rounded, then times the weight."""
    hidden_TH = x_TH.to(torch.float32)
    variance_T1 = hidden_TH.pow(2).mean(-1, keepdim=True)
    hidden_TH = hidden_TH * torch.rsqrt(variance_T1 + eps)
    return (weight_H * hidden_TH.to(x_TH.dtype),)


def single_call(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    return (functional.rms_norm(x_TH, (x_TH.shape[-1],), weight_H, eps),)


def error_scale(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    """The answer itself: squares do not cancel. An input may be off by what is negligible."""
    mean_square_T1 = (x_TH * x_TH).mean(-1, keepdim=True)
    return ((x_TH.abs() + distributions.NEGLIGIBLE) / torch.sqrt(mean_square_T1 + eps) * weight_H.abs(),)


def sensitivity(position: int, off_TH: Tensor, x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Through the element itself, and through the size of its row."""
    size_T1 = torch.sqrt((x_TH * x_TH).mean(-1, keepdim=True) + eps)
    row_T1 = (x_TH.abs() * off_TH).mean(-1, keepdim=True) / size_T1**2
    return ((off_TH + x_TH.abs() * row_T1) / size_T1 * weight_H.abs(),)


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    x_TH = distributions.NORMALISED[regime](generator, axes["tokens"], axes["hidden"])
    return distributions.rounded(dtype, x_TH, distributions.norm_weight(generator, axes["hidden"]))


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """Square, add, two products per element; each element once in and once out."""
    tokens, hidden = axes["tokens"], axes["hidden"]
    return Cost(
        flops=4 * tokens * hidden,
        bytes_read=(tokens + 1) * hidden * item_bytes,
        bytes_written=tokens * hidden * item_bytes,
    )


DEFINITION = Definition(
    name="rms_norm",
    summary="Root mean square norm over the last dimension, scaled by a weight",
    axes={"tokens": "rows that are normalised, one per token of the step", "hidden": "width of the residual stream"},
    inputs=(
        TensorSpec("x_TH", ("tokens", "hidden")),
        TensorSpec("weight_H", ("hidden",), Role.WEIGHT),
    ),
    outputs=(TensorSpec("out_TH", ("tokens", "hidden")),),
    scalars=(ScalarSpec("eps", 1e-6, other=0.1),),
    row_axis="tokens",
    constant_axes=("hidden",),
    reference=reference,
    baselines={"eager": eager, "torch": single_call},
    error_scale=error_scale,
    sensitivity=sensitivity,
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
