"""The gated activation of a Llama feed-forward block: `out = silu(gate) * up`, element by element.

Shape suffixes: T tokens, I intermediate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Generator, Tensor
from torch.nn import functional

from kernels import distributions
from kernels.definition import Cost, Definition, TensorSpec

GATE_FLOOR = -30.0
"""Below, silu in float32 loses all its digits (exp overflows at 88), and then every answer would be as good as the
engine's.
"""
SATURATED = 1e4
"""Gates of this size are far beyond where exp overflows: silu is the gate itself, or zero."""

REACH = 2.0**-5
"""How far a few roundings of bfloat16 reach, in units of what they scale with."""


def reference(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
    return (gate_TI * torch.sigmoid(gate_TI) * up_TI,)


def eager(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
    """As transformers' LlamaMLP: `act_fn(gate) * up`, the activation rounded to the dtype in between."""
    return (functional.silu(gate_TI) * up_TI,)


def error_scale(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
    """The answer times the condition number of silu, `|g silu'(g) / silu(g)| <= 1 + |g| sigmoid(-g)`. Inputs and the
    sigmoid may be off by what is negligible.
    """
    conditioned_TI = reference(gate_TI, up_TI)[0].abs() * (1 + gate_TI.abs() * torch.sigmoid(-gate_TI))
    return (conditioned_TI + distributions.NEGLIGIBLE * (1 + gate_TI.abs()) * (1 + up_TI.abs()),)


def sensitivity(position: int, off_TI: Tensor, gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
    """By the steepest slope of silu among the gates that a few roundings of the coarsest dtype can reach: a gate that
    is the small difference of large terms may be anywhere near. `|silu'(g)| <= sigmoid(g) (1 + |g| sigmoid(-g))`,
    which grows with g below 0, and is below 1.1 above.
    """
    if position == 1:
        return ((gate_TI * torch.sigmoid(gate_TI)).abs() * off_TI,)
    steepest_TI = gate_TI + REACH * off_TI
    slope_TI = torch.sigmoid(steepest_TI) * (1 + steepest_TI.abs() * torch.sigmoid(-steepest_TI))
    return (torch.where(steepest_TI < 0, slope_TI, 1.1) * up_TI.abs() * off_TI,)


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    """`extreme` gates are saturated every other time. A gate of minus infinity has no answer and never occurs."""
    shape = (axes["tokens"], axes["intermediate"])
    draw = distributions.ACTIVATIONS[regime]
    up_TI = (distributions.normal if regime == "small" else draw)(generator, *shape)
    if regime == "nonfinite":
        gate_TI = draw(generator, *shape, values=(math.nan, math.inf))
    elif regime == "extreme":
        saturated_TI = SATURATED * distributions.normal(generator, *shape)
        gate_TI = torch.where(torch.rand(shape, generator=generator) < 0.5, saturated_TI, draw(generator, *shape))
    else:
        gate_TI = draw(generator, *shape).clamp(min=GATE_FLOOR)
    return distributions.rounded(dtype, gate_TI, up_TI)


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """Exponential (counted as one), addition, division, product per element; two tensors in, one out."""
    elements = axes["tokens"] * axes["intermediate"]
    return Cost(flops=4 * elements, bytes_read=2 * elements * item_bytes, bytes_written=elements * item_bytes)


DEFINITION = Definition(
    name="silu_and_mul",
    summary="Gated activation: silu of one tensor times the other",
    axes={"tokens": "rows, one per token of the step", "intermediate": "width of the feed-forward block"},
    inputs=(TensorSpec("gate_TI", ("tokens", "intermediate")), TensorSpec("up_TI", ("tokens", "intermediate"))),
    outputs=(TensorSpec("out_TI", ("tokens", "intermediate")),),
    scalars=(),
    row_axis="tokens",
    constant_axes=("intermediate",),
    reference=reference,
    baselines={"eager": eager},
    error_scale=error_scale,
    sensitivity=sensitivity,
    elementwise=True,
    make_inputs=make_inputs,
    regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    fed_regimes=("traffic", "large_offset", "small", "wide", "extreme"),
    cost=cost,
    edge_axes=(
        {"tokens": 1, "intermediate": 1},
        {"tokens": 3, "intermediate": 7},
        {"tokens": 1, "intermediate": 17},
        {"tokens": 2, "intermediate": 33},
        {"tokens": 17, "intermediate": 64},
        {"tokens": 4, "intermediate": 63},
        {"tokens": 7, "intermediate": 127},
        {"tokens": 5, "intermediate": 257},
    ),
)
