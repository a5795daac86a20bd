"""A report counts what one generation served in this process: nothing of the one before, nothing twice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gristmill.dispatch import Dispatcher
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import TableEntry
from gristmill.reporter import REPORTED_REFUSALS, Reporter
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.status_report import StatusReport

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
NAME = "rms_norm.float32"


class Engine:
    """Calls one operator, and swaps between its steps."""

    def __init__(self, environ: dict[str, str] | None = None, shadow_every: int = 1) -> None:
        self.dispatcher = Dispatcher("auto", settings=DispatchSettings(shadow_every), environ=environ or {})
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), self.norm)
        self.sampler = Sampler(period=2)
        self.hook = Hook(Instruments(self.dispatcher, self.sampler), site)
        self.reporter = Reporter(self.dispatcher, self.sampler, "auto", "rank0")

    @staticmethod
    def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
        return (torch.rms_norm(x_TH, (8,), weight_H, eps),)

    def swap(self, generation: Generation) -> None:
        assert self.dispatcher.stage(generation) == ()
        self.dispatcher.step_boundary()
        self.reporter.swapped()

    def calls(self, *extents: int) -> None:
        with torch.no_grad():
            for extent in extents:
                x_TH, weight_H = torch.ones(extent, 8), torch.ones(8)
                self.hook.call(x_TH, weight_H)

    def status(self) -> StatusReport:
        return self.reporter.status("h" * 64)


def test_before_the_first_generation() -> None:
    engine = Engine()
    engine.calls(1, 2, 3)
    engine.reporter.decoded(5, 10)
    status = engine.status()
    assert (status.name, status.generation, status.channel, status.follows) == (f"{'h' * 64}.rank0", 0, "auto", "auto")
    assert (status.work.of(NAME).calls, status.work.of(NAME).hits) == (3, 0)
    assert (status.work.decode_tokens, status.work.decode_ns) == (5, 10)


def test_a_swap_starts_all_counters_anew(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine(shadow_every=0)
    engine.calls(1, 2, 3)
    engine.reporter.decoded(5, 10)
    engine.swap(make_generation(1, make_entry("rms_norm", 1, 4)))
    engine.calls(1, 2, 9)
    engine.reporter.decoded(7, 11)
    first = engine.status()
    counts = first.work.of(NAME)
    assert (first.generation, first.channel) == (1, "stable")
    assert (counts.hits, counts.fallbacks, counts.calls, counts.failures) == (2, 1, 3, 0)
    assert (first.work.decode_tokens, first.work.decode_ns) == (7, 11)
    engine.swap(make_generation(2, make_entry("rms_norm", 1, 4)))
    second = engine.status()
    assert second.work.of(NAME).calls == second.work.of(NAME).hits == second.work.decode_tokens == 0
    assert second.process == first.process, "a swap is no restart"
    assert Reporter(engine.dispatcher, None, "auto").status("h").process != first.process


def test_faults_are_counted(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine(shadow_every=0)
    engine.swap(make_generation(1, make_entry("rms_norm", 1, 4, "REFUSE_AFTER=3")))
    engine.calls(*[2] * 8)
    counts = engine.status().work.of(NAME)
    assert counts.failures == 3, "then it is disabled"
    assert counts.hits + counts.fallbacks == 8 and counts.fallbacks >= 3
    engine = Engine(shadow_every=1)
    engine.swap(make_generation(1, make_entry("rms_norm", 1, 4, "WRONG_AFTER=2")))
    engine.calls(*[2] * 8)
    counts = engine.status().work.of(NAME)
    assert counts.mismatches == 1 and counts.shadow_checks >= 1


def test_a_swap_that_nobody_told_is_noticed(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    """Between the swap and `swapped` the reporting thread may come by."""
    engine = Engine(shadow_every=0)
    engine.calls(1, 2, 3)
    engine.dispatcher.stage(make_generation(4, make_entry("rms_norm", 1, 4)))
    engine.dispatcher.step_boundary()
    status = engine.status()
    assert status.generation == 4 and status.work.of(NAME).calls == 0
    engine.calls(1)
    assert engine.status().work.of(NAME).calls == 1


def test_refusals_and_the_kill_switch_are_told(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    engine = Engine({"GRISTMILL_KILL": "deny=softmax"}, shadow_every=0)
    bad = make_entry("rms_norm", 1, 4, "WRONG_AFTER=0")
    for number in range(REPORTED_REFUSALS + 2):
        engine.dispatcher.stage(make_generation(number + 1, bad))
    status = engine.status()
    assert status.kill == "deny=softmax"
    assert [refused.generation for refused in status.refusals] == list(range(3, REPORTED_REFUSALS + 3))
    assert status.refusals[0].candidate == bad[0].candidate and "differ" in status.refusals[0].reason
    assert len(engine.reporter.status("h", problem="x" * 10_000).problem) < 1000


@pytest.mark.parametrize("told", [True, False])
def test_reports_beside_a_busy_engine_never_fall(
    make_entry: MakeEntry, make_generation: MakeGeneration, told: bool
) -> None:
    """Whatever moment the reporting thread comes at, counters of one generation only grow."""
    engine = Engine(shadow_every=0)
    entry = make_entry("rms_norm", 1, 4)
    over = threading.Event()
    seen: list[StatusReport] = []

    def watch() -> None:
        while not over.is_set():
            seen.append(engine.status())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(1, 6):
        engine.dispatcher.stage(make_generation(number, entry))
        engine.dispatcher.step_boundary()
        if told:
            engine.reporter.swapped()
        engine.calls(*[1, 2, 3] * 20)
    over.set()
    watcher.join()
    seen.append(engine.status())
    for before, after in itertools.pairwise(seen):
        assert after.generation >= before.generation
        assert not after.work.has_negative
        assert after.generation > before.generation or not (after.work - before.work).has_negative
    assert seen[-1].generation == 5
