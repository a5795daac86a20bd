"""Stand-ins for the layers of vLLM that its adapter hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gristmill.adapters.vllm_operators import ActivationForward, NormForward


class PlainNorm(nn.Module):
    """The structure of vLLM 0.32's `RMSNorm`."""

    name = "rms_norm"
    on = True

    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, hidden))
        self.variance_epsilon = eps
        self.variance_size_override = None
        self.has_weight = self.pass_weight = self.pass_weight_add = True
        self._forward_method = self.forward_native

    @classmethod
    def enabled(cls) -> bool:
        return cls.on

    def forward(self, *arguments: Any) -> Any:
        return self._forward_method(*arguments)

    def forward_native(self, x: Tensor, residual: Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        scale = torch.rsqrt(total.pow(2).mean(dim=-1, keepdim=True) + self.variance_epsilon)
        normed = total * scale * self.weight.data
        return normed if residual is None else (normed, total)


class PlainActivation(nn.Module):
    """The structure of vLLM 0.32's `SiluAndMul`."""

    name = "silu_and_mul"
    on = True

    def __init__(self) -> None:
        super().__init__()
        self._forward_method = self.forward_native

    @classmethod
    def enabled(cls) -> bool:
        return cls.on

    def forward(self, *arguments: Any) -> Any:
        return self._forward_method(*arguments)

    @staticmethod
    def forward_native(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return functional.silu(x[..., :half]) * x[..., half:]


class StandInNorm(NormForward, PlainNorm):
    pass


class StandInActivation(ActivationForward, PlainActivation):
    pass
