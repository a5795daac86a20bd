"""Compiled graphs keep dispatched calls: a swap needs no recompilation, and shapes are told before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gristmill.contract import CONTRACTS
from gristmill.dispatch import Dispatcher
from gristmill.generation import Generation
from gristmill.graph_operators import of, schema
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import TableEntry

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
HIDDEN = 8
AXES = {
    "rms_norm": {"hidden": 8},
    "fused_add_rms_norm": {"hidden": 8},
    "silu_and_mul": {"intermediate": 6},
    "rotary_embedding": {"query_heads": 4, "key_heads": 2, "head_dim": 6},
    "softmax": {"columns": 5},
    "skinny_linear": {"in_features": 4, "out_features": 3},
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float = 1e-5) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (x_TH.shape[-1],), weight_H, eps),)


def test_signatures() -> None:
    assert schema(CONTRACTS["rms_norm"]) == "rms_norm(Tensor x_TH, Tensor weight_H, int hook) -> Tensor"
    assert schema(CONTRACTS["fused_add_rms_norm"]).endswith("int hook) -> (Tensor, Tensor)")
    assert set(AXES) == set(CONTRACTS)


@pytest.mark.parametrize("operator", sorted(CONTRACTS))
def test_an_operator_is_what_it_tells_the_compiler(operator: str) -> None:
    """Schema, shapes, strides and aliasing, also where the engine's outputs are not dense."""
    dispatcher = Dispatcher(environ={})

    def engine(*arguments: object) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones(layout.shape[::-1]).permute(*range(len(layout.shape))[::-1]) for layout in outputs)

    site = dispatcher.site(operator, torch.float32, AXES[operator], (), engine)
    outputs = site.output_layouts(3)
    hook = Hook(Instruments(dispatcher, None), site)
    inputs = [torch.rand(layout.shape) for layout in site.input_layouts(3)]
    torch.library.opcheck(of(operator), (*inputs, hook.number))


class Model(torch.nn.Module):
    """What an adapter leaves of a model: its norm is a hook's."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(environ={})
        self.weight_H = torch.nn.Parameter(torch.rand(HIDDEN))
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (1e-5,), norm)
        self.call = Hook(Instruments(self.dispatcher, None), site).call

    def forward(self, x_TH: torch.Tensor) -> torch.Tensor:
        return self.call(x_TH * 2, self.weight_H)[0] + 1


def test_a_compiled_graph_runs_the_generation_of_the_moment(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    first, second = make_entry("rms_norm", 1, 8), make_entry("rms_norm", 1, 8)
    x_TH = torch.randn(4, HIDDEN)
    wanted_TH = norm(x_TH * 2, model.weight_H)[0] + 1
    with torch.no_grad():
        torch.testing.assert_close(compiled(x_TH), wanted_TH)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for number, entries in enumerate(((first,), (second,), (), (first,)), start=1):
                assert model.dispatcher.stage(make_generation(number, *entries)) == ()
                model.dispatcher.step_boundary()
                torch.testing.assert_close(compiled(x_TH), wanted_TH)
    assert model.dispatcher.hits() == {first[0].candidate: 2, second[0].candidate: 1}


def test_a_graph_for_every_size_looks_its_kernel_up_by_size(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    assert model.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 4))) == ()
    model.dispatcher.step_boundary()
    with torch.no_grad():
        for rows in (3, 4, 5, 6):
            assert compiled(torch.randn(rows, HIDDEN)).shape == (rows, HIDDEN)
    assert sum(model.dispatcher.hits().values()) == 2
    assert model.dispatcher.fallbacks() == {"rms_norm.float32": 2}


def test_training_compiles_the_engines_own_code() -> None:
    model = Model()
    x_TH = torch.randn(4, HIDDEN)
    torch.compile(model, fullgraph=True, backend="aot_eager")(x_TH).sum().backward()
    assert model.weight_H.grad is not None
    found_H, model.weight_H.grad = model.weight_H.grad, None
    (norm(x_TH * 2, model.weight_H)[0] + 1).sum().backward()
    torch.testing.assert_close(found_H, model.weight_H.grad)
