"""The model that the reference engine serves: real architecture, random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.errors import ServingError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-architecture model."""

    layers: int = 8
    hidden: int = 1024
    intermediate: int = 2816
    query_heads: int = 16
    key_heads: int = 4
    head_dim: int = 64
    vocabulary: int = 32000
    positions: int = 8192


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a dtype name.

    Raises:
        ServingError: it is not one the engine serves in.
    """
    import torch

    if name not in DTYPES:
        raise ServingError(f"dtype {name!r}: expected one of {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def build_model(shape: ModelShape, dtype: str = "float32", seed: int = 0) -> Any:
    """A `LlamaForCausalLM` in evaluation mode. The same seed gives the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    return model.to(torch_dtype(dtype)).eval().requires_grad_(False)
