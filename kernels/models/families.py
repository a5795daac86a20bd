"""From the `config.json` of a family to its architecture, with the defaults of the family's class in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kernels.errors import ModelError
from kernels.models.architecture import (
    Architecture,
    Attention,
    Dense,
    Experts,
    Gate,
    LatentAttention,
    Layer,
    Norm,
    Quantisation,
)
from kernels.models.config_fields import ConfigFields

FLOATS = ("float32", "bfloat16", "float16")
GATES = {"silu": Gate.SILU, "swish": Gate.SILU, "gelu_pytorch_tanh": Gate.GELU_TANH}
MOST_LAYERS = 4096
LAYER_TYPES = ("full_attention", "sliding_attention")
OF_THE_WHOLE = ("model_type", "dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
"""Fields that stand beside `text_config` and hold for it."""
LEFT_OUT: Mapping[str, Mapping[str, object]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}
}
"""What published files of a family leave to its class."""
BITS = {"fp8": 8, "mxfp4": 4, "compressed-tensors": 8, "modelopt": 8, "awq": 4, "gptq": 4}
"""Per weight, scales left out, by method of quantisation, where the file does not say."""


def architecture(config: Mapping[str, object]) -> Architecture:
    """What the model is made of. A model that also sees or hears is described by its language model's part.

    Raises:
        ModelError: a field is missing or makes no sense, or the family is not one of `FAMILIES`.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"config: found {type(config).__name__}, expected an object, as config.json holds it")
    fields = ConfigFields(config)
    inner = fields.within("text_config")
    if inner is not None:
        outer = {name: config[name] for name in OF_THE_WHOLE if name in config}
        fields = ConfigFields({**outer, **inner.values}, inner.place)
    family = fields.choice("model_type", tuple(FAMILIES))
    return FAMILIES[family](ConfigFields({**LEFT_OUT.get(family, {}), **fields.values}, fields.place))


def _llama(fields: ConfigFields) -> Architecture:
    bias = fields.flag("attention_bias", False)
    attention = _attention(fields, input_bias=bias, output_bias=bias)
    return _uniform(fields, attention, _dense(fields, bias=fields.flag("mlp_bias", False)))


def _mistral(fields: ConfigFields) -> Architecture:
    attention = _attention(fields, window=fields.optional_extent("sliding_window", 4096))
    return _uniform(fields, attention, _dense(fields))


def _mixtral(fields: ConfigFields) -> Architecture:
    attention = _attention(fields, window=fields.optional_extent("sliding_window"))
    experts = _experts(fields, fields.extent("intermediate_size"), "softmax_topk", per_token=2)
    return _uniform(fields, attention, experts)


def _qwen2(fields: ConfigFields) -> Architecture:
    return _sliding(fields, _attention(fields, input_bias=True), _dense(fields))


def _qwen3(fields: ConfigFields) -> Architecture:
    bias = fields.flag("attention_bias", False)
    attention = _attention(fields, input_bias=bias, output_bias=bias, head_norm=True, head_dim=128)
    return _sliding(fields, attention, _dense(fields))


def _qwen2_moe(fields: ConfigFields) -> Architecture:
    attention = _attention(fields, input_bias=fields.flag("qkv_bias", True))
    shared = Dense(fields.extent("shared_expert_intermediate_size", 5632), _gate(fields))
    return _qwen_moe(fields, attention, shared)


def _qwen3_moe(fields: ConfigFields) -> Architecture:
    bias = fields.flag("attention_bias", False)
    attention = _attention(fields, input_bias=bias, output_bias=bias, head_norm=True)
    return _qwen_moe(fields, attention, None)


def _qwen_moe(fields: ConfigFields, attention: Attention, shared: Dense | None) -> Architecture:
    """Every so many layers has experts, unless it is listed as one that has not."""
    routing = "softmax_topk" if fields.flag("norm_topk_prob", False) else "softmax_topk_as_is"
    experts = _experts(
        fields,
        fields.extent("moe_intermediate_size"),
        routing,
        shared=shared,
        shared_gate=shared is not None,
    )
    dense, step = _dense(fields), fields.extent("decoder_sparse_step", 1)
    skipped = fields.places("mlp_only_layers")
    blocks = [
        experts if number not in skipped and (number + 1) % step == 0 else dense for number in range(_depth(fields))
    ]
    windows = _windows(fields, _qwen_window(fields))
    return _model(fields, [Layer(_windowed(attention, w), b) for w, b in zip(windows, blocks, strict=True)])


