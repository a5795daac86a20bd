"""vLLM's layers as operators: the forwards of the classes that stand in for them, and what attaches these to dispatch.

Nothing here imports vLLM: `vllm.register` puts the forwards before the engine's own classes, so that a layer that is
not attached, or left to the engine, runs the engine's code.

Shapes: T tokens, H hidden, I intermediate.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError
from gristmill.hook import Hook, Instruments

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.sampler import Sampler

DTYPES = (torch.float32, torch.bfloat16)
IN_PLACE = "the engine's kernel looks angles up by position and works in place, which no table's kernel does"
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


class Attachment(Instruments):
    """See `attached.Attached`."""

    def __init__(self, dispatcher: Dispatcher, sampler: Sampler | None) -> None:
        super().__init__(dispatcher, sampler)
        self.dispatcher = dispatcher
        self.left: dict[str, str] = {}
        """Operators that stay with the engine, and why."""
        self._hooked: list[tuple[nn.Module, str]] = []
        self._hooks: list[Hook] = []

    def hook(self, module: nn.Module, name: str, hook: Hook) -> None:
        """Lets a layer's calls meet a hook."""
        module.__dict__[name] = hook.call
        self._hooked.append((module, name))
        self._hooks.append(hook)

    def detach(self) -> None:
        for module, name in self._hooked:
            module.__dict__.pop(name, None)
        self._hooked.clear()


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
    for module, intermediate, dtype in _activations(model):
        _hook_activation(attachment, module, intermediate, dtype)
    for module in model.modules():
        name = type(module).__name__
        if "RotaryEmbedding" in name:
            attachment.left.setdefault("rotary_embedding", IN_PLACE)
        elif name.endswith("ParallelLinear"):
            attachment.left.setdefault("skinny_linear", PACKED)
        elif isinstance(module, ActivationForward) and "gated" not in module.__dict__:
            attachment.left.setdefault("silu_and_mul", "no projection beside the activation tells its width")
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
    names = ("rms_norm", "fused_add_rms_norm")
    if _left_to_compiler(attachment, names, module):
        return
    weight_H, eps = module.weight, module.variance_epsilon
    if not module.has_weight or module.variance_size_override is not None or weight_H.dtype not in DTYPES:
        for name in names:
            attachment.left[name] = f"{type(module).__name__} of {weight_H.dtype}, or over a part of a row"
        return
    own, native = module._forward_method, type(module).forward_native

    def engine(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
        return (native(_norm_of(weight_H, eps), x_TH),)

    def engine_added(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
        return tuple(native(_norm_of(weight_H, eps), x_TH, residual_TH))

    axes, dispatcher = {"hidden": weight_H.shape[0]}, attachment.dispatcher
    plain = dispatcher.site("rms_norm", weight_H.dtype, axes, (eps,), engine)
    added = dispatcher.site("fused_add_rms_norm", weight_H.dtype, axes, (eps,), engine_added)
    for site in (plain, added):
        site.add_weight(weight_H)
    attachment.hook(module, "plain", Hook(attachment, plain, lambda x, _: (_dense(x),), lambda x, _: (own(x),)))
    attachment.hook(
        module,
        "added",
        Hook(attachment, added, lambda x, r, _: (_dense(x), _dense(r)), lambda x, r, _: tuple(own(x, r))),
    )


def _norm_of(weight_H: Tensor, eps: float) -> types.SimpleNamespace:
    """What the engine's own code reads of a layer, with another weight."""
    return types.SimpleNamespace(
        weight=weight_H, variance_epsilon=eps, variance_size_override=None, pass_weight=True, pass_weight_add=True
    )


def _activations(model: nn.Module) -> Iterator[tuple[Any, int, torch.dtype]]:
    """Each activation with its width, which only the projection after it knows."""
    for parent in model.modules():
        activation, down = getattr(parent, "act_fn", None), getattr(parent, "down_proj", None)
        width = getattr(down, "input_size_per_partition", None)
        if isinstance(activation, ActivationForward) and isinstance(width, int):
            yield activation, width, down.params_dtype  # type: ignore[union-attr]


def _hook_activation(attachment: Attachment, module: Any, intermediate: int, dtype: Any) -> None:
    if _left_to_compiler(attachment, ("silu_and_mul",), module):
        return
    if dtype not in DTYPES:
        attachment.left["silu_and_mul"] = f"activations of {dtype}"
        return

    def engine(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
        return (functional.silu(gate_TI) * up_TI,)

    site = attachment.dispatcher.site("silu_and_mul", dtype, {"intermediate": intermediate}, (), engine)
    attachment.hook(module, "gated", Hook(attachment, site, lambda gate, _: (_dense(gate),), engine))


def _dense(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)
