"""Operators of modules that nobody has listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.models.recognition import Recognition, TracedCall, snake
from kernels.models.recording import record, record_program


class LocalNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(hidden) + 0.5)

    def forward(self, x_1TH: Tensor) -> Tensor:
        return self.scale * (x_1TH * torch.rsqrt(x_1TH.pow(2).mean(-1, keepdim=True) + 1e-5))


class Oddity(nn.Module):
    def forward(self, x_1TH: Tensor) -> Tensor:
        return torch.sin(x_1TH) * x_1TH


class Block(nn.Module):
    def __init__(self, hidden: int = 24, wide: int = 40) -> None:
        super().__init__()
        self.norm = LocalNorm(hidden)
        self.up, self.gate = nn.Linear(hidden, wide, bias=False), nn.Linear(hidden, wide, bias=False)
        self.down, self.odd = nn.Linear(wide, hidden), Oddity()

    def forward(self, x_1TH: Tensor, residual_1TH: Tensor) -> tuple[Tensor, Tensor]:
        total_1TH = x_1TH + residual_1TH
        normed_1TH = self.norm(total_1TH)
        return self.odd(self.down(functional.silu(self.gate(normed_1TH)) * self.up(normed_1TH))), total_1TH


def _block() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return Block().eval(), (torch.randn(1, 7, 24, generator=generator), torch.randn(1, 7, 24, generator=generator))


WANTED = {
    "fused_add_rms_norm float32 tokens=7 hidden=24",
    "skinny_linear float32 tokens=7 in_features=24 out_features=40",
    "silu_and_mul float32 tokens=7 intermediate=40",
    "linear_bias float32 tokens=7 in_features=40 out_features=24",
    "oddity float32 rows=7 columns=24",
}


def _labels(calls: list[TracedCall]) -> set[str]:
    return {traced.call.label for traced in calls}


def test_operators_are_told_by_what_they_compute_whatever_modules_are_called() -> None:
    module, arguments = _block()
    calls = Recognition(record(module, arguments)).calls()
    assert _labels(calls) == WANTED
    assert [traced.module for traced in calls if not traced.known] == ["odd"]


def test_an_exported_program_has_the_same_operators(tmp_path: Path) -> None:
    module, arguments = _block()
    path = tmp_path / "block.pt2"
    torch.export.save(torch.export.export(module, arguments), path)
    assert _labels(Recognition(record_program(torch.export.load(path))).calls()) == WANTED


def test_a_norm_with_another_formula_is_not_taken_for_the_one_that_is_known() -> None:
    class Off(LocalNorm):
        def forward(self, x_1TH: Tensor) -> Tensor:
            return self.scale * (x_1TH * torch.rsqrt(x_1TH.abs().mean(-1, keepdim=True) + 1e-5))

    (call,) = Recognition(record(Off(24), (torch.randn(1, 7, 24),))).calls()
    assert not call.known
    assert call.call.operator == "off"


def test_a_module_that_is_called_like_an_operator_and_is_none_gets_another_name() -> None:
    class RMSNorm(nn.Module):
        def forward(self, x_1TH: Tensor) -> Tensor:
            return torch.digamma(torch.softmax(torch.sin(x_1TH), -1))

    (call,) = Recognition(record(RMSNorm(), (torch.randn(1, 7, 24),))).calls()
    assert call.call.operator == "other_rms_norm"


def test_two_things_that_a_module_does_have_two_names() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Linear(24, 16, bias=False)

        def forward(self, x_1TH: Tensor) -> Tensor:
            return torch.cos(self.down(torch.sin(x_1TH)))

    calls = Recognition(record(Two(), (torch.randn(1, 7, 24),))).calls()
    assert [traced.call.operator for traced in calls] == ["two", "skinny_linear", "two_2"]


def test_what_was_overwritten_since_is_not_judged_by_its_new_value() -> None:
    class Careless(nn.Module):
        def forward(self, x_1TH: Tensor) -> Tensor:
            y_1TH = functional.silu(x_1TH) * x_1TH.flip(-1)
            x_1TH.zero_()
            return y_1TH

    calls = Recognition(record(Careless(), (torch.randn(1, 7, 24),))).calls()
    assert "silu_and_mul" not in {traced.call.operator for traced in calls}


def test_hooks_are_gone_after_a_recording_that_failed() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken")

    hooks = nn.modules.module._global_forward_pre_hooks
    before = len(hooks)
    with pytest.raises(ValueError, match="broken"):
        record(Broken(), (torch.ones(1),))
    assert len(hooks) == before


def test_names_of_classes_become_names_of_operators() -> None:
    assert [snake(name) for name in ("Gemma3RMSNorm", "GELUTanh", "MLP", "")] == [
        "gemma3_rms_norm",
        "gelu_tanh",
        "mlp",
        "operator",
    ]
