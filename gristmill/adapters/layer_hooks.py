"""Layers that engines share in kind, a norm with an optional residual and a gated activation, as hooks on instances.

Nothing here imports an engine: an adapter says how its layers are called, and what its own code reads of them.

Shapes: T tokens, H hidden, I intermediate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from gristmill.hook import Hook, Instruments

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.dispatch import Dispatcher
    from gristmill.sampler import Sampler

DTYPES = (torch.float32, torch.bfloat16)
NORMS = ("rms_norm", "fused_add_rms_norm")
ACTIVATION = "silu_and_mul"
IN_PLACE = "the engine's kernel looks angles up by position and works in place, which no table's kernel does"
WIDTH_UNKNOWN = "no projection beside the activation tells its width"
_ABSENT = object()


class Attachment(Instruments):
    """See `attached.Attached`."""

    def __init__(self, dispatcher: Dispatcher, sampler: Sampler | None) -> None:
        super().__init__(dispatcher, sampler)
        self.dispatcher = dispatcher
        self.left: dict[str, str] = {}
        """Operators that stay with the engine, and why."""
        self._replaced: list[tuple[nn.Module, str, Any]] = []
        self._hooks: list[Hook] = []

    def hook(self, module: nn.Module, name: str, call: Callable[..., Any], *hooks: Hook) -> None:
        """Gives one layer an attribute of its own that meets these hooks."""
        self._replaced.append((module, name, module.__dict__.get(name, _ABSENT)))
        module.__dict__[name] = call
        self._hooks += hooks

    def detach(self) -> None:
        for module, name, earlier in reversed(self._replaced):
            if earlier is _ABSENT:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = earlier
        self._replaced.clear()

    def leave(self, model: nn.Module, linear: str) -> None:
        """Tells of what no adapter takes from an engine of this kind; `linear` says why its projections are left."""
        for module in model.modules():
            name = type(module).__name__
            if "RotaryEmbedding" in name:
                self.left.setdefault("rotary_embedding", IN_PLACE)
            elif name.endswith("ParallelLinear"):
                self.left.setdefault("skinny_linear", linear)


def norm_hooks(
    attachment: Attachment, module: Any, own: Callable[..., Any], reduced: Callable[[Tensor, float], Any]
) -> tuple[Hook, Hook]:
    """Of a norm: without a residual, and with one added before it.

    Args:
        own: what the engine runs for this layer.
        reduced: an object with this weight and epsilon on which the layer's `forward_native` can be run.
    """
    weight_H, native = module.weight, type(module).forward_native

    def engine(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
        return (native(reduced(weight_H, eps), x_TH),)

    def engine_added(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, ...]:
        return tuple(native(reduced(weight_H, eps), x_TH, residual_TH))

    axes, eps, dispatcher = {"hidden": weight_H.shape[0]}, module.variance_epsilon, attachment.dispatcher
    plain = dispatcher.site(NORMS[0], weight_H.dtype, axes, (eps,), engine)
    added = dispatcher.site(NORMS[1], weight_H.dtype, axes, (eps,), engine_added)
    for site in (plain, added):
        site.add_weight(weight_H)
    return (
        Hook(attachment, plain, lambda x, _: (_dense(x),), lambda x, _: (own(x),)),
        Hook(attachment, added, lambda x, r, _: (_dense(x), _dense(r)), lambda x, r, _: tuple(own(x, r))),
    )


def activations(model: nn.Module, wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, int, torch.dtype]]:
    """Each wanted activation with its width, which only the projection after it knows."""
    for parent in model.modules():
        activation, down = getattr(parent, "act_fn", None), getattr(parent, "down_proj", None)
        width = getattr(down, "input_size_per_partition", None)
        if isinstance(width, int) and wanted(activation):
            yield activation, width, down.params_dtype  # type: ignore[union-attr]


def activation_hook(attachment: Attachment, intermediate: int, dtype: torch.dtype) -> Hook:
    """Of an activation that takes gate and up in one tensor: the hook takes them apart."""

    def engine(gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, ...]:
        return (functional.silu(gate_TI) * up_TI,)

    site = attachment.dispatcher.site(ACTIVATION, dtype, {"intermediate": intermediate}, (), engine)
    return Hook(attachment, site, lambda gate, _: (_dense(gate),), engine)


def _dense(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)
