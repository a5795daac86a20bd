"""vLLM's layers as operators: the forwards of the classes that stand in for them, and what attaches these to dispatch.

Nothing here imports vLLM: `vllm.register` puts the forwards before the engine's own classes, so that a layer that is
not attached, or left to the engine, runs the engine's code.

Shapes: H hidden.
"""

from __future__ import annotations

import types
from collections.abc import Callable
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

PACKED = "the engine packs its weights for oneDNN when they are loaded and keeps no others"
COMPILED = "the engine's own compiler took it over"
Call = Callable[..., tuple[Any, ...]]


class NormForward:
    """Of `RMSNorm`: with and without the addition of a residual before it."""

    plain: Call | None = None
    added: Call | None = None
    weight: Any

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        plain, added = self.plain, self.added
        if plain is None or added is None:
            return super().forward(x, residual)  # type: ignore[misc]
        return plain(x, self.weight)[0] if residual is None else added(x, residual, self.weight)


class ActivationForward:
    """Of `SiluAndMul`, which takes gate and up in one tensor."""

    gated: Call | None = None

    def forward(self, x: Tensor) -> Any:
        gated = self.gated
        if gated is None:
            return super().forward(x)  # type: ignore[misc]
        half = x.shape[-1] // 2
        return gated(x[..., :half], x[..., half:])[0]


def attach(model: nn.Module, dispatcher: Dispatcher, sampler: Sampler | None = None) -> Attachment:
    """Hooks the layers of a loaded model that stand in for the engine's.

    Raises:
        EngineError: it is on an accelerator or of another dtype, has no such layer, or is attached already.
    """
    _check(model)
    attachment = Attachment(dispatcher, sampler)
    for module in model.modules():
        if isinstance(module, NormForward):
            _hook_norm(attachment, module)
    for module, intermediate, dtype in activations(model, lambda one: isinstance(one, ActivationForward)):
        _hook_activation(attachment, module, intermediate, dtype)
    attachment.leave(model, PACKED)
    if any(isinstance(module, ActivationForward) and "gated" not in module.__dict__ for module in model.modules()):
        attachment.left.setdefault(ACTIVATION, WIDTH_UNKNOWN)
    return attachment


def _check(model: nn.Module) -> None:
    parameters = list(model.parameters())
    layers = [module for module in model.modules() if isinstance(module, NormForward | ActivationForward)]
    if any(parameter.device.type != "cpu" for parameter in parameters):
        raise EngineError(
            "vLLM model on an accelerator: this adapter runs C ABI kernels on CPU tensors; use vLLM's CPU build"
        )
    if not layers:
        raise EngineError(
            f"{type(model).__name__}: has no RMSNorm or SiluAndMul that the adapter stands in for; it was built "
            "before the plugin was loaded, or uses layers of its own"
        )
    if any(name in layer.__dict__ for layer in layers for name in ("plain", "gated")):
        raise EngineError("vLLM model: is attached already; detach the earlier attachment first")


def _left_to_compiler(attachment: Attachment, operators: tuple[str, ...], module: Any) -> bool:
    """Whether the engine fuses this layer into its graphs; `custom_ops` is its own switch for that."""
    if module.enabled():
        return False
    for operator in operators:
        attachment.left[operator] = f"{COMPILED}; start it with custom_ops +{type(module).name} to keep the call"
    return True


def _hook_norm(attachment: Attachment, module: Any) -> None:
    if _left_to_compiler(attachment, NORMS, module):
        return
    if not module.has_weight or module.variance_size_override is not None or module.weight.dtype not in DTYPES:
        for name in NORMS:
            attachment.left[name] = f"{type(module).__name__} of {module.weight.dtype}, or over a part of a row"
        return
    plain, added = norm_hooks(attachment, module, module._forward_method, _norm_of)
    attachment.hook(module, "plain", plain.call, plain)
    attachment.hook(module, "added", added.call, added)


def _norm_of(weight_H: Tensor, eps: float) -> types.SimpleNamespace:
    """What the engine's own code reads of a layer, with another weight."""
    return types.SimpleNamespace(
        weight=weight_H, variance_epsilon=eps, variance_size_override=None, pass_weight=True, pass_weight_add=True
    )


def _hook_activation(attachment: Attachment, module: Any, intermediate: int, dtype: Any) -> None:
    if _left_to_compiler(attachment, (ACTIVATION,), module):
        return
    if dtype not in DTYPES:
        attachment.left[ACTIVATION] = f"activations of {dtype}"
        return
    gated = activation_hook(attachment, intermediate, dtype)
    attachment.hook(module, "gated", gated.call, gated)
