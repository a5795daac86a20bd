"""The operators that a configuration gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import catalogue, inputs
from kernels.errors import ModelError
from kernels.models import vocabulary
from kernels.models.listing import model_operators
from kernels.models.step import OperatorCall, StepBatch

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN_3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
GEMMA_3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {},
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GPT_OSS_20B: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
    "quantization_config": {"quant_method": "mxfp4"},
}
PUBLISHED = {
    "Llama 3 8B": (LLAMA_3_8B, 8_030_261_248),
    "Qwen 3 30B-A3B": (QWEN_3_30B, 30_532_122_624),
    "Gemma 3 4B, its language model": (GEMMA_3_4B, 3_880_263_168),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_404_352),
    "gpt-oss 20B": (GPT_OSS_20B, 20_914_757_184),
}
"""Parameters as the published checkpoints have them."""
BATCHES = st.builds(
    StepBatch,
    st.lists(st.integers(1, 9000), min_size=1, max_size=6).map(tuple),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000)), max_size=4).map(tuple),
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_parameters_that_their_operators_have(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert model_operators(config).parameters == parameters


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("packed", [False, True])
@given(batch=BATCHES)
def test_calls_have_the_axes_of_their_operator(name: str, packed: bool, batch: StepBatch) -> None:
    for call in model_operators(PUBLISHED[name][0], packed=packed).calls(batch):
        assert tuple(call.axes) == vocabulary.axes_of(call.operator)
        assert min(call.axes.values()) >= 1
        assert call.count >= 1
        if vocabulary.is_defined(call):
            inputs.workload(catalogue.operator(call.operator), call.dtype, **call.axes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_packing_joins_projections_and_changes_no_weight(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert model_operators(config, packed=True).parameters == parameters
    batch = StepBatch((100,), ((64, 0),))
    apart, joined = (model_operators(config, packed=packed).calls(batch) for packed in (False, True))
    assert _count(joined) < _count(apart)


def _count(calls: tuple[OperatorCall, ...]) -> int:
    return sum(call.count for call in calls)


def test_an_engine_fuses_every_addition_with_the_norm_after_it() -> None:
    calls = {call.operator: call for call in model_operators(LLAMA_3_8B).calls(StepBatch((7,)))}
    assert calls["fused_add_rms_norm"].count == 64
    assert calls["rms_norm"].count == 1


@given(chunk=st.integers(1, 40), before=st.integers(0, 40), window=st.integers(1, 90))
def test_pairs_of_a_prompt_are_counted_one_by_one(chunk: int, before: int, window: int) -> None:
    config = {**LLAMA_3_8B, "model_type": "mistral", "sliding_window": window}
    calls = model_operators(config).calls(StepBatch(prefill_chunks=((chunk, before),)))
    (call,) = [call for call in calls if call.operator == "attention_prefill"]
    seen = [{k for k in range(before + q + 1) if k > before + q - window} for q in range(chunk)]
    flops = sum(map(len, seen)) * call.axes["query_heads"] * (4 * call.axes["head_dim"] + 5)
    assert vocabulary.cost(call).flops == flops
    assert call.axes["context_tokens"] == len(set.union(*seen))


def test_a_windowed_layer_decodes_within_its_window() -> None:
    calls = model_operators(GPT_OSS_20B).calls(StepBatch((1000, 50)))
    seen = [call.axes["context_tokens"] for call in calls if call.operator == "sink_attention_decode"]
    assert sorted(seen) == [128 + 50, 1050]


@given(rows=st.integers(1, 400))
def test_more_tokens_visit_more_experts_up_to_all(rows: int) -> None:
    axes = {"experts": 32, "experts_per_token": 4, "rows": 4 * rows}
    hit = vocabulary.experts_hit(axes)
    assert 4 - 1e-9 <= hit <= min(32, 4 * rows)
    assert hit <= vocabulary.experts_hit({**axes, "rows": 4 * rows + 4})


def test_only_what_the_method_covers_is_quantised() -> None:
    names = {call.operator for call in model_operators(GPT_OSS_20B).calls(StepBatch((9,)))}
    assert {"mxfp4_quantised_grouped_linear_bias", "linear_bias", "skinny_linear"} <= names
    assert not [name for name in names if name.startswith("mxfp4_quantised_linear")]


REFUSED = {
    "config: field 'model_type' is missing": {},
    "config.model_type: found 'gpt2', expected one of llama, mistral": {"model_type": "gpt2"},
    "config.model_type: found ['llama'], expected one of": {"model_type": ["llama"]},
    "config: field 'num_attention_heads' is missing": {"model_type": "llama"},
    "config.hidden_size: found -1, expected a whole number from 1": {**LLAMA_3_8B, "hidden_size": -1},
    "config.hidden_size: found True": {**LLAMA_3_8B, "hidden_size": True},
    "config.hidden_size: found 4096.0": {**LLAMA_3_8B, "hidden_size": 4096.0},
    "config.hidden_size: found 4097, expected a multiple": {**LLAMA_3_8B, "hidden_size": 4097},
    "config.num_key_value_heads: found 5, expected a divisor": {**LLAMA_3_8B, "num_key_value_heads": 5},
    "config.hidden_act: found 'relu', expected one of silu": {**LLAMA_3_8B, "hidden_act": "relu"},
    "config.head_dim: found 65, expected an even number": {**LLAMA_3_8B, "head_dim": 65},
    "config.torch_dtype: found 'int8', expected one of float32": {**LLAMA_3_8B, "torch_dtype": "int8"},
    "config.attention_bias: found 'yes', expected true or false": {**LLAMA_3_8B, "attention_bias": "yes"},
    "config.num_experts_per_tok: found 300, expected at most": {**QWEN_3_30B, "num_experts_per_tok": 300},
    "config.mlp_only_layers: found 3, expected a list": {**QWEN_3_30B, "mlp_only_layers": 3},
    "config.layer_types: found ['full_attention'], expected 24 of": {**GPT_OSS_20B, "layer_types": ["full_attention"]},
    "config.quantization_config: found 8, expected an object": {**LLAMA_3_8B, "quantization_config": 8},
    "config.quantization_config: field 'quant_method' is missing": {**LLAMA_3_8B, "quantization_config": {}},
    "config.text_config: found 1, expected an object": {**GEMMA_3_4B, "text_config": 1},
    "config.text_config.hidden_size: found 0": {"text_config": {**LLAMA_3_8B, "hidden_size": 0}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_nonsense_is_refused_in_one_line_that_names_the_place(message: str) -> None:
    with pytest.raises(ModelError) as refused:
        model_operators(REFUSED[message])
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(name=st.sampled_from(sorted({*LLAMA_3_8B, *QWEN_3_30B, *DEEPSEEK_V3, "text_config"})), value=JSON, of=st.data())
def test_whatever_a_field_holds_it_is_understood_or_refused(name: str, value: object, of: st.DataObject) -> None:
    config, _ = PUBLISHED[of.draw(st.sampled_from(sorted(PUBLISHED)))]
    try:
        made = model_operators({**config, name: value})
    except ModelError as refused:
        assert "\n" not in str(refused)
    else:
        assert made.parameters > 0


@pytest.mark.parametrize(
    ("decoding", "chunks"), [((), ()), ((0,), ()), ((), ((0, 5),)), ((3,), ((5, -1),))], ids=["none", "0", "0of5", "-1"]
)
def test_steps_that_no_engine_makes_are_refused(decoding: tuple[int, ...], chunks: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ModelError, match="step batch"):
        StepBatch(decoding, chunks)
