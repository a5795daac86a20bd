"""A forked child polls, reports and locks nothing of its parent's, and does not wait for threads that it has not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gristmill import forked_child
from gristmill.directory_store import DirectoryStore
from gristmill.dispatch import Dispatcher
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.host import Host, HostEvent
from gristmill.kernel_table import TableEntry
from gristmill.member import Member
from gristmill.s3_store import Endpoint, S3Store
from gristmill.sampler import Sampler
from gristmill.spool import Flushed, Identity, Spool
from gristmill.status_report import read_reports
from tests.gristmill.forks import in_child
from tests.gristmill.test_membership import promote

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
HIDDEN = 32


def norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float = 1e-5) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (HIDDEN,), weight_H, eps),)


class Engine:
    """One norm, which is sampled and serves what a test stages."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher("stable", environ={})
        self.sampler = Sampler()
        self.site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (1e-5,), norm)
        self.weight_H = torch.rand(HIDDEN) + 0.5
        self.site.add_weight(self.weight_H)
        self.instruments = Instruments(self.dispatcher, self.sampler)
        self.hook = Hook(self.instruments, self.site, engine=norm)

    @torch.no_grad()
    def norm(self, tokens: int = 4) -> None:
        x_TH = torch.ones(tokens, HIDDEN)
        torch.testing.assert_close(self.hook.call(x_TH, self.weight_H), norm(x_TH, self.weight_H))

    def calls(self) -> int:
        return sum(one.calls for one in self.sampler.totals().values())


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_child_serves_with_the_engines_own_kernels_and_polls_nothing(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine, events, polled = Engine(), list[HostEvent](), threading.Event()
    generation = make_generation(3, make_entry("rms_norm", 1, 8))

    class Channel:
        def __init__(self) -> None:
            self.polls = 0

        def poll(self) -> Generation | None:
            self.polls += 1
            polled.set()
            return generation if self.polls == 1 else None

        def last_good(self) -> Generation | None:
            return None

    channel = Channel()
    host = Host(channel, engine.dispatcher, events.append, interval_s=3600.0)
    host.start()
    assert polled.wait(60)
    until(lambda: host.boundary() is not None)
    engine.norm()
    before = channel.polls

    def child() -> Any:
        known = len(events)
        for _ in range(2):
            host.poll_once()
            host.boundary()
            engine.norm()
            engine.norm(7)
        engine.dispatcher.stage(make_generation(4))
        host.start()
        host.stop()
        told = [(event.kind, event.detail["reason"]) for event in events[known:]]
        return channel.polls, engine.dispatcher.hits(), engine.dispatcher.generation.number, told

    polls, hits, number, told = in_child(child)
    assert (polls, hits, number) == (before, {}, 0)
    assert [kind for kind, _ in told] == ["warning"] and "was forked off" in told[0][1]
    engine.norm()
    assert sum(engine.dispatcher.hits().values()) == 2 and engine.dispatcher.generation.number == 3
    host.stop()


def test_a_child_waits_for_no_lock_that_a_thread_of_its_parents_holds(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    engine = Engine()
    host = Host(SimpleNamespace(poll=lambda: None, last_good=lambda: None), engine.dispatcher, lambda event: None)
    host.start()
    engine.dispatcher.stage(make_generation(3, make_entry("rms_norm", 1, 8)))
    engine.dispatcher.step_boundary()
    engine.norm()
    spool = Spool(DirectoryStore(Path()), Identity("f", "m", "h"), engine.sampler, Path("nowhere"))
    held, done = threading.Event(), threading.Event()
    locks = [engine.dispatcher._lock, engine.sampler._lock, spool._lock, spool._requests._lock]

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait(120)
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)

    def child() -> Any:
        host.boundary()
        engine.norm()
        engine.dispatcher.site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), norm)
        with engine.dispatcher.capture():
            engine.norm()
        engine.sampler.boundary()
        spool.add_request(1, 1, 0)
        return engine.calls(), spool.flush()

    try:
        assert in_child(child) == (2, Flushed((), 0, 0, 0, 0, ""))
    finally:
        done.set()
        thread.join()
    assert engine.calls() == 1
    host.stop()


def test_a_child_makes_connections_of_its_own() -> None:
    store = S3Store(Endpoint("bucket", "", "http://127.0.0.1:1", "us-east-1", "key", "secret"))
    reader, writer = store._reader, store._writer

    def child() -> tuple[bool, bool]:
        return store._reader is reader, store._writer is writer

    assert in_child(child) == (False, False)
    assert (store._reader, store._writer) == (reader, writer)


def test_a_child_says_nothing_in_its_parents_name(tmp_path: Path, compile_kernel: Callable[..., Path]) -> None:
    membership, at, number = promote(tmp_path, compile_kernel("rms_norm").read_bytes())
    engine = Engine()
    member = Member(membership, engine.dispatcher, engine.instruments, environ={})
    store = DirectoryStore(tmp_path / "store")
    with member:
        until(lambda: member.boundary() is not None)
        until(lambda: any(one.report and one.report.generation == number for one in read_reports(store, at)))

        def child() -> Any:
            with member:
                member.boundary()
            return member.dispatcher.generation.number

        member._host.stop()
        before = {key: store.get(key) for key in store.list("reports/")}
        assert in_child(child) == 0
        assert {key: store.get(key) for key in store.list("reports/")} == before
    (received,) = read_reports(store, at)
    assert received.report is not None and received.report.closing and received.report.generation == number


def test_one_that_fails_keeps_no_other_from_being_told(capfd: pytest.CaptureFixture[str]) -> None:
    class Failing:
        def forked(self) -> None:
            raise ZeroDivisionError("in the child")

    class Noting:
        def __init__(self) -> None:
            self.told = 0

        def forked(self) -> None:
            self.told += 1

    heirs = [Noting(), Failing(), Noting()]
    for heir in heirs:
        forked_child.tell(heir)
    assert in_child(lambda: [heir.told for heir in heirs if isinstance(heir, Noting)]) == [1, 1]
    assert "ZeroDivisionError: in the child" in capfd.readouterr().err
    assert [heir.told for heir in heirs if isinstance(heir, Noting)] == [0, 0]
