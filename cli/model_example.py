"""A small model of the same kind as a large one: every block that it has, a few numbers wide, with random weights.

Transformers builds it from the family's own class; so what is recorded is the code that the large model would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernels.models.architecture import Architecture, Attention, Dense, Experts, Layer

if TYPE_CHECKING:
    from kernels.drafts.extents import Pair
    from kernels.models.recording import Recording

KEPT = (
    "attention_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "hidden_act",
    "hidden_activation",
    "mlp_bias",
    "norm_topk_prob",
    "qkv_bias",
    "rms_norm_eps",
    "tie_word_embeddings",
    "topk_method",
)
"""Fields that say what is computed, and not how large it is."""
SIZES: Mapping[str, tuple[int, int]] = {
    "hidden_size": (48, 144),
    "intermediate_size": (88, 104),
    "moe_intermediate_size": (24, 40),
    "shared_expert_intermediate_size": (72, 56),
    "num_attention_heads": (6, 12),
    "head_dim": (10, 14),
    "vocab_size": (97, 101),
    "q_lora_rank": (26, 30),
    "kv_lora_rank": (34, 38),
    "qk_rope_head_dim": (4, 6),
    "qk_nope_head_dim": (18, 20),
    "v_head_dim": (16, 22),
    "sliding_window": (5, 7),
}
"""In the first and the second example; different enough that no two are taken for each other."""
TOKENS = (11, 13)
EXPERTS = 8
CHOSEN = 2
NAMES: Mapping[Pair, str] = {
    TOKENS: "tokens",
    (CHOSEN * TOKENS[0], CHOSEN * TOKENS[1]): "routed_tokens",
    SIZES["hidden_size"]: "hidden",
    SIZES["intermediate_size"]: "intermediate",
    SIZES["moe_intermediate_size"]: "intermediate",
    SIZES["shared_expert_intermediate_size"]: "intermediate",
    SIZES["num_attention_heads"]: "query_heads",
    (2, 4): "key_heads",
    SIZES["head_dim"]: "head_dim",
    (8, 12): "head_dim",
    SIZES["vocab_size"]: "vocabulary",
    SIZES["qk_rope_head_dim"]: "rotary_dim",
}
"""What extents of both examples are called."""
SEED = 20261202
SPREAD = 0.5


def small_config(config: Mapping[str, Any], model: Architecture, size: int) -> dict[str, Any]:
    """A configuration of the same family with a layer of each kind.

    Args:
        config: that of the language model, not of what it is part of.
        size: 0 or 1, of `SIZES`.
    """
    layers = list(dict.fromkeys(model.layers))
    small: dict[str, Any] = {name: config[name] for name in KEPT if name in config}
    small |= {name: sizes[size] for name, sizes in SIZES.items() if name in config or name in REQUIRED}
    small |= {"model_type": model.family, "num_hidden_layers": len(layers), "pad_token_id": 0}
    small["num_key_value_heads"] = _key_heads(layers[0], size)
    if config.get("q_lora_rank", 0) is None:
        small["q_lora_rank"] = None
    return small | _attention_fields(layers) | _expert_fields(layers)


REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def _key_heads(layer: Layer, size: int) -> int:
    """As many as query heads, one, or a few, as the large model has it."""
    heads = SIZES["num_attention_heads"][size]
    if not isinstance(layer.attention, Attention) or layer.attention.key_heads == layer.attention.query_heads:
        return heads
    return 1 if layer.attention.key_heads == 1 else (2, 4)[size]


def _attention_fields(layers: list[Layer]) -> dict[str, Any]:
    windows = [isinstance(layer.attention, Attention) and layer.attention.window is not None for layer in layers]
    if not any(windows):
        return {"sliding_window": None}
    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in windows]
    return {"layer_types": kinds, "use_sliding_window": True}


def _expert_fields(layers: list[Layer]) -> dict[str, Any]:
    dense = [number for number, layer in enumerate(layers) if isinstance(layer.feed_forward, Dense)]
    experts = next((layer.feed_forward for layer in layers if isinstance(layer.feed_forward, Experts)), None)
    if experts is None:
        return {}
    counts = dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), EXPERTS)
    return {
        **counts,
        "num_experts_per_tok": CHOSEN,
        "n_shared_experts": 0 if experts.shared is None else 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": len(dense),
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
    }


def build(config: Mapping[str, Any], dtype: str = "bfloat16") -> Any:
    """The model that transformers makes of it, with random weights everywhere."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {name: value for name, value in config.items() if name != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        families: Any = AutoModelForCausalLM
        model: Any = families.from_config(made, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
        with torch.no_grad():
            for weight in model.parameters():
                scale = SPREAD if weight.dim() == 1 else weight.shape[-1] ** -0.5
                weight.copy_(scale * torch.randn(weight.shape))
    return model


def recorded(model: Any, tokens: int) -> Recording:
    """One prompt of so many tokens, and the logits of its last."""
    import torch

    from kernels.models.recording import record

    return record(model, (torch.arange(tokens)[None] % 90,), {"use_cache": False, "logits_to_keep": 1})
