"""Residual addition and the norm that follows it: `residual_out = residual + x`, `out = rms_norm(residual_out)`.

Both outputs are fresh: the inputs stay as they were. Shape suffixes: T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor
from torch.nn import functional

from kernels import distributions
from kernels.definition import Cost, Definition, Role, ScalarSpec, TensorSpec
from kernels.operators import rms_norm


def reference(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    sum_TH = residual_TH + x_TH
    mean_square_T1 = (sum_TH * sum_TH).mean(-1, keepdim=True)
    return sum_TH / torch.sqrt(mean_square_T1 + eps) * weight_H, sum_TH


def eager(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    """As a transformers' Llama layer: the sum rounded to the dtype, then LlamaRMSNorm of it."""
    residual_out_TH = residual_TH + x_TH
    hidden_TH = residual_out_TH.to(torch.float32)
    variance_T1 = hidden_TH.pow(2).mean(-1, keepdim=True)
    hidden_TH = hidden_TH * torch.rsqrt(variance_T1 + eps)
    return weight_H * hidden_TH.to(x_TH.dtype), residual_out_TH


def library_norm(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    """The addition, then the library's single call for the norm."""
    residual_out_TH = residual_TH + x_TH
    return functional.rms_norm(residual_out_TH, (x_TH.shape[-1],), weight_H, eps), residual_out_TH


def error_scale(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    """The answers themselves: one addition of exact inputs is rounded relative to its result, and squares do not
    cancel. The sum may be off by what is negligible.
    """
    sum_TH = residual_TH + x_TH
    scale_TH = sum_TH.abs() + distributions.NEGLIGIBLE
    mean_square_T1 = (sum_TH * sum_TH).mean(-1, keepdim=True)
    return scale_TH / torch.sqrt(mean_square_T1 + eps) * weight_H.abs(), scale_TH


def sensitivity(
    position: int, off_TH: Tensor, x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float
) -> tuple[Tensor, ...]:
    """As the norm's, through the sum."""
    return *rms_norm.sensitivity(0, off_TH, residual_TH + x_TH, weight_H, eps), off_TH


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    shape = (axes["tokens"], axes["hidden"])
    draw = distributions.NORMALISED[regime]
    x_TH, residual_TH = draw(generator, *shape), draw(generator, *shape)
    return distributions.rounded(dtype, x_TH, residual_TH, distributions.norm_weight(generator, axes["hidden"]))


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """The norm's four operations and one addition per element; two tensors in, two out."""
    tokens, hidden = axes["tokens"], axes["hidden"]
    return Cost(
        flops=5 * tokens * hidden,
        bytes_read=(2 * tokens + 1) * hidden * item_bytes,
        bytes_written=2 * tokens * hidden * item_bytes,
    )


DEFINITION = Definition(
    name="fused_add_rms_norm",
    summary="Residual addition followed by a root mean square norm; returns the norm and the sum",
    axes={"tokens": "rows that are normalised, one per token of the step", "hidden": "width of the residual stream"},
    inputs=(
        TensorSpec("x_TH", ("tokens", "hidden")),
        TensorSpec("residual_TH", ("tokens", "hidden")),
        TensorSpec("weight_H", ("hidden",), Role.WEIGHT),
    ),
    outputs=(TensorSpec("out_TH", ("tokens", "hidden")), TensorSpec("residual_out_TH", ("tokens", "hidden"))),
    scalars=(ScalarSpec("eps", 1e-6, other=0.1),),
    row_axis="tokens",
    constant_axes=("hidden",),
    reference=reference,
    baselines={"eager": eager, "torch": library_norm},
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
