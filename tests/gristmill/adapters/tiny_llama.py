"""A tiny model put together as engines' Llamas are, from whichever layers are given: stand-ins, or an engine's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gristmill.adapters.attached import Attached
from tests.gristmill.adapters.adapter_contract import Subject

LAYERS, HIDDEN, INTERMEDIATE = 2, 64, 96


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


def subject(
    norm: Callable[[int], nn.Module], activation: Callable[[], nn.Module], attach: Callable[..., Attached]
) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = TinyModel(norm, activation).requires_grad_(False)

    def run(of: nn.Module, tokens: int) -> Tensor:
        generator = torch.Generator().manual_seed(tokens)
        with torch.no_grad():
            return of(torch.randn((tokens, HIDDEN), generator=generator))

    calls = {"rms_norm": 2, "fused_add_rms_norm": 2 * LAYERS, "silu_and_mul": LAYERS}
    return Subject(model, lambda *arguments: attach(model, *arguments), run, calls)
