"""The host stages, reports, survives a failing channel, and knows a rollback when it sees one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill import host as host_module
from gristmill.dispatch import Dispatcher
from gristmill.errors import StoreUnreachableError
from gristmill.generation import Generation
from gristmill.host import Host, HostEvent
from gristmill.kernel_table import TableEntry
from gristmill.poll_schedule import PollSchedule
from gristmill.staging import Refusal

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]


class ScriptedChannel:
    """A channel whose polls are written down beforehand; an exception in the script is raised."""

    def __init__(self, *answers: Generation | Exception | None, cached: Generation | None = None) -> None:
        self._answers = list(answers)
        self._cached = cached
        self.exhausted = threading.Event()

    def poll(self) -> Generation | None:
        if not self._answers:
            self.exhausted.set()
            return None
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def last_good(self) -> Generation | None:
        return self._cached


@pytest.fixture
def dispatcher() -> Dispatcher:
    made = Dispatcher(environ={})
    made.site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), lambda x, w, eps: (torch.rms_norm(x, (8,), w, eps),))
    return made


def run(dispatcher: Dispatcher, channel: ScriptedChannel, polls: int) -> list[HostEvent]:
    """Polls and passes a boundary in turn, as a quick engine would."""
    events: list[HostEvent] = []
    host = Host(channel, dispatcher, events.append)
    for _ in range(polls):
        host.poll_once()
        host.boundary()
    return events


def test_swap_then_rollback(dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    first, second = make_entry("rms_norm", 1, 8), make_entry("rms_norm", 1, 8)
    channel = ScriptedChannel(
        make_generation(1, first), None, make_generation(2, second), make_generation(3, first), make_generation(4)
    )
    events = run(dispatcher, channel, 5)
    assert [(e.kind, e.generation) for e in events] == [
        ("staged", 1),
        ("swap", 1),
        ("staged", 2),
        ("swap", 2),
        ("staged", 3),
        ("rollback", 3),
        ("staged", 4),
        ("rollback", 4),
    ]
    assert dispatcher.status()["entries"] == []


def test_another_state_of_the_same_number_is_a_new_one(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    """After a stolen key was replaced, numbers start anew."""
    first, second = make_generation(1, make_entry("rms_norm", 1, 8)), make_generation(1, make_entry("rms_norm", 1, 8))
    events = run(dispatcher, ScriptedChannel(first, first, second), 3)
    assert [e.kind for e in events] == ["staged", "swap", "staged", "swap"]
    assert dispatcher.generation == second


def test_a_refusal_is_told_and_the_rest_is_served(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    bad, good = make_entry("rms_norm", 1, 8, "WRONG_AFTER=0"), make_entry("rms_norm", 9, 16)
    events = run(dispatcher, ScriptedChannel(make_generation(1, bad, good)), 1)
    assert [(e.kind, e.generation) for e in events] == [("refusal", 1), ("staged", 1), ("swap", 1)]
    assert events[0].detail["candidate"] == bad[0].candidate
    assert "elements differ" in events[0].detail["reason"]
    assert events[2].detail["entries"] == 1


def test_a_generation_that_contradicts_itself_is_not_staged(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    channel = ScriptedChannel(
        make_generation(1, make_entry("rms_norm", 1, 8)),
        make_generation(2, make_entry("rms_norm", 1, 8), make_entry("rms_norm", 8, 9)),
    )
    events = run(dispatcher, channel, 2)
    assert [(e.kind, e.generation) for e in events] == [("staged", 1), ("swap", 1), ("refusal", 2)]
    assert (events[2].detail["operator"], events[2].detail["candidate"]) == ("rms_norm", "*")
    assert dispatcher.generation.number == 1


def test_a_failing_channel_is_told_once_per_reason(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    down = StoreUnreachableError("store s3://x: nothing answers")
    channel = ScriptedChannel(
        down, down, StoreUnreachableError("another"), make_generation(1, make_entry("rms_norm", 1, 8)), down
    )
    events = run(dispatcher, channel, 5)
    assert [(e.kind, e.detail.get("reason", "")) for e in events] == [
        ("poll_failed", str(down)),
        ("poll_failed", "another"),
        ("staged", ""),
        ("swap", ""),
        ("poll_failed", str(down)),
    ]


def test_a_bug_in_the_channel_is_not_swallowed(dispatcher: Dispatcher) -> None:
    with pytest.raises(ZeroDivisionError):
        run(dispatcher, ScriptedChannel(ZeroDivisionError()), 1)


def test_a_bug_is_told_and_does_not_end_the_polling(dispatcher: Dispatcher) -> None:
    channel = ScriptedChannel(ZeroDivisionError("oops"))
    events: list[HostEvent] = []
    host = Host(channel, dispatcher, events.append, interval_s=0.01)
    host.start()
    assert channel.exhausted.wait(10)
    host.stop()
    assert [event.kind for event in events] == ["poll_failed"]
    assert "ZeroDivisionError: oops" in events[0].detail["reason"]


def test_the_thread_starts_offline_and_stops(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    events: list[HostEvent] = []
    cached = make_generation(7, make_entry("rms_norm", 1, 8))
    channel = ScriptedChannel(StoreUnreachableError("away"), cached=cached)
    host = Host(channel, dispatcher, events.append, interval_s=0.01)
    host.start()
    assert channel.exhausted.wait(20)
    host.stop()
    host.boundary()
    assert [e.kind for e in events] == ["poll_failed", "staged", "swap"]
    assert dispatcher.generation.number == 7


def test_what_was_taken_back_while_the_host_was_away_never_runs_again(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    cached, bad = make_generation(7, make_entry("rms_norm", 1, 8)), make_generation(8, make_entry("rms_norm", 1, 8))
    channel = ScriptedChannel(cached, StoreUnreachableError("away"), cached=bad)
    assert [(e.kind, e.generation) for e in run(dispatcher, channel, 3)] == [
        ("staged", 7),
        ("swap", 7),
        ("poll_failed", 7),
    ]


def test_a_cache_that_is_not_current_serves_until_it_is(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    cached, newer = make_generation(7, make_entry("rms_norm", 1, 8)), make_generation(8, make_entry("rms_norm", 1, 8))
    channel = ScriptedChannel(None, None, newer, cached=cached)
    events = run(dispatcher, channel, 3)
    assert [(e.kind, e.generation) for e in events] == [("staged", 7), ("swap", 7), ("staged", 8), ("swap", 8)]


def test_a_kernel_that_was_denied_is_loaded_once_it_is_not(
    make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    entry = make_entry("rms_norm", 1, 8)
    environ = {"GRISTMILL_KILL": f"deny={entry[0].object.sha256}"}
    dispatcher = Dispatcher(environ=environ)
    dispatcher.site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), lambda x, w, eps: (torch.rms_norm(x, (8,), w),))
    channel = ScriptedChannel(make_generation(1, entry))
    host = Host(channel, dispatcher, lambda event: None)
    for _ in range(2):
        host.poll_once()
        host.boundary()
    assert dispatcher.status()["entries"] == [] and not dispatcher.lifted
    environ.clear()
    host.poll_once()
    host.boundary()
    assert [one["enabled"] for one in dispatcher.status()["entries"]] == [True] and not dispatcher.lifted


def test_warnings_are_told_once_each(dispatcher: Dispatcher) -> None:
    texts = ["look here"]
    events: list[HostEvent] = []
    host = Host(ScriptedChannel(), dispatcher, events.append, warnings=lambda: [texts.pop()] if texts else [])
    host.poll_once()
    host.poll_once()
    assert [(event.kind, event.detail["reason"]) for event in events] == [("warning", "look here")]


def test_a_kill_switch_that_means_nothing_is_told_once(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    environ = {"GRISTMILL_KILL": "of"}
    misspelt = Dispatcher(environ=environ)
    events: list[HostEvent] = []
    host = Host(ScriptedChannel(make_generation(1, make_entry("rms_norm", 1, 8))), misspelt, events.append)

    def warnings() -> list[str]:
        for _ in range(3):
            host.poll_once()
            host.boundary()
        return [event.detail["reason"] for event in events if event.kind == "warning"]

    (told,) = warnings()
    assert "found 'of', expected off" in told
    environ["GRISTMILL_KILL"] = "baseline-only"
    assert len(warnings()) == 1
    environ["GRISTMILL_KILL"] = "deny=rmsnorm"
    assert "'deny=rmsnorm'" in warnings()[1]


def test_stopping_does_not_wait_for_a_poll_that_hangs(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "STOP_S", 0.01)
    polling, released = threading.Event(), threading.Event()

    class Hanging(ScriptedChannel):
        def poll(self) -> Generation | None:
            polling.set()
            released.wait()
            return None

    host = Host(Hanging(), dispatcher, lambda event: None, interval_s=0.01)
    host.start()
    assert polling.wait(20)
    host.stop()
    released.set()
    assert host.problem == ""


def test_off_means_no_polls(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    dispatcher = Dispatcher(environ={"GRISTMILL_KILL": "off"})
    assert run(dispatcher, ScriptedChannel(make_generation(1, make_entry("rms_norm", 1, 8))), 1) == []


def test_reports_after_a_swap_and_survives_a_store_that_refuses_them(
    dispatcher: Dispatcher, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    events: list[HostEvent] = []
    reported: list[int] = []

    def report() -> None:
        reported.append(dispatcher.generation.number)
        if len(reported) == 1:
            raise StoreUnreachableError("away")

    channel = ScriptedChannel(make_generation(1, make_entry("rms_norm", 1, 8)))
    host = Host(channel, dispatcher, events.append, report=report, report_s=1e9)
    for _ in range(4):
        host.poll_once()
        host.boundary()
    assert reported == [0, 1]
    assert [e.kind for e in events] == ["staged", "poll_failed", "swap"]


def test_reports_although_the_channel_fails_and_says_why(dispatcher: Dispatcher) -> None:
    down = StoreUnreachableError("away")
    reported: list[str] = []
    events: list[HostEvent] = []
    host = Host(
        ScriptedChannel(down, down),
        dispatcher,
        events.append,
        report=lambda: reported.append(host.problem),
        report_s=0.0,
    )
    for _ in range(3):
        host.poll_once()
    assert reported == ["away", "away", ""]
    assert [e.kind for e in events] == ["poll_failed"], "told once, although reporting succeeds in between"


class BrokenStaging(Dispatcher):
    """Cannot stage a generation of this number while it is broken."""

    broken = 0

    def stage(self, generation: Generation) -> tuple[Refusal, ...]:
        if generation.number == self.broken:
            raise RuntimeError("out of memory")
        return super().stage(generation)


def test_what_could_not_be_staged_is_not_forgotten(make_entry: MakeEntry, make_generation: MakeGeneration) -> None:
    """A channel hands a generation out once; the host is not well before it serves it."""
    dispatcher = BrokenStaging(environ={})
    dispatcher.broken = 2
    events: list[HostEvent] = []
    channel = ScriptedChannel(
        make_generation(1, make_entry("rms_norm", 1, 8)),
        make_generation(2),
        None,
        StoreUnreachableError("gone"),
        None,
    )
    host = Host(channel, dispatcher, events.append)
    host.poll_once()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of memory"):
            host.poll_once()
    dispatcher.broken = 0
    host.poll_once()
    host.boundary()
    assert dispatcher.generation.number == 2


def test_the_thread_outlives_a_cache_that_cannot_be_staged(
    make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(PollSchedule, "first_s", lambda self: 0.0)
    monkeypatch.setattr(PollSchedule, "next_s", lambda self, failed: 0.001)
    dispatcher = BrokenStaging(environ={})
    dispatcher.broken = 1
    cached = make_generation(1, make_entry("rms_norm", 1, 8))
    channel = ScriptedChannel(StoreUnreachableError("away"), make_generation(2), cached=cached)
    told: list[HostEvent] = []
    host = Host(channel, dispatcher, told.append)
    host.start()
    try:
        assert channel.exhausted.wait(30)
    finally:
        host.stop()
    host.boundary()
    assert dispatcher.generation.number == 2 and host.problem == ""
    assert [event.kind for event in told] == ["poll_failed", "poll_failed", "staged", "swap"]
    assert "out of memory" in told[1].detail["reason"] and "RuntimeError" in capsys.readouterr().err
