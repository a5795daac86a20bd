"""The adapter for Llama-architecture models of Hugging Face transformers.

`attach` replaces forwards on the instances of one model; classes and modules of transformers stay as they are. Each
replaced forward asks the dispatcher for a route and otherwise runs the engine's own code, so that without a kernel
table outputs are bitwise those of the unpatched model.

Shapes: B batch, S sequence, T = B * S tokens, H hidden, I intermediate, K in features, N out features or query heads,
M key heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler

if TYPE_CHECKING:
    from torch import Tensor

OLDEST_VERSION = (5, 20)
NEWEST_MAJOR = 5
DTYPES = (torch.float32, torch.bfloat16)
REPLACED = ("forward", "__deepcopy__")
"""What an attached module has of its own."""
dense_like = functools.partial(torch.empty_like, memory_format=torch.contiguous_format)


class Attachment(Instruments):
    """A patched model. `softmax` is for the engine's own sampling loop; `detach` restores every forward."""

    def __init__(self, dispatcher: Dispatcher, sampler: Sampler | None) -> None:
        super().__init__(dispatcher, sampler)
        self.dispatcher = dispatcher
        self.softmax: Callable[[Tensor], Tensor] = lambda logits_BV: torch.softmax(logits_BV, dim=-1)
        self._patched: list[nn.Module] = []

    def replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """Gives one module instance a forward of its own. A copy of it has the engine's."""
        module.__dict__.update(forward=forward, __deepcopy__=functools.partial(_engines_copy, module))
        self._patched.append(module)

    def detach(self) -> None:
        """Removes every replaced forward; the model is as it was."""
        for module in self._patched:
            for name in REPLACED:
                module.__dict__.pop(name, None)
        self._patched.clear()


def _engines_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """As `copy.deepcopy` makes it, but for what was replaced, which would compute with the original's weights."""
    copied = memo[id(module)] = module.__new__(type(module))
    state = {name: value for name, value in module.__dict__.items() if name not in REPLACED}
    copied.__setstate__(copy.deepcopy(state, memo))  # type: ignore[no-untyped-call,unused-ignore]
    return copied


def attach(model: Any, dispatcher: Dispatcher, sampler: Sampler | None = None) -> Attachment:
    """Patches a `LlamaForCausalLM` in place.

    Raises:
        EngineError: another version of transformers, another architecture, dtype or device, or a model that is
            already attached. Nothing has been patched then.
    """
    llama = _checked_llama_module()
    _check_model(model, llama)
    attachment = Attachment(dispatcher, sampler)
    config, dtype = model.config, model.dtype
    for module in model.modules():
        if type(module) is llama.LlamaRMSNorm:
            _patch_norm(attachment, module)
        elif type(module) is nn.Linear and module.bias is None:
            _patch_linear(attachment, module)
        elif type(module) is llama.LlamaMLP and config.hidden_act in ("silu", "swish"):
            _patch_mlp(attachment, module, dtype)
        elif type(module) is llama.LlamaAttention:
            _patch_attention(attachment, module, llama, dtype)
        elif type(module) is llama.LlamaDecoderLayer:
            _patch_layer(attachment, module)
    _offer_softmax(attachment, config.vocab_size, dtype)
    return attachment


def _checked_llama_module() -> Any:
    version = importlib.metadata.version("transformers")
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < OLDEST_VERSION or found[0] > NEWEST_MAJOR:
        raise EngineError(
            f"transformers {version}: the adapter knows {'.'.join(map(str, OLDEST_VERSION))} up to "
            f"{NEWEST_MAJOR}.x; install one of these"
        )
    from transformers.models.llama import modeling_llama

    layer = set(inspect.signature(inspect.unwrap(modeling_llama.LlamaDecoderLayer.forward)).parameters)
    attention = inspect.unwrap(modeling_llama.LlamaAttention.forward).__code__.co_names
    if "position_embeddings" not in layer or "apply_rotary_pos_emb" not in attention:
        raise EngineError(
            f"transformers {version}: its Llama layers are built differently from what the adapter "
            "replaces; install a version from 5.20 on"
        )
    return modeling_llama


def _check_model(model: Any, llama: Any) -> None:
    if type(model) is not llama.LlamaForCausalLM:
        raise EngineError(f"{type(model).__name__}: the adapter patches LlamaForCausalLM only; attach such a model")
    if model.dtype not in DTYPES or any(p.dtype is not model.dtype for p in model.parameters()):
        raise EngineError(f"model of {model.dtype}: expected all parameters in float32 or all in bfloat16")
    if any(p.device.type != "cpu" for p in model.parameters()):
        raise EngineError("model on an accelerator: this adapter runs C ABI kernels on CPU tensors; move it to the CPU")
    if any("forward" in module.__dict__ for module in model.modules()):
        raise EngineError("model: a forward is already replaced; detach the earlier attachment first")


