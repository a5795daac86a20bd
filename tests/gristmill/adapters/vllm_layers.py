"""A tiny model put together as vLLM's Llama is, from whichever layers are given: stand-ins, or its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gristmill.adapters.vllm_operators import ActivationForward, NormForward, attach
from tests.gristmill.adapters.adapter_contract import Subject

LAYERS, HIDDEN, INTERMEDIATE = 2, 64, 96


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


class DownProjection(nn.Linear):
    params_dtype = torch.float32

    @property
    def input_size_per_partition(self) -> int:
        return self.in_features


class Layer(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(HIDDEN), norm(HIDDEN)
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
        self.act_fn = activation()
        self.down_proj = DownProjection(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.down_proj(self.act_fn(self.gate_up_proj(x))), residual


class TinyModel(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(norm, activation) for _ in range(LAYERS))
        self.head_norm = norm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        first, residual = x, None
        for layer in self.layers:
            x, residual = layer(x, residual)
        x, _ = self.layers[0].input_layernorm(x, residual)
        return self.head_norm(x) + first


def subject(norm: Callable[[int], nn.Module], activation: Callable[[], nn.Module]) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = TinyModel(norm, activation).requires_grad_(False)

    def run(of: nn.Module, tokens: int) -> Tensor:
        generator = torch.Generator().manual_seed(tokens)
        with torch.no_grad():
            return of(torch.randn((tokens, HIDDEN), generator=generator))

    calls = {"rms_norm": 2, "fused_add_rms_norm": 2 * LAYERS, "silu_and_mul": LAYERS}
    return Subject(model, lambda *arguments: attach(model, *arguments), run, calls)
