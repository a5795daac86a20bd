"""What operators without a definition compute, as far as it takes to recognise them in a recording.

These are not definitions: nothing is judged by them. A draft of a definition is made from the recording itself.

Shape suffixes: T tokens, H hidden, I intermediate, N query heads, M key heads, D head dimension, E half a head, F twice
the intermediate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels import catalogue
from kernels.models import vocabulary

Function = Callable[..., tuple[Tensor, ...]]
CLAMP = 7.0
STEEPNESS = 1.702


@dataclass(frozen=True)
class Formula:
    """An operator that can be recognised by what it computes."""

    name: str
    inputs: tuple[tuple[str, ...], ...]
    """Axis names of each input; scalars come after."""
    outputs: tuple[tuple[str, ...], ...]
    compute: Function
    scalars: int = 0
    numbers: str = "real"
    """`complex` if one of the inputs is."""


def _gemma_rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    hidden_TH = x_TH.float()
    hidden_TH = hidden_TH * torch.rsqrt(hidden_TH.pow(2).mean(-1, keepdim=True) + eps)
    return ((hidden_TH * (1 + weight_H.float())).to(x_TH.dtype),)


def _fused_add_gemma_rms_norm(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
    sum_TH = x_TH + residual_TH
    return *_gemma_rms_norm(sum_TH, weight_H, eps), sum_TH


def _gelu_tanh_and_mul(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
    return (functional.gelu(gate_TI, approximate="tanh") * up_TI,)


def _packed(compute: Function) -> Function:
    """With gate and up one after the other in one tensor."""
    return lambda gate_up_TF: compute(*gate_up_TF.chunk(2, -1))


def _clamped_swiglu(gate_up_TF: Tensor) -> tuple[Tensor, ...]:
    gate_TI, up_TI = gate_up_TF[:, ::2].clamp(max=CLAMP), gate_up_TF[:, 1::2].clamp(-CLAMP, CLAMP)
    return ((up_TI + 1) * gate_TI * torch.sigmoid(gate_TI * STEEPNESS),)


def _half_rotary(q_TND: Tensor, k_TMD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, ...]:
    cos_T1E, sin_T1E = cos_TE[:, None], sin_TE[:, None]

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos_T1E - second * sin_T1E, second * cos_T1E + first * sin_T1E), -1)

    return rotated(q_TND), rotated(k_TMD)


def _interleaved_rotary(q_TND: Tensor, k_TD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, ...]:
    """DeepSeek-V3's: neighbours are turned, and come out apart. There is one key head."""

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1)

    return rotated(q_TND, cos_TE[:, None], sin_TE[:, None]), rotated(k_TD, cos_TE, sin_TE)


def _complex_rotary(q_TND: Tensor, k_TD: Tensor, turn_TE: Tensor) -> tuple[Tensor, ...]:
    """DeepSeek-V2's: neighbours are a complex number."""

    def rotated(x: Tensor, turn: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)

    return rotated(q_TND, turn_TE[:, None]), rotated(k_TD, turn_TE)


def _scale(x_TH: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    return (x_TH * factor,)


def _softcap(x_TC: Tensor, limit: float) -> tuple[Tensor, ...]:
    return (torch.tanh(x_TC / limit) * limit,)


def _sigmoid_gated_add(x_TH: Tensor, residual_TH: Tensor, gate_T: Tensor) -> tuple[Tensor, ...]:
    return (residual_TH + torch.sigmoid(gate_T)[:, None] * x_TH,)


def _defined(name: str) -> Formula:
    definition = catalogue.operator(name)
    return Formula(
        name,
        tuple(spec.dims for spec in definition.inputs),
        tuple(spec.dims for spec in definition.outputs),
        definition.baselines["eager"],
        len(definition.scalars),
    )


def formulas() -> tuple[Formula, ...]:
    """Definitions first."""
    th, ti, rotated = vocabulary.TH, vocabulary.TI, ("tokens", "query_heads", "head_dim")
    keys, one_key = ("tokens", "key_heads", "head_dim"), ("tokens", "head_dim")
    half = ("tokens", "half")
    return (
        *(_defined(name) for name in vocabulary.DEFINED if name != "skinny_linear"),
        Formula("gemma_rms_norm", (th, ("hidden",)), (th,), _gemma_rms_norm, 1),
        Formula("fused_add_gemma_rms_norm", (th, th, ("hidden",)), (th, th), _fused_add_gemma_rms_norm, 1),
        Formula("gelu_tanh_and_mul", (ti, ti), (ti,), _gelu_tanh_and_mul),
        Formula(
            "silu_and_mul", (("tokens", "both"),), (ti,), _packed(catalogue.operator("silu_and_mul").baselines["eager"])
        ),
        Formula("gelu_tanh_and_mul", (("tokens", "both"),), (ti,), _packed(_gelu_tanh_and_mul)),
        Formula("clamped_swiglu", (("tokens", "both"),), (ti,), _clamped_swiglu),
        Formula("half_rotary_embedding", (rotated, keys, half, half), (rotated, keys), _half_rotary),
        Formula(
            "interleaved_rotary_embedding",
            (rotated, one_key, half, half),
            (rotated, one_key),
            _interleaved_rotary,
        ),
        Formula(
            "interleaved_rotary_embedding",
            (rotated, one_key, half),
            (rotated, one_key),
            _complex_rotary,
            numbers="complex",
        ),
        Formula("scale", (th, ()), (th,), _scale),
        Formula("sigmoid_gated_add", (th, th, ("tokens",)), (th,), _sigmoid_gated_add),
        Formula("softcap", (vocabulary.TC,), (vocabulary.TC,), _softcap, 1),
    )
