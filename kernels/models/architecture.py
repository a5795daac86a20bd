"""What a decoder-only language model is made of, whatever its family calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Norm(StrEnum):
    """The operator that normalises; with the residual addition before it, its fused form."""

    RMS = "rms_norm"
    GEMMA = "gemma_rms_norm"
    """The weight is stored as its distance from one."""


class Gate(StrEnum):
    """The gated activation between the two projections of a feed-forward block."""

    SILU = "silu_and_mul"
    GELU_TANH = "gelu_tanh_and_mul"
    CLAMPED = "clamped_swiglu"
    """gpt-oss: both sides clamped, the gate steeper, one added to the other."""


@dataclass(frozen=True)
class Attention:
    """Attention with as many query heads as there are, in groups that share a key head."""

    query_heads: int
    key_heads: int
    head_dim: int
    input_bias: bool = False
    """Of the projections to queries, keys and values."""
    output_bias: bool = False
    head_norm: bool = False
    """Queries and keys are normalised head by head."""
    window: int | None = None
    """Positions that a token attends to at most, itself among them."""
    kind: str = "attention"
    """`sink_attention` has a learned logit per head, `softcap_attention` squashes its scores."""
    rotary: str = "rotary_embedding"


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent vector per token."""

    query_heads: int
    query_rank: int | None
    """Width of the compressed query; None: queries are projected in one step."""
    latent_dim: int
    plain_dim: int
    """Of a head, without position."""
    rotary_dim: int
    value_dim: int
    bias: bool = False
    """Of the compressing projections and the output's."""

    @property
    def key_dim(self) -> int:
        return self.plain_dim + self.rotary_dim


@dataclass(frozen=True)
class Dense:
    """A feed-forward block with a gated activation."""

    intermediate: int
    gate: Gate = Gate.SILU
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of experts, of which each token visits a few."""

    experts: int
    per_token: int
    intermediate: int
    routing: str
    """The operator that turns the router's logits into places and weights."""
    gate: Gate = Gate.SILU
    bias: bool = False
    """Of the router and of every expert."""
    shared: Dense | None = None
    """Visited by every token."""
    shared_gate: bool = False
    """Whether what the shared expert gives is weighted by a sigmoid."""
    router_dtype: str = ""
    """Where it is not the model's."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    attention: Attention | LatentAttention
    feed_forward: Dense | Experts


@dataclass(frozen=True)
class Quantisation:
    """How weights are stored."""

    method: str
    bits: int
    """Per weight, without scales."""
    experts_only: bool = False


@dataclass(frozen=True)
class Architecture:
    """A whole model."""

    family: str
    dtype: str
    vocabulary: int
    hidden: int
    layers: tuple[Layer, ...]
    norm: Norm = Norm.RMS
    norms_after: bool = False
    """Whether what attention and the feed-forward block give is normalised before it is added (Gemma 2 and 3)."""
    tied: bool = False
    """Whether logits are computed with the embedding's weights."""
    scaled_embedding: bool = False
    logits_softcap: bool = False
    quantisation: Quantisation | None = field(default=None)