def _gemma2(fields: ConfigFields) -> Architecture:
    kind = "softcap_attention" if fields.has_number("attn_logit_softcapping", 50.0) else "attention"
    return _gemma(fields, kind, pattern=2, softcap=30.0)


def _gemma3(fields: ConfigFields) -> Architecture:
    kind = "softcap_attention" if fields.has_number("attn_logit_softcapping") else "attention"
    pattern = fields.extent("sliding_window_pattern", 6)
    return _gemma(fields, kind, pattern=pattern, softcap=None, head_norm=True)


def _gemma(
    fields: ConfigFields, kind: str, *, pattern: int, softcap: float | None, head_norm: bool = False
) -> Architecture:
    bias = fields.flag("attention_bias", False)
    attention = _attention(
        fields, input_bias=bias, output_bias=bias, head_norm=head_norm, head_dim=256, kind=kind, key_heads=4
    )
    window = fields.optional_extent("sliding_window", 4096)
    alternate = [window if (number + 1) % pattern else None for number in range(_depth(fields))]
    layers = [Layer(_windowed(attention, w), _dense(fields)) for w in _windows(fields, window, alternate)]
    return _model(
        fields,
        layers,
        norm=Norm.GEMMA,
        norms_after=True,
        tied=True,
        scaled_embedding=True,
        logits_softcap=fields.has_number("final_logit_softcapping", softcap),
    )


def _deepseek_v2(fields: ConfigFields) -> Architecture:
    greedy = fields.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy") == "greedy"
    return _deepseek(fields, "softmax_topk_as_is" if greedy else "softmax_group_topk", dense_layers=0)


def _deepseek_v3(fields: ConfigFields) -> Architecture:
    return _deepseek(fields, "sigmoid_group_topk", dense_layers=3)


def _deepseek(fields: ConfigFields, routing: str, *, dense_layers: int) -> Architecture:
    attention = LatentAttention(
        query_heads=fields.extent("num_attention_heads"),
        query_rank=fields.optional_extent("q_lora_rank", 1536),
        latent_dim=fields.extent("kv_lora_rank", 512),
        plain_dim=fields.extent("qk_nope_head_dim", 128),
        rotary_dim=_even(fields, "qk_rope_head_dim", 64),
        value_dim=fields.extent("v_head_dim", 128),
        bias=fields.flag("attention_bias", False),
    )
    intermediate = fields.extent("moe_intermediate_size")
    shared = fields.count("n_shared_experts", 1)
    experts = _experts(
        fields,
        intermediate,
        routing,
        shared=Dense(intermediate * shared, _gate(fields)) if shared else None,
        router_dtype="float32",
    )
    first = fields.count("first_k_dense_replace", dense_layers)
    every = fields.extent("moe_layer_freq", 1)
    blocks = [experts if n >= first and n % every == 0 else _dense(fields) for n in range(_depth(fields))]
    return _model(fields, [Layer(attention, block) for block in blocks])


def _gpt_oss(fields: ConfigFields) -> Architecture:
    bias = fields.flag("attention_bias", True)
    attention = _attention(
        fields,
        input_bias=bias,
        output_bias=bias,
        head_dim=64,
        kind="sink_attention",
        key_heads=8,
        rotary="half_rotary_embedding",
    )
    experts = _experts(
        fields, fields.extent("intermediate_size"), "topk_softmax", per_token=4, gate=Gate.CLAMPED, bias=True
    )
    window = fields.optional_extent("sliding_window", 128)
    alternate = [window if (number + 1) % 2 else None for number in range(_depth(fields))]
    return _model(fields, [Layer(_windowed(attention, w), experts) for w in _windows(fields, window, alternate)])


