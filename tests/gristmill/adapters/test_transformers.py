"""The transformers adapter: bitwise the engine without tables, the same tokens with them, nothing left after detach."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from gristmill.adapters.transformers import attach
from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.serving.model import ModelShape, build_model

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
LAYERS = 2


def generated(model: Any, ids_BS: torch.Tensor, count: int) -> Any:
    return model.generate(ids_BS, max_new_tokens=count, do_sample=False)


def logits_of(model: Any, ids_BS: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(ids_BS).logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 7), (3, 5)])
def test_without_tables_outputs_are_bitwise_the_engines(tiny_model: Any, dtype: str, batch: int, length: int) -> None:
    model = tiny_model.to(getattr(torch, dtype))
    ids_BS = torch.randint(0, 128, (batch, length), generator=torch.Generator().manual_seed(1))
    plain, plain_tokens = logits_of(model, ids_BS), generated(model, ids_BS, 6)
    attachment = attach(model, Dispatcher(environ={}), Sampler(period=1))
    assert torch.equal(logits_of(model, ids_BS), plain)
    assert torch.equal(generated(model, ids_BS, 6), plain_tokens)
    probabilities = attachment.softmax(plain[:, -1].contiguous())
    assert torch.equal(probabilities, torch.softmax(plain[:, -1], dim=-1))
    chosen = plain[:, -1].topk(64).values
    assert torch.equal(attachment.softmax(chosen), torch.softmax(chosen, dim=-1))


def test_kernels_serve_and_tokens_stay(tiny_model: Any, make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    ids_BS = torch.randint(0, 128, (2, 5), generator=torch.Generator().manual_seed(2))
    plain, plain_tokens = logits_of(tiny_model, ids_BS), generated(tiny_model, ids_BS, 8)
    dispatcher = Dispatcher(environ={}, settings=DispatchSettings(shadow_every=5))
    attach(tiny_model, dispatcher)
    operators = ("rms_norm", "skinny_linear", "rotary_embedding")
    assert not dispatcher.stage(make_generation(1, *(make_entry(name, 1, 64) for name in operators)))
    dispatcher.step_boundary()
    torch.testing.assert_close(logits_of(tiny_model, ids_BS), plain, rtol=1e-4, atol=1e-5)
    before = {e["operator"]: e["hits"] for e in dispatcher.status()["entries"]}
    # rotary refuses here: one row of positions for two sequences is not one per token
    assert before == {"rms_norm": LAYERS + 1, "skinny_linear": 7 * LAYERS + 1, "rotary_embedding": 0}
    assert torch.equal(generated(tiny_model, ids_BS, 8), plain_tokens)
    assert torch.equal(generated(tiny_model, ids_BS[:1], 8)[0, 5:], plain_tokens[0, 5:])
    after = {e["operator"]: e for e in dispatcher.status()["entries"]}
    assert after["rotary_embedding"]["hits"] == 2 * 8 * LAYERS  # generate gives each sequence a row of its own
    assert all(e["shadow_checks"] and not e["mismatches"] for e in after.values())


def test_detach_restores_everything(tiny_model: Any) -> None:
    before = [dict(module.__dict__) for module in tiny_model.modules()]
    module_globals = dict(modeling_llama.__dict__)
    attachment = attach(tiny_model, Dispatcher(environ={}))
    assert any("forward" in module.__dict__ for module in tiny_model.modules())
    attachment.detach()
    assert [dict(module.__dict__) for module in tiny_model.modules()] == before
    assert dict(modeling_llama.__dict__) == module_globals
    attach(tiny_model, Dispatcher(environ={})).detach()


def test_sampler_counts_what_a_forward_calls(tiny_model: Any) -> None:
    sampler = Sampler()
    attach(tiny_model, Dispatcher(environ={}), sampler)
    for _ in range(3):
        logits_of(tiny_model, torch.zeros((2, 5), dtype=torch.long))
    counted = {(s.operator, *sorted(s.axes.items())): s.calls for s in sampler.flush().samples}
    tokens = ("tokens", 10)

    def linear(outs: int, ins: int) -> tuple[Any, ...]:
        return ("skinny_linear", ("in_features", ins), ("out_features", outs), tokens)

    assert counted == {
        ("rms_norm", ("hidden", 64), tokens): 3 * (LAYERS + 1),
        ("fused_add_rms_norm", ("hidden", 64), tokens): 3 * LAYERS,
        ("silu_and_mul", ("intermediate", 96), tokens): 3 * LAYERS,
        ("rotary_embedding", ("head_dim", 16), ("key_heads", 2), ("query_heads", 4), tokens): 3 * LAYERS,
        linear(64, 64): 3 * LAYERS * 2,
        linear(32, 64): 3 * LAYERS * 2,
        linear(96, 64): 3 * LAYERS * 2,
        linear(64, 96): 3 * LAYERS,
        linear(128, 64): 3,
    }


def test_a_compiled_model_keeps_every_call_and_follows_a_swap(
    tiny_model: Any, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    ids_BS = torch.randint(0, 128, (1, 5), generator=torch.Generator().manual_seed(3))
    plain = logits_of(tiny_model, ids_BS)
    dispatcher, sampler = Dispatcher(environ={}), Sampler()
    attach(tiny_model, dispatcher, sampler)
    torch.compiler.reset()
    compiled = torch.compile(tiny_model, fullgraph=True, backend="aot_eager")
    assert torch.equal(logits_of(compiled, ids_BS), plain)
    calls = {name: timed.calls for name, timed in sampler.totals().items()}
    assert calls == {
        "rms_norm.float32": LAYERS + 1,
        "fused_add_rms_norm.float32": LAYERS,
        "silu_and_mul.float32": LAYERS,
        "rotary_embedding.float32": LAYERS,
        "skinny_linear.float32": 7 * LAYERS + 1,
    }
    assert not dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 64), make_entry("skinny_linear", 1, 64)))
    dispatcher.step_boundary()
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(logits_of(compiled, ids_BS), plain, rtol=1e-4, atol=1e-5)
    hits = {entry["operator"]: entry["hits"] for entry in dispatcher.status()["entries"]}
    assert hits == {"rms_norm": LAYERS + 1, "skinny_linear": 7 * LAYERS + 1}


def test_gradients_flow_as_before(tiny_model: Any, make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    tiny_model.requires_grad_(True)
    dispatcher = Dispatcher(environ={})
    attach(tiny_model, dispatcher)
    dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 64)))
    dispatcher.step_boundary()
    tiny_model(torch.zeros((1, 4), dtype=torch.long)).logits.sum().backward()
    assert all(p.grad is not None for p in tiny_model.parameters())


@pytest.mark.parametrize("version", ["4.57.1", "5.19.0", "6.0.0"])
def test_other_versions_are_refused(tiny_model: Any, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(EngineError, match=version):
        attach(tiny_model, Dispatcher(environ={}))
    assert not any("forward" in module.__dict__ for module in tiny_model.modules())


def test_other_models_are_refused(tiny_model: Any) -> None:
    with pytest.raises(EngineError, match="LlamaModel"):
        attach(tiny_model.model, Dispatcher(environ={}))
    with pytest.raises(EngineError, match="float64"):
        attach(build_model(ModelShape(1, 16, 16, 1, 1, 16, 16)).double(), Dispatcher(environ={}))
    attach(tiny_model, Dispatcher(environ={}))
    with pytest.raises(EngineError, match="detach"):
        attach(tiny_model, Dispatcher(environ={}))


def test_a_copy_of_an_attached_model_is_the_engines_and_computes_with_its_own_weights(tiny_model: Any) -> None:
    ids_BS = torch.randint(0, 128, (2, 5), generator=torch.Generator().manual_seed(3))
    plain = logits_of(tiny_model, ids_BS)
    attachment = attach(tiny_model, Dispatcher(environ={}))
    copied = copy.deepcopy(tiny_model)
    assert torch.equal(logits_of(copied, ids_BS), plain)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.25)
    assert torch.equal(logits_of(tiny_model, ids_BS), plain)
    changed = logits_of(copied, ids_BS)
    assert not torch.equal(changed, plain)
    attach(copied, Dispatcher(environ={}))  # nothing is replaced in it yet
    assert torch.equal(logits_of(copied, ids_BS), changed)
    attachment.detach()
    assert not any("__deepcopy__" in module.__dict__ for module in tiny_model.modules())
