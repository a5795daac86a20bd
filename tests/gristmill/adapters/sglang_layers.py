"""Stand-ins for the layers of SGLang that its adapter hooks: its names, and how it resolves what serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class FusedOp(nn.Module):
    """The structure of SGLang 0.5.23's `BaseFusedOp`."""

    forward_native: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self._forward_method: Any = None

    def _resolve_forward_method(self) -> Any:
        return self.forward_native

    def forward(self, *arguments: Any) -> Any:
        method = self._forward_method
        if method is None:
            method = self._forward_method = self._resolve_forward_method()
        return method(*arguments)


class RMSNorm(FusedOp):
    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, hidden))
        self.variance_epsilon, self.hidden_size, self.has_weight = eps, hidden, True
        self.variance_size_override = self.override_orig_dtype = None
        self.cast_x_before_out_mul = self.fp32_residual = False

    def forward_native(  # type: ignore[override]
        self, x: Tensor, residual: Tensor | None = None, post_residual_addition: Any = None, quant_linear: Any = None
    ) -> Any:
        total = x if residual is None else x + residual
        if post_residual_addition is not None:
            total = total + post_residual_addition
        scale = torch.rsqrt(total.pow(2).mean(dim=-1, keepdim=True) + self.variance_epsilon)
        normed = total * scale * self.weight
        return normed if residual is None else (normed, total)


class SiluAndMul(FusedOp):
    def forward_native(self, x: Tensor) -> Tensor:  # type: ignore[override]
        half = x.shape[-1] // 2
        return functional.silu(x[..., :half]) * x[..., half:]


class GemmaRMSNorm(RMSNorm):
    """Another layer that adds 1 to its weight."""
