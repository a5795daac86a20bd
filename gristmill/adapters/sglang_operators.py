"""SGLang's layers as operators: each layer is given the implementation that it would else have resolved to, hooked.

A layer of SGLang's keeps what serves it in `_forward_method`, resolved at its first call; the engine itself pins layers
there. Its own switches stand above that: a backend that is forced, and the plain layers of a graph that it compiles.
Nothing here imports SGLang.

Shapes: T tokens, H hidden, I intermediate.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from gristmill.adapters.layer_hooks import (
    ACTIVATION,
    DTYPES,
    NORMS,
    WIDTH_UNKNOWN,
    Attachment,
    activation_hook,
    activations,
    norm_hooks,
)
from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.sampler import Sampler

FORCED = "SGLANG_FORCE_FUSED_OP_BACKEND"
PROJECTIONS = "the engine chooses a method for its weights when they are loaded, and may pack them"
JOINED = "the engine's kernel takes gate and up in one tensor"
SLOT = "_forward_method"


def attach(
    model: nn.Module,
    dispatcher: Dispatcher,
    sampler: Sampler | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Attachment:
    """Hooks the layers of a loaded model.

    Raises:
        EngineError: it is on an accelerator, has no such layer, or is attached already.
    """
    _check(model)
    attachment = Attachment(dispatcher, sampler)
    attachment.leave(model, PROJECTIONS)
    if environ.get(FORCED):
        attachment.left |= dict.fromkeys((*NORMS, ACTIVATION), f"{FORCED} takes every call of theirs")
        return attachment
    for module in model.modules():
        if _is(module, "RMSNorm"):
            _hook_norm(attachment, module)
    for module, intermediate, dtype in activations(model, _is_activation):
        _hook_activation(attachment, module, intermediate, dtype)
    if any(_is_activation(module) and not _is_ours(module) for module in model.modules()):
        attachment.left.setdefault(ACTIVATION, WIDTH_UNKNOWN)
    return attachment


def _is(module: Any, name: str) -> bool:
    """A layer that resolves its implementation, and no subclass of it, which may compute something else."""
    return type(module).__name__ == name and hasattr(type(module), "_resolve_forward_method")


def _is_activation(module: Any) -> bool:
    return _is(module, "SiluAndMul")


def _is_ours(module: Any) -> bool:
    return getattr(getattr(module, SLOT, None), "__module__", "") == __name__


def _check(model: nn.Module) -> None:
    layers = [module for module in model.modules() if _is(module, "RMSNorm") or _is_activation(module)]
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        raise EngineError("SGLang model on an accelerator: this adapter runs C ABI kernels on CPU tensors; use a CPU")
    if not layers:
        raise EngineError(
            f"{type(model).__name__}: has no RMSNorm or SiluAndMul of SGLang's, so there is nothing to hook"
        )
    if any(_is_ours(layer) for layer in layers):
        raise EngineError("SGLang model: is attached already; detach the earlier attachment first")


def _own(module: Any) -> Callable[..., Any]:
    """What serves this layer, or what its first call would choose."""
    own: Callable[..., Any] = getattr(module, SLOT) or module._resolve_forward_method()
    return own


def _hook_norm(attachment: Attachment, module: Any) -> None:
    plain_form = (
        module.has_weight
        and module.weight.dtype in DTYPES
        and module.variance_size_override is None
        and module.override_orig_dtype is None
        and not module.cast_x_before_out_mul
        and not module.fp32_residual
    )
    if not plain_form:
        for name in NORMS:
            attachment.left[name] = f"RMSNorm of {module.weight.dtype}, over a part of a row, or rounded elsewhere"
        return
    own, hidden = _own(module), module.hidden_size
    plain, added = norm_hooks(attachment, module, own, lambda weight_H, eps: _norm_of(weight_H, eps, hidden))
    call_plain, call_added = plain.call, added.call

    def forward(
        x: Tensor,
        residual: Tensor | None = None,
        post_residual_addition: Tensor | None = None,
        quant_linear: Any = None,
    ) -> Any:
        if post_residual_addition is not None or quant_linear is not None:
            return own(x, residual, post_residual_addition, quant_linear)
        return call_plain(x, module.weight)[0] if residual is None else call_added(x, residual, module.weight)

    attachment.hook(module, SLOT, forward, plain, added)


def _norm_of(weight_H: Tensor, eps: float, hidden: int) -> types.SimpleNamespace:
    """What the engine's own code reads of a layer, with another weight."""
    return types.SimpleNamespace(
        weight=weight_H,
        variance_epsilon=eps,
        hidden_size=hidden,
        variance_size_override=None,
        override_orig_dtype=None,
        cast_x_before_out_mul=False,
        fp32_residual=False,
    )


def _hook_activation(attachment: Attachment, module: Any, intermediate: int, dtype: Any) -> None:
    if dtype not in DTYPES:
        attachment.left[ACTIVATION] = f"activations of {dtype}"
        return
    if getattr(_own(module), "__func__", None) is not type(module).forward_native:
        attachment.left[ACTIVATION] = JOINED
        return
    gated = activation_hook(attachment, intermediate, dtype)
    call = gated.call

    def forward(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return call(x[..., :half], x[..., half:])[0]

    attachment.hook(module, SLOT, forward, gated)
