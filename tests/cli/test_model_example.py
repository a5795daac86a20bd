"""What a configuration lists is what the model calls: a real forward pass of each family is recorded and compared."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from cli import model_example
from kernels.models.families import FAMILIES, architecture
from kernels.models.listing import ModelOperators, model_operators
from kernels.models.recognition import Recognition, TracedCall
from kernels.models.step import StepBatch

COMMON: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
MIXED = {"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 768, "head_dim": 128}
LATENT = {
    "num_key_value_heads": 16,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 32,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 704,
    "first_k_dense_replace": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"head_dim": 128, "sliding_window": None},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "qwen2_moe": {
        **{k: v for k, v in MIXED.items() if k != "head_dim"},
        "shared_expert_intermediate_size": 5632,
        "mlp_only_layers": [0],
    },
    "qwen3_moe": {**MIXED, "norm_topk_prob": True},
    "gemma2": {"head_dim": 128, "sliding_window": 512},
    "gemma3_text": {"head_dim": 128, "sliding_window": 512, "num_hidden_layers": 7},
    "deepseek_v2": {**LATENT, "topk_method": "greedy"},
    "deepseek_v2 by groups": {**LATENT, "topk_method": "group_limited_greedy", "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "gpt_oss": {"head_dim": 64, "num_local_experts": 16, "num_experts_per_tok": 4, "sliding_window": 128},
}


@functools.cache
def _forward(case: str) -> tuple[ModelOperators, Any, list[TracedCall]]:
    """What the small model's configuration lists, the model, and what a forward pass of it called."""
    config = {**COMMON, **CASES[case], "model_type": case.split()[0], "dtype": "bfloat16"}
    model = model_example.build(model_example.small_config(config, architecture(config), 0))
    calls = Recognition(model_example.recorded(model, model_example.TOKENS[0])).calls()
    return model_operators({**model.config.to_dict(), "dtype": "bfloat16"}), model, calls


def test_every_family_is_tried() -> None:
    assert {case.split()[0] for case in CASES} == set(FAMILIES) - {"gemma3"}


@pytest.mark.parametrize("case", CASES)
def test_the_listing_names_what_a_forward_pass_calls(case: str) -> None:
    """With the same shapes, and as often."""
    listed, _, called = _forward(case)
    batch = StepBatch(prefill_chunks=((model_example.TOKENS[0], 0),))
    wanted = {call.label: call.count for call in listed.calls(batch)}
    assert Counter(traced.call.label for traced in called) == wanted


@pytest.mark.parametrize("case", CASES)
def test_the_listing_has_as_many_weights_as_the_model(case: str) -> None:
    listed, model, _ = _forward(case)
    assert listed.parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("case", CASES)
def test_a_small_model_has_a_layer_of_each_kind(case: str) -> None:
    config = {**COMMON, **CASES[case], "model_type": case.split()[0]}
    large, (small, _, _) = architecture(config), _forward(case)
    kinds = [
        [(type(layer.attention), type(layer.feed_forward), getattr(layer.attention, "window", None) is None)]
        for layer in dict.fromkeys(large.layers)
    ]
    found = [
        [(type(layer.attention), type(layer.feed_forward), getattr(layer.attention, "window", None) is None)]
        for layer in small.architecture.layers
    ]
    assert found == kinds
