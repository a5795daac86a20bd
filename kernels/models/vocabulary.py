"""The operators that models are made of and that have no definition (yet): names, axes, tensors and cost.

An outline is enough to list an operator and to estimate its share of the time. It computes nothing: what is to be
compiled needs a definition. Where there is one by the same name, that is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gristmill.workload import ITEM_BYTES
from kernels import catalogue
from kernels.definition import DTYPES, Cost
from kernels.errors import ModelError
from kernels.models.step import OperatorCall

Axes = Mapping[str, int]
Dims = tuple[str, ...]
BYTES = {**ITEM_BYTES, "float16": 2}
DEFINED = (*catalogue.NAMES, *catalogue.PARTS)
SEPARATOR = "_quantised_"


@dataclass(frozen=True)
class Outline:
    """What is known of an operator without a definition."""

    name: str
    summary: str
    axes: Dims
    moved: tuple[Dims, ...]
    """Dimensions of every activation that is read or written once."""
    flops: Callable[[Axes], int]
    weights: tuple[Dims, ...] = ()
    weights_read: Callable[[Axes], int] | None = None
    """How many elements of the weights one call reads, where it is not all of them."""

    def cost(self, axes: Axes, item_bytes: int, weight_bits: int | None = None) -> Cost:
        """Every activation once, and the weights. What of the activations is read and what written is not told apart:
        all of it counts as read.
        """
        activations = sum(_size(dims, axes) for dims in self.moved) * item_bytes
        read = self.weights_read(axes) if self.weights_read else self.weight_elements(axes)
        stored_bits = 8 * item_bytes if weight_bits is None else weight_bits
        return Cost(flops=self.flops(axes), bytes_read=activations + read * stored_bits // 8, bytes_written=0)

    def weight_elements(self, axes: Axes) -> int:
        return sum(_size(dims, axes) for dims in self.weights)


def is_defined(call: OperatorCall) -> bool:
    """Whether a definition of the catalogue covers the call."""
    return call.operator in DEFINED and call.dtype in DTYPES


def axes_of(operator: str) -> Dims:
    """The axes of an operator, in order.

    Raises:
        ModelError: no such operator.
    """
    if operator in DEFINED:
        return tuple(catalogue.operator(operator).axes)
    outline = _outline(operator)
    return (*outline.axes, "weight_bits") if SEPARATOR in operator else outline.axes


def summary(operator: str) -> str:
    """One line on what it computes."""
    return catalogue.operator(operator).summary if operator in DEFINED else _outline(operator).summary


def cost(call: OperatorCall) -> Cost:
    """What one of the calls must do at least: by its definition, or by its outline."""
    item_bytes = BYTES[call.dtype]
    if call.operator in DEFINED:
        return catalogue.operator(call.operator).cost(call.axes, item_bytes)
    return _outline(call.operator).cost(call.axes, item_bytes, call.axes.get("weight_bits"))


def weight_elements(call: OperatorCall) -> int:
    """How many weights one of the calls has."""
    if call.operator in DEFINED:
        definition = catalogue.operator(call.operator)
        return sum(_size(spec.dims, call.axes) for spec in definition.inputs if spec.role.value == "weight")
    return _outline(call.operator).weight_elements(call.axes)


def quantised(operator: str, method: str) -> str:
    """The name of an operator whose weights are stored by that method."""
    return f"{method}{SEPARATOR}{operator.removeprefix('skinny_')}"


def _outline(operator: str) -> Outline:
    plain = operator.partition(SEPARATOR)[2] or operator
    if plain not in OUTLINES:
        raise ModelError(f"operator {operator!r}: no definition and no outline has that name")
    return OUTLINES[plain]


def _size(dims: Dims, axes: Axes) -> int:
    return math.prod(axes[axis] for axis in dims)


def _per_element(*dims: str, flops: int) -> Callable[[Axes], int]:
    return lambda axes: flops * _size(dims, axes)


def _pairs(axes: Axes) -> int:
    """Of a query and a key that it sees: the last query of a chunk sees `window` of them, each before it one less
    unless it has as many behind it. `context_tokens` is what the chunk's keys are in all.
    """
    chunk, window, context = axes["tokens"], axes["window"], axes["context_tokens"]
    before = context - chunk
    growing = max(0, min(chunk, window - before))
    return growing * before + growing * (growing + 1) // 2 + (chunk - growing) * window


def experts_hit(axes: Axes) -> float:
    """How many experts the tokens of a step visit, if all are as likely: `E (1 - (1 - k/E)^T)`."""
    experts, chosen = axes["experts"], axes["experts_per_token"]
    missed: float = (1 - chosen / experts) ** (axes["rows"] / chosen)
    return experts * (1 - missed)


def _grouped_weights(axes: Axes) -> int:
    return round(experts_hit(axes)) * axes["in_features"] * axes["out_features"]


HEADS = ("query_heads", "key_heads", "head_dim")
PREFILL_AXES = ("tokens", "context_tokens", "window", *HEADS, "value_dim")
DECODE_AXES = ("sequences", "context_tokens", *HEADS)
LINEAR_AXES = ("tokens", "in_features", "out_features")
GROUPED_AXES = ("rows", "experts", "experts_per_token", "in_features", "out_features")
ROUTING_AXES = ("tokens", "experts", "experts_per_token")
TH, TI, TE, TC = ("tokens", "hidden"), ("tokens", "intermediate"), ("tokens", "experts"), ("tokens", "columns")
CHOSEN = ("tokens", "experts_per_token")
SINKS = ("query_heads",)


def _rotary(name: str, summary: str) -> Outline:
    queries, keys, table = (
        ("tokens", "query_heads", "head_dim"),
        ("tokens", "key_heads", "head_dim"),
        ("tokens", "head_dim"),
    )

    def flops(axes: Axes) -> int:
        return 3 * (_size(queries, axes) + _size(keys, axes))

    return Outline(name, summary, ("tokens", *HEADS), (queries, queries, keys, keys, table), flops)


def _attention(name: str, summary: str, *weights: Dims) -> tuple[Outline, Outline]:
    """Reading prompts, and decoding: two products per pair of a query and a key, and the softmax between."""
    queries, answers = ("tokens", "query_heads", "head_dim"), ("tokens", "query_heads", "value_dim")
    keys, values = ("context_tokens", "key_heads", "head_dim"), ("context_tokens", "key_heads", "value_dim")
    one = ("sequences", "query_heads", "head_dim")

    def of_prefill(axes: Axes) -> int:
        return axes["query_heads"] * _pairs(axes) * (2 * axes["head_dim"] + 2 * axes["value_dim"] + 5)

    def of_decode(axes: Axes) -> int:
        return axes["query_heads"] * axes["context_tokens"] * (4 * axes["head_dim"] + 5)

    return (
        Outline(
            f"{name}_prefill",
            f"{summary}, of a chunk of one prompt",
            PREFILL_AXES,
            (queries, answers, keys, values),
            of_prefill,
            weights,
        ),
        Outline(
            f"{name}_decode",
            f"{summary}, one token of each sequence, paged cache",
            DECODE_AXES,
            (one, one, ("context_tokens", "key_heads", "head_dim"), ("context_tokens", "key_heads", "head_dim")),
            of_decode,
            weights,
        ),
    )


def _routing(name: str, summary: str) -> Outline:
    return Outline(name, summary, ROUTING_AXES, (TE, CHOSEN, CHOSEN), _per_element(*TE, flops=6))


def _grouped(name: str, summary: str, *weights: Dims) -> Outline:
    def flops(axes: Axes) -> int:
        return 2 * _size(("rows", "in_features", "out_features"), axes)

    moved = (("rows", "in_features"), ("rows", "out_features"))
    return Outline(name, summary, GROUPED_AXES, moved, flops, weights, _grouped_weights)


_GROUPED_WEIGHT = ("experts", "out_features", "in_features")

_ALL = (
    Outline(
        "embedding",
        "Rows of the embedding table, one per token",
        ("tokens", "vocabulary", "hidden"),
        (TH, TH),
        lambda axes: 0,
        (("vocabulary", "hidden"),),
        lambda axes: 0,
    ),
    Outline("scale", "Every element times one constant", TH, (TH, TH), _per_element(*TH, flops=1)),
    Outline(
        "gemma_rms_norm",
        "Root mean square norm, scaled by one plus the weight",
        TH,
        (TH, TH),
        _per_element(*TH, flops=5),
        (("hidden",),),
    ),
    Outline(
        "fused_add_gemma_rms_norm",
        "Residual addition, then the norm scaled by one plus the weight",
        TH,
        (TH, TH, TH, TH),
        _per_element(*TH, flops=6),
        (("hidden",),),
    ),
    Outline(
        "linear",
        "Linear layer without bias",
        LINEAR_AXES,
        (("tokens", "in_features"), ("tokens", "out_features")),
        _per_element(*LINEAR_AXES, flops=2),
        (("out_features", "in_features"),),
    ),
    Outline(
        "linear_bias",
        "Linear layer with a bias",
        LINEAR_AXES,
        (("tokens", "in_features"), ("tokens", "out_features")),
        _per_element(*LINEAR_AXES, flops=2),
        (("out_features", "in_features"), ("out_features",)),
    ),
    Outline(
        "head_linear",
        "One linear layer per head: latent attention's expansion, absorbed",
        ("tokens", "heads", "in_features", "out_features"),
        (("tokens", "heads", "in_features"), ("tokens", "heads", "out_features")),
        _per_element("tokens", "heads", "in_features", "out_features", flops=2),
        (("heads", "in_features", "out_features"),),
    ),
    Outline(
        "gelu_tanh_and_mul",
        "Gated activation: gelu, by its hyperbolic tangent, of one tensor times the other",
        TI,
        (TI, TI, TI),
        _per_element(*TI, flops=8),
    ),
    Outline(
        "clamped_swiglu",
        "Gated activation of gpt-oss, both sides clamped and interleaved in one tensor",
        TI,
        (TI, TI, TI),
        _per_element(*TI, flops=8),
    ),
    _rotary("half_rotary_embedding", "Rotary embedding of queries and keys, cosine and sine of half width"),
    _rotary("interleaved_rotary_embedding", "Rotary embedding of queries and keys that turns neighbours"),
    *_attention("attention", "Causal attention"),
    *_attention("sink_attention", "Causal attention with a learned logit per head that takes part in the sum", SINKS),
    *_attention("softcap_attention", "Causal attention whose scores are squashed by a hyperbolic tangent"),
    Outline(
        "latent_attention_decode",
        "Attention on latent vectors that all heads share, one token of each sequence, paged cache",
        ("sequences", "context_tokens", "query_heads", "latent_dim", "rotary_dim"),
        (
            ("sequences", "query_heads", "latent_dim"),
            ("sequences", "query_heads", "rotary_dim"),
            ("sequences", "query_heads", "latent_dim"),
            ("context_tokens", "latent_dim"),
            ("context_tokens", "rotary_dim"),
        ),
        lambda axes: (
            axes["query_heads"] * axes["context_tokens"] * (4 * axes["latent_dim"] + 2 * axes["rotary_dim"] + 5)
        ),
    ),
    _routing("softmax_topk", "Softmax over the experts, the largest chosen, their weights made to sum to one"),
    _routing("softmax_topk_as_is", "Softmax over the experts, the largest chosen with the weights that they have"),
    _routing("softmax_group_topk", "Softmax over the experts, the largest of the best groups chosen"),
    _routing("sigmoid_group_topk", "Sigmoid of each expert, corrected, the largest of the best groups chosen"),
    _routing("topk_softmax", "The largest experts chosen, softmax over these"),
    _grouped("grouped_linear", "Each row times the weights of its own expert", _GROUPED_WEIGHT),
    _grouped(
        "grouped_linear_bias",
        "Each row times the weights of its own expert, plus that expert's bias",
        _GROUPED_WEIGHT,
        ("experts", "out_features"),
    ),
    Outline(
        "expert_sum",
        "Sum of what a token's experts gave, weighted",
        ("tokens", "experts_per_token", "hidden"),
        (("tokens", "experts_per_token", "hidden"), CHOSEN, TH),
        _per_element("tokens", "experts_per_token", "hidden", flops=2),
    ),
    Outline(
        "sigmoid_gated_add",
        "Rows times the sigmoid of a number each, added to others",
        TH,
        (TH, TH, TH),
        _per_element(*TH, flops=2),
    ),
    Outline("softcap", "Logits squashed by a hyperbolic tangent", TC, (TC, TC), _per_element(*TC, flops=3)),
)
OUTLINES: Mapping[str, Outline] = {outline.name: outline for outline in _ALL}
"""By name."""