def _attention(
    fields: ConfigFields,
    *,
    input_bias: bool = False,
    output_bias: bool = False,
    head_norm: bool = False,
    window: int | None = None,
    head_dim: int | None = None,
    key_heads: int | None = None,
    kind: str = "attention",
    rotary: str = "rotary_embedding",
) -> Attention:
    heads = fields.extent("num_attention_heads")
    keys = fields.extent("num_key_value_heads", key_heads or heads)
    if heads % keys:
        raise fields.refusal("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    hidden = fields.extent("hidden_size")
    if head_dim is None and fields.values.get("head_dim") is None and hidden % heads:
        raise fields.refusal("hidden_size", f"a multiple of num_attention_heads ({heads}), or a head_dim")
    dim = _even(fields, "head_dim", head_dim or max(1, hidden // heads))
    return Attention(heads, keys, dim, input_bias, output_bias, head_norm, window, kind, rotary)


def _even(fields: ConfigFields, name: str, default: int) -> int:
    extent = fields.extent(name, default)
    if extent % 2:
        raise fields.refusal(name, f"an even number (rotary embedding turns pairs; it would be {extent})")
    return extent


def _gate(fields: ConfigFields) -> Gate:
    name = fields.first_of("hidden_activation", "hidden_act")
    default = "gelu_pytorch_tanh" if str(fields.values["model_type"]).startswith("gemma") else "silu"
    return GATES[fields.choice(name, tuple(GATES), default)]


def _dense(fields: ConfigFields, *, bias: bool = False) -> Dense:
    return Dense(fields.extent("intermediate_size"), _gate(fields), bias)


def _experts(
    fields: ConfigFields,
    intermediate: int,
    routing: str,
    *,
    per_token: int | None = None,
    gate: Gate | None = None,
    bias: bool = False,
    shared: Dense | None = None,
    shared_gate: bool = False,
    router_dtype: str = "",
) -> Experts:
    experts = fields.extent(fields.first_of("num_local_experts", "num_experts", "n_routed_experts"))
    chosen = (
        fields.extent("num_experts_per_tok") if per_token is None else fields.extent("num_experts_per_tok", per_token)
    )
    if chosen > experts:
        raise fields.refusal("num_experts_per_tok", f"at most as many as there are experts ({experts})")
    return Experts(
        experts,
        chosen,
        intermediate,
        routing,
        gate or _gate(fields),
        bias,
        shared,
        shared_gate,
        router_dtype,
    )


def _uniform(fields: ConfigFields, attention: Attention, block: Dense | Experts) -> Architecture:
    return _model(fields, [Layer(attention, block)] * _depth(fields))


def _sliding(fields: ConfigFields, attention: Attention, block: Dense) -> Architecture:
    """Qwen's dense models: the upper layers may have a window."""
    window = _qwen_window(fields)
    first = fields.count("max_window_layers", 28)
    upper = [window if number >= first else None for number in range(_depth(fields))]
    return _model(fields, [Layer(_windowed(attention, w), block) for w in _windows(fields, window, upper)])


def _qwen_window(fields: ConfigFields) -> int | None:
    return fields.optional_extent("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None


def _windows(fields: ConfigFields, window: int | None, otherwise: list[int | None] | None = None) -> list[int | None]:
    """Per layer: as `layer_types` says, where there is one."""
    depth = _depth(fields)
    types = fields.names("layer_types", LAYER_TYPES, depth)
    if types is None:
        return [window] * depth if otherwise is None else otherwise
    return [window if kind == "sliding_attention" else None for kind in types]


def _windowed(attention: Attention, window: int | None) -> Attention:
    return replace(attention, window=window)


def _depth(fields: ConfigFields) -> int:
    return fields.extent("num_hidden_layers", largest=MOST_LAYERS)


def _model(
    fields: ConfigFields,
    layers: list[Layer],
    *,
    norm: Norm = Norm.RMS,
    norms_after: bool = False,
    tied: bool = False,
    scaled_embedding: bool = False,
    logits_softcap: bool = False,
) -> Architecture:
    return Architecture(
        family=fields.choice("model_type", tuple(FAMILIES)),
        dtype=_dtype(fields),
        vocabulary=fields.extent("vocab_size"),
        hidden=fields.extent("hidden_size"),
        layers=tuple(layers),
        norm=norm,
        norms_after=norms_after,
        tied=fields.flag("tie_word_embeddings", tied),
        scaled_embedding=scaled_embedding,
        logits_softcap=logits_softcap,
        quantisation=_quantisation(fields),
    )


def _dtype(fields: ConfigFields) -> str:
    """Where the file names none: bfloat16, which is what such models are served in."""
    name = fields.first_of("dtype", "torch_dtype")
    return fields.choice(name, FLOATS, "bfloat16")


def _quantisation(fields: ConfigFields) -> Quantisation | None:
    inner = fields.within("quantization_config")
    if inner is None:
        return None
    method = inner.values.get("quant_method")
    if not isinstance(method, str):
        raise inner.refusal("quant_method", "the name of a method")
    return Quantisation(method, inner.extent("bits", BITS.get(method, 8)), experts_only=method == "mxfp4")


FAMILIES: Mapping[str, Callable[[ConfigFields], Architecture]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
}
"""By `model_type`."""
