"""The operators of a model: which one engine step calls, with which shapes and how often, from its `config.json`.

Calls are those of an engine that fuses the residual addition with the norm after it and a gate with its product, keeps
a paged cache, and groups the tokens of an expert. What only moves tensors (cache writes, copies) is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.models import families, vocabulary
from kernels.models.architecture import Architecture, Attention, Dense, Experts, LatentAttention, Layer, Quantisation
from kernels.models.step import OperatorCall, StepBatch, merged


@dataclass(frozen=True)
class ModelOperators:
    """The operators of one model."""

    architecture: Architecture
    packed: bool = False
    """Whether the engine has joined the projections that read the same input (query, key, value; gate, up) in one."""

    @property
    def dtype(self) -> str:
        return self.architecture.dtype

    @property
    def parameters(self) -> int:
        """Weights of all calls, those of the embedding once where logits share them."""
        model = self.architecture
        shared = model.vocabulary * model.hidden if model.tied else 0
        calls = self.calls(StepBatch(prefill_chunks=((1, 0),)))
        return sum(call.count * vocabulary.weight_elements(call) for call in calls) - shared

    def calls(self, batch: StepBatch) -> tuple[OperatorCall, ...]:
        """What one step calls, in the order in which a layer does; equal calls are counted together."""
        return merged(_Step(self.architecture, batch, self.packed).calls())


def model_operators(config: Mapping[str, object], *, packed: bool = False) -> ModelOperators:
    """The operators of the model that a Hugging Face `config.json` describes.

    Raises:
        ModelError: what is missing or makes no sense, and where.
    """
    return ModelOperators(families.architecture(config), packed)


class _Step:
    """One step of one model."""

    def __init__(self, model: Architecture, batch: StepBatch, packed: bool) -> None:
        self._model = model
        self._batch = batch
        self._packed = packed
        self._found: list[OperatorCall] = []

    def calls(self) -> list[OperatorCall]:
        model, batch = self._model, self._batch
        self._add("embedding", tokens=batch.tokens, vocabulary=model.vocabulary, hidden=model.hidden)
        if model.scaled_embedding:
            self._add("scale", tokens=batch.tokens, hidden=model.hidden)
        self._add(str(model.norm), tokens=batch.tokens, hidden=model.hidden)
        for layer, count in Counter(model.layers).items():
            self._layer(layer, count)
        self._linear(batch.requests, model.hidden, model.vocabulary, plain=True)
        if model.logits_softcap:
            self._add("softcap", tokens=batch.requests, columns=model.vocabulary)
        return self._found

    def _layer(self, layer: Layer, count: int) -> None:
        """Up to the norm that follows it: the next layer's first, or the model's last."""
        model, tokens = self._model, self._batch.tokens
        norm, fused = str(model.norm), f"fused_add_{model.norm}"
        if isinstance(layer.attention, LatentAttention):
            self._latent_attention(layer.attention, count)
        else:
            self._attention(layer.attention, count)
        if model.norms_after:
            self._add(norm, count, tokens=tokens, hidden=model.hidden)
        self._add(fused, count, tokens=tokens, hidden=model.hidden)
        if isinstance(layer.feed_forward, Experts):
            self._experts(layer.feed_forward, count)
        else:
            self._dense(layer.feed_forward, count)
        if model.norms_after:
            self._add(norm, count, tokens=tokens, hidden=model.hidden)
        self._add(fused, count, tokens=tokens, hidden=model.hidden)

    def _attention(self, attention: Attention, count: int) -> None:
        tokens, hidden = self._batch.tokens, self._model.hidden
        query = attention.query_heads * attention.head_dim
        key = attention.key_heads * attention.head_dim
        for width in [query + 2 * key] if self._packed else [query, key, key]:
            self._linear(tokens, hidden, width, count, bias=attention.input_bias)
        if attention.head_norm:
            norm = str(self._model.norm)
            for heads in (attention.query_heads, attention.key_heads):
                self._add(norm, count, tokens=tokens * heads, hidden=attention.head_dim)
        heads_and_dim = {
            "query_heads": attention.query_heads,
            "key_heads": attention.key_heads,
            "head_dim": attention.head_dim,
        }
        self._add(attention.rotary, count, tokens=tokens, **heads_and_dim)
        self._decode(attention, heads_and_dim, count)
        self._prefill(attention.kind, attention.window, {**heads_and_dim, "value_dim": attention.head_dim}, count)
        self._linear(tokens, query, hidden, count, bias=attention.output_bias)

    def _decode(self, attention: Attention, axes: dict[str, int], count: int) -> None:
        lengths = self._batch.decode_context_lengths
        if lengths:
            seen = sum(min(length, attention.window or length) for length in lengths)
            self._add(f"{attention.kind}_decode", count, sequences=len(lengths), context_tokens=seen, **axes)

    def _prefill(self, kind: str, window: int | None, axes: dict[str, int], count: int) -> None:
        """One call per chunk: engines join them in one, with the same work."""
        for chunk, before in self._batch.prefill_chunks:
            context = chunk + before
            seen = min(window or context, context)
            kept = min(context, chunk + seen - 1)
            self._add(f"{kind}_prefill", count, tokens=chunk, context_tokens=kept, window=seen, **axes)

    def _latent_attention(self, attention: LatentAttention, count: int) -> None:
        """Prompts are read with keys and values expanded from the latent ones; decoding works on the latent ones, with
        the expansion absorbed into the query and the answer (DeepSeek-V2, section 2.1.2).
        """
        model, tokens, heads = self._model, self._batch.tokens, attention.query_heads
        if attention.query_rank is None:
            self._linear(tokens, model.hidden, heads * attention.key_dim, count)
        else:
            self._linear(tokens, model.hidden, attention.query_rank, count, bias=attention.bias)
            self._add(str(model.norm), count, tokens=tokens, hidden=attention.query_rank)
            self._linear(tokens, attention.query_rank, heads * attention.key_dim, count)
        self._linear(tokens, model.hidden, attention.latent_dim + attention.rotary_dim, count, bias=attention.bias)
        self._add(str(model.norm), count, tokens=tokens, hidden=attention.latent_dim)
        rotary = {"query_heads": heads, "key_heads": 1, "head_dim": attention.rotary_dim}
        self._add("interleaved_rotary_embedding", count, tokens=tokens, **rotary)
        self._latent_prefill(attention, count)
        self._latent_decode(attention, count)
        self._linear(tokens, heads * attention.value_dim, model.hidden, count, bias=attention.bias)

    def _latent_prefill(self, attention: LatentAttention, count: int) -> None:
        heads = attention.query_heads
        for chunk, before in self._batch.prefill_chunks:
            expanded = heads * (attention.plain_dim + attention.value_dim)
            self._linear(chunk + before, attention.latent_dim, expanded, count)
        axes = {
            "query_heads": heads,
            "key_heads": heads,
            "head_dim": attention.key_dim,
            "value_dim": attention.value_dim,
        }
        self._prefill("attention", None, axes, count)

    def _latent_decode(self, attention: LatentAttention, count: int) -> None:
        lengths, heads = self._batch.decode_context_lengths, attention.query_heads
        if not lengths:
            return
        sequences = len(lengths)
        self._head_linear(sequences, heads, attention.plain_dim, attention.latent_dim, count)
        self._add(
            "latent_attention_decode",
            count,
            sequences=sequences,
            context_tokens=sum(lengths),
            query_heads=heads,
            latent_dim=attention.latent_dim,
            rotary_dim=attention.rotary_dim,
        )
        self._head_linear(sequences, heads, attention.latent_dim, attention.value_dim, count)

    def _head_linear(self, tokens: int, heads: int, in_features: int, out_features: int, count: int) -> None:
        self._add("head_linear", count, tokens=tokens, heads=heads, in_features=in_features, out_features=out_features)

    def _dense(self, block: Dense, count: int) -> None:
        tokens, hidden = self._batch.tokens, self._model.hidden
        for width in [2 * block.intermediate] if self._packed else [block.intermediate] * 2:
            self._linear(tokens, hidden, width, count, bias=block.bias)
        self._add(str(block.gate), count, tokens=tokens, intermediate=block.intermediate)
        self._linear(tokens, block.intermediate, hidden, count, bias=block.bias)

    def _experts(self, block: Experts, count: int) -> None:
        tokens, hidden = self._batch.tokens, self._model.hidden
        dtype = block.router_dtype or self._model.dtype
        self._linear(tokens, hidden, block.experts, count, bias=block.bias, plain=True, dtype=dtype)
        chosen = {"experts": block.experts, "experts_per_token": block.per_token}
        self._add(block.routing, count, dtype, tokens=tokens, **chosen)
        self._grouped_linear(block, hidden, 2 * block.intermediate, count)
        self._add(str(block.gate), count, tokens=tokens * block.per_token, intermediate=block.intermediate)
        self._grouped_linear(block, block.intermediate, hidden, count)
        self._add("expert_sum", count, tokens=tokens, experts_per_token=block.per_token, hidden=hidden)
        if block.shared is not None:
            self._dense(block.shared, count)
            if block.shared_gate:
                self._linear(tokens, hidden, 1, count, plain=True)
            join = "sigmoid_gated_add" if block.shared_gate else "residual_add"
            self._add(join, count, tokens=tokens, hidden=hidden)

    def _grouped_linear(self, block: Experts, in_features: int, out_features: int, count: int) -> None:
        name = "grouped_linear_bias" if block.bias else "grouped_linear"
        self._weighted(
            name,
            count,
            self._quantisation(experts=True),
            rows=self._batch.tokens * block.per_token,
            experts=block.experts,
            experts_per_token=block.per_token,
            in_features=in_features,
            out_features=out_features,
        )

    def _linear(
        self,
        tokens: int,
        in_features: int,
        out_features: int,
        count: int = 1,
        *,
        bias: bool = False,
        plain: bool = False,
        dtype: str = "",
    ) -> None:
        """`plain` ones are never quantised."""
        name = "linear_bias" if bias else "skinny_linear"
        axes = {"tokens": tokens, "in_features": in_features, "out_features": out_features}
        if plain:
            self._add(name, count, dtype, **axes)
        else:
            self._weighted(name, count, self._quantisation(experts=False), **axes)

    def _quantisation(self, *, experts: bool) -> Quantisation | None:
        how = self._model.quantisation
        return None if how is None or (how.experts_only and not experts) else how

    def _weighted(self, operator: str, count: int, stored: Quantisation | None, /, **axes: int) -> None:
        """Weights that are stored in fewer bits make another operator of it."""
        if stored is None:
            self._add(operator, count, **axes)
        else:
            self._add(vocabulary.quantised(operator, stored.method), count, **axes, weight_bits=stored.bits)

    def _add(self, operator: str, count: int = 1, dtype: str = "", /, **axes: int) -> None:
        self._found.append(OperatorCall(operator, axes, dtype or self._model.dtype, count))