def _patch_norm(attachment: Attachment, module: Any) -> None:
    weight_H, eps, own = module.weight, module.variance_epsilon, module.forward
    hidden = weight_H.shape[0]
    norm = type(module).forward

    def engine(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
        return (norm(types.SimpleNamespace(weight=weight_H, variance_epsilon=eps), x_TH),)

    site = attachment.dispatcher.site("rms_norm", weight_H.dtype, {"hidden": hidden}, (eps,), engine)
    site.add_weight(weight_H)
    call = Hook(attachment, site, lambda x, _: (dense_like(x),), lambda x, _: (own(x),)).call

    def forward(hidden_states: Tensor) -> Tensor:
        return call(hidden_states, module.weight)[0]

    attachment.replace(module, forward)


def _patch_linear(attachment: Attachment, module: nn.Linear) -> None:
    own, in_features, out_features = module.forward, module.in_features, module.out_features

    def engine(x_TK: Tensor, weight_NK: Tensor) -> tuple[Tensor, ...]:
        return (functional.linear(x_TK, weight_NK),)

    axes = {"in_features": in_features, "out_features": out_features}
    site = attachment.dispatcher.site("skinny_linear", module.weight.dtype, axes, (), engine)
    site.add_weight(module.weight)
    call = Hook(attachment, site, site.allocate, lambda x, _: (own(x),)).call

    def forward(x: Tensor) -> Tensor:
        return call(x, module.weight)[0]

    attachment.replace(module, forward)


def _patch_mlp(attachment: Attachment, module: Any, dtype: torch.dtype) -> None:
    intermediate, act = module.gate_proj.out_features, module.act_fn
    gate_proj, up_proj, down_proj = module.gate_proj, module.up_proj, module.down_proj

    def engine(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
        return (act(gate_TI) * up_TI,)

    site = attachment.dispatcher.site("silu_and_mul", dtype, {"intermediate": intermediate}, (), engine)
    call = Hook(attachment, site, lambda gate, _: (dense_like(gate),), engine).call

    def forward(x: Tensor) -> Any:
        return down_proj(call(gate_proj(x), up_proj(x))[0])

    attachment.replace(module, forward)


def _patch_attention(attachment: Attachment, module: Any, llama: Any, dtype: torch.dtype) -> None:
    """Runs the engine's own attention code with one global exchanged: the rotary embedding."""
    own_rotary = llama.apply_rotary_pos_emb
    heads, key_heads, head_dim = module.config.num_attention_heads, module.config.num_key_value_heads, module.head_dim

    def engine(q_TND: Tensor, k_TMD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> tuple[Tensor, ...]:
        return tuple(own_rotary(q_TND, k_TMD, cos_TD, sin_TD))

    axes = {"query_heads": heads, "key_heads": key_heads, "head_dim": head_dim}
    site = attachment.dispatcher.site("rotary_embedding", dtype, axes, (), engine)

    def own(q_BSND: Tensor, k_BSMD: Tensor, cos_BSD: Tensor, sin_BSD: Tensor) -> tuple[Tensor, ...]:
        q_BNSD, k_BMSD = own_rotary(q_BSND.transpose(1, 2), k_BSMD.transpose(1, 2), cos_BSD, sin_BSD)
        return q_BNSD.transpose(1, 2), k_BMSD.transpose(1, 2)

    call = Hook(attachment, site, lambda q, k, *_: (dense_like(q), dense_like(k)), own).call

    def rotary(q_BNSD: Tensor, k_BMSD: Tensor, cos_BSD: Tensor, sin_BSD: Tensor) -> tuple[Tensor, Tensor]:
        batch = q_BNSD.shape[0]
        # one row of positions for a whole batch is expanded; kernels refuse that, because they read one per token
        cos_BSD, sin_BSD = cos_BSD.expand(batch, -1, -1), sin_BSD.expand(batch, -1, -1)
        q_BSND, k_BSMD = call(q_BNSD.transpose(1, 2), k_BMSD.transpose(1, 2), cos_BSD, sin_BSD)
        return q_BSND.transpose(1, 2), k_BSMD.transpose(1, 2)

    raw = inspect.unwrap(type(module).forward)
    names = {**raw.__globals__, "apply_rotary_pos_emb": rotary}
    del names["__name__"]  # by which torch.compile would look the globals up, and find the engine's own
    patched = types.FunctionType(
        raw.__code__,
        names,
        raw.__name__,
        raw.__defaults__,
        raw.__closure__,
    )
    patched.__kwdefaults__ = raw.__kwdefaults__
    attachment.replace(module, types.MethodType(patched, module))


def _patch_layer(attachment: Attachment, module: Any) -> None:
    """The engine's decoder layer, with the first residual addition and the norm after it as one operator."""
    norm = module.post_attention_layernorm
    weight_H, eps = norm.weight, norm.variance_epsilon
    hidden = weight_H.shape[0]
    norm_forward = type(norm).forward

    def engine(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
        sum_TH = residual_TH + x_TH
        return norm_forward(types.SimpleNamespace(weight=weight_H, variance_epsilon=eps), sum_TH), sum_TH

    site = attachment.dispatcher.site("fused_add_rms_norm", weight_H.dtype, {"hidden": hidden}, (eps,), engine)
    site.add_weight(weight_H)

    def add_and_norm(x: Tensor, residual: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        total = residual + x
        return norm_forward(norm, total), total

    call = Hook(attachment, site, lambda x, residual, _: (dense_like(x), dense_like(residual)), add_and_norm).call
    input_norm, attention, mlp = module.input_layernorm, module.self_attn, module.mlp

    def forward(hidden_states: Tensor, **kwargs: Any) -> Any:
        residual = hidden_states
        attended, _ = attention(hidden_states=input_norm(hidden_states), **kwargs)
        normed, residual = call(attended, residual, norm.weight)
        return residual + mlp(normed)

    attachment.replace(module, forward)


def _offer_softmax(attachment: Attachment, vocabulary: int, dtype: torch.dtype) -> None:
    def engine(x_RC: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(x_RC, dim=-1),)

    site = attachment.dispatcher.site("softmax", dtype, {"columns": vocabulary}, (), engine)
    call = Hook(attachment, site, lambda x: (dense_like(x),), engine).call

    def softmax(logits_BV: Tensor) -> Tensor:
        whole = logits_BV.dim() > 0 and logits_BV.shape[-1] == vocabulary  # and not a choice of tokens
        return call(logits_BV)[0] if whole else torch.softmax(logits_BV, dim=-1)

    attachment.softmax = softmax
