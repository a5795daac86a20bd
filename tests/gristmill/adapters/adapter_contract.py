"""What every engine adapter promises, run on each: bitwise the engine without tables, counted kernels with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill.adapters.attached import Attached
from gristmill.dispatch import Dispatcher
from gristmill.errors import EngineError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]


@dataclass
class Subject:
    """A float32 model of one engine. `calls` are those of one `run`, by operator."""

    model: torch.nn.Module
    attach: Callable[..., Attached]
    run: Callable[[torch.nn.Module, int], torch.Tensor]
    """The model's output for so many tokens; the same for the same number."""
    calls: dict[str, int]


class AdapterContract:
    """Subclasses give a fixture `subject`, anew for each test."""

    def test_without_tables_outputs_are_bitwise_the_engines(self, subject: Subject) -> None:
        plain = [subject.run(subject.model, tokens) for tokens in (1, 7)]
        subject.attach(Dispatcher(environ={}), Sampler(period=1))
        assert all(torch.equal(subject.run(subject.model, t), p) for t, p in zip((1, 7), plain, strict=True))

    def test_a_kernel_serves_from_the_next_step_on_and_every_hit_is_counted(
        self, subject: Subject, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        plain = subject.run(subject.model, 5)
        dispatcher = Dispatcher(environ={}, settings=DispatchSettings(shadow_every=2))
        subject.attach(dispatcher)
        assert not dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 64)))
        assert torch.equal(subject.run(subject.model, 5), plain)
        assert not any(dispatcher.hits().values())
        dispatcher.step_boundary()
        torch.testing.assert_close(subject.run(subject.model, 5), plain, rtol=1e-4, atol=1e-5)
        assert sum(dispatcher.hits().values()) == subject.calls["rms_norm"]
        assert all(not entry["mismatches"] for entry in dispatcher.status()["entries"])

    def test_outside_its_range_the_engine_serves(
        self, subject: Subject, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        plain = subject.run(subject.model, 5)
        dispatcher = Dispatcher(environ={})
        subject.attach(dispatcher)
        dispatcher.stage(make_generation(1, make_entry("rms_norm", 6, 64)))
        dispatcher.step_boundary()
        assert torch.equal(subject.run(subject.model, 5), plain)
        assert dispatcher.fallbacks()["rms_norm.float32"] == subject.calls["rms_norm"]

    def test_a_kernel_that_refuses_costs_nothing_but_itself(
        self, subject: Subject, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        plain = subject.run(subject.model, 5)
        dispatcher = Dispatcher(environ={}, settings=DispatchSettings(failures_allowed=1))
        subject.attach(dispatcher)
        dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 64, "REFUSE_AFTER=1")))
        dispatcher.step_boundary()
        assert torch.equal(subject.run(subject.model, 5), plain)
        entry = dispatcher.status()["entries"][0]
        assert (entry["hits"], entry["enabled"]) == (0, False)

    def test_switching_kernels_off_is_the_engine_bitwise(
        self, subject: Subject, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        plain = subject.run(subject.model, 5)
        environ: dict[str, str] = {}
        dispatcher = Dispatcher(environ=environ)
        subject.attach(dispatcher)
        dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 64)))
        dispatcher.step_boundary()
        environ["GRISTMILL_KILL"] = "baseline-only"
        dispatcher.step_boundary()
        assert torch.equal(subject.run(subject.model, 5), plain)
        assert not any(dispatcher.hits().values())

    def test_the_sampler_counts_every_call(self, subject: Subject) -> None:
        sampler = Sampler()
        subject.attach(Dispatcher(environ={}), sampler)
        for _ in range(3):
            subject.run(subject.model, 5)
        counted = {name.removesuffix(".float32"): total.calls for name, total in sampler.totals().items()}
        assert counted == {name: 3 * calls for name, calls in subject.calls.items()}

    def test_a_compiled_graph_keeps_its_calls_and_follows_a_swap(
        self, subject: Subject, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        plain = subject.run(subject.model, 5)
        dispatcher = Dispatcher(environ={})
        subject.attach(dispatcher)
        torch.compiler.reset()
        compiled: Any = torch.compile(subject.model, fullgraph=True, backend="aot_eager")
        assert torch.equal(subject.run(compiled, 5), plain)
        dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 64)))
        dispatcher.step_boundary()
        with torch._dynamo.config.patch(error_on_recompile=True):
            torch.testing.assert_close(subject.run(compiled, 5), plain, rtol=1e-4, atol=1e-5)
        assert sum(dispatcher.hits().values()) == subject.calls["rms_norm"]

    def test_detach_leaves_the_model_as_it_was(self, subject: Subject) -> None:
        before = [dict(module.__dict__) for module in subject.model.modules()]
        attached = subject.attach(Dispatcher(environ={}))
        assert [dict(module.__dict__) for module in subject.model.modules()] != before
        attached.detach()
        assert [dict(module.__dict__) for module in subject.model.modules()] == before

    def test_a_second_attachment_is_refused(self, subject: Subject) -> None:
        subject.attach(Dispatcher(environ={}))
        with pytest.raises(EngineError, match="detach"):
            subject.attach(Dispatcher(environ={}))
