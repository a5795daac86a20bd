"""Who waits for a provider is told when it changes, and not over and over."""

from __future__ import annotations

import pytest

from cli import watch
from cli.watch import Watch


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split("search   ")[1] for line in capsys.readouterr().err.splitlines()]


def test_agents_that_wait_are_told_when_their_number_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    shown = Watch()
    shown.operator("rms_norm", "float32", 60.0, 4)
    for agents in (0, 3, 3, 2, 0, 1):
        shown.waiting(agents, "a: 503" if agents else "")
    assert told(capsys)[1:] == ["rms_norm float32: agents that wait for their provider: 3 (a: 503)"]
    now_s += watch.WAITING_REPEAT_S
    shown.waiting(0, "")
    assert told(capsys) == ["rms_norm float32: agents that wait for their provider: 0"]


def test_those_that_wait_at_the_end_are_told_if_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Watch()
    shown.operator("rms_norm", "float32", 60.0, 4)
    shown.waiting(8, "", at_the_end=True)
    shown.waiting(0, "", at_the_end=True)
    assert told(capsys)[1:] == ["rms_norm float32: agents that waited for their provider at the end: 8"]
