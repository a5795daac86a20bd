"""Rotary position embedding of queries and keys, with the two halves of a head as the rotated pair.

`out = x * cos + rotate_half(x) * sin`, where `rotate_half(x) = (-x2, x1)` for `x = (x1, x2)`. Cosine and sine span
the whole head, as transformers makes them; their two halves need not be equal. Shape suffixes: T tokens, N query
heads, M key heads, D head dimension (even).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from kernels import distributions
from kernels.definition import Cost, Definition, TensorSpec

ROPE_THETA = 10_000.0
LAST_POSITION = 8192


def rotate_half(x: Tensor) -> Tensor:
    """`(-x2, x1)` along the last dimension."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def reference(q_TND: Tensor, k_TMD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> tuple[Tensor, ...]:
    half = cos_TD.shape[-1] // 2
    cos_T1D, sin_T1D = cos_TD[:, None], sin_TD[:, None]
    rotated_q_TND = torch.cat((-q_TND[..., half:], q_TND[..., :half]), dim=-1)
    rotated_k_TMD = torch.cat((-k_TMD[..., half:], k_TMD[..., :half]), dim=-1)
    return q_TND * cos_T1D + rotated_q_TND * sin_T1D, k_TMD * cos_T1D + rotated_k_TMD * sin_T1D


def eager(q_TND: Tensor, k_TMD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> tuple[Tensor, ...]:
    """As transformers' apply_rotary_pos_emb: products and sum each rounded to the dtype."""
    cos_T1D, sin_T1D = cos_TD.unsqueeze(1), sin_TD.unsqueeze(1)
    q_out_TND = (q_TND * cos_T1D) + (rotate_half(q_TND) * sin_T1D)
    k_out_TMD = (k_TMD * cos_T1D) + (rotate_half(k_TMD) * sin_T1D)
    return q_out_TND, k_out_TMD


def error_scale(q_TND: Tensor, k_TMD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> tuple[Tensor, ...]:
    """`|x| |cos| + |rotate_half(x)| |sin|`: the two products may cancel."""
    cos_T1D, sin_T1D = cos_TD.abs().unsqueeze(1), sin_TD.abs().unsqueeze(1)
    q_scale_TND = q_TND.abs() * cos_T1D + rotate_half(q_TND).abs() * sin_T1D
    k_scale_TMD = k_TMD.abs() * cos_T1D + rotate_half(k_TMD).abs() * sin_T1D
    return distributions.positive(q_scale_TND), distributions.positive(k_scale_TMD)


def sensitivity(
    position: int, off: Tensor, q_TND: Tensor, k_TMD: Tensor, cos_TD: Tensor, sin_TD: Tensor
) -> tuple[Tensor, ...]:
    tensors = [torch.zeros_like(q_TND), torch.zeros_like(k_TMD), cos_TD.abs(), sin_TD.abs()]
    if position > 1:
        tensors = [q_TND.abs(), k_TMD.abs(), torch.zeros_like(cos_TD), torch.zeros_like(sin_TD)]
    tensors[position] = off
    q_TND, k_TMD, cos_T1D, sin_T1D = tensors[0], tensors[1], tensors[2][:, None], tensors[3][:, None]
    q_off_TND = q_TND * cos_T1D + rotate_half(q_TND).abs() * sin_T1D
    return q_off_TND, k_TMD * cos_T1D + rotate_half(k_TMD).abs() * sin_T1D


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    """`wide` draws cosine and sine freely, so that no kernel passes which reads half of them."""
    tokens, head_dim = axes["tokens"], axes["head_dim"]
    draw = distributions.ACTIVATIONS[regime]
    q_TND = draw(generator, tokens, axes["query_heads"], head_dim)
    k_TMD = draw(generator, tokens, axes["key_heads"], head_dim)
    cos_TD, sin_TD = _tables(generator, tokens, head_dim)
    if regime == "wide":
        cos_TD, sin_TD = (torch.rand((tokens, head_dim), generator=generator) * 2 - 1 for _ in range(2))
    return distributions.rounded(dtype, q_TND, k_TMD, cos_TD, sin_TD)


def _tables(generator: Generator, tokens: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of random positions; position 0, where nothing is rotated, is left out."""
    positions_T = torch.randint(1, LAST_POSITION, (tokens,), generator=generator).to(torch.float32)
    frequencies = 1.0 / ROPE_THETA ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = positions_T[:, None] * frequencies
    angles_TD = torch.cat((angles, angles), dim=-1)
    return angles_TD.cos(), angles_TD.sin()


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """Two products and a sum per element; queries, keys and the two tables in, queries and keys out."""
    rows = axes["tokens"] * (axes["query_heads"] + axes["key_heads"])
    elements = rows * axes["head_dim"]
    tables = 2 * axes["tokens"] * axes["head_dim"]
    return Cost(flops=3 * elements, bytes_read=(elements + tables) * item_bytes, bytes_written=elements * item_bytes)


def _axes(tokens: int, query_heads: int, key_heads: int, head_dim: int) -> dict[str, int]:
    return {"tokens": tokens, "query_heads": query_heads, "key_heads": key_heads, "head_dim": head_dim}


DEFINITION = Definition(
    name="rotary_embedding",
    summary="Rotary position embedding of queries and keys, half-split, cosine and sine of full width",
    axes={
        "tokens": "rows, one per token of the step",
        "query_heads": "attention heads of the query",
        "key_heads": "attention heads of the key",
        "head_dim": "width of one head; even",
    },
    inputs=(
        TensorSpec("q_TND", ("tokens", "query_heads", "head_dim")),
        TensorSpec("k_TMD", ("tokens", "key_heads", "head_dim")),
        TensorSpec("cos_TD", ("tokens", "head_dim")),
        TensorSpec("sin_TD", ("tokens", "head_dim")),
    ),
    outputs=(
        TensorSpec("q_out_TND", ("tokens", "query_heads", "head_dim")),
        TensorSpec("k_out_TMD", ("tokens", "key_heads", "head_dim")),
    ),
    scalars=(),
    row_axis="tokens",
    constant_axes=("query_heads", "key_heads", "head_dim"),
    reference=reference,
    baselines={"eager": eager},
    error_scale=error_scale,
    sensitivity=sensitivity,
    make_inputs=make_inputs,
    regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    fed_regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    cost=cost,
    edge_axes=(
        _axes(1, 1, 1, 2),
        _axes(3, 6, 3, 6),
        _axes(1, 5, 1, 34),
        _axes(2, 7, 3, 66),
        _axes(17, 4, 2, 64),
        _axes(4, 3, 2, 62),
        _axes(7, 5, 3, 126),
        _axes(5, 6, 2, 130),
    ),
    axis_steps={"head_dim": 2},
)
