"""Progress on a terminal is one line; in a file it is a few."""

from __future__ import annotations

import io
import threading

import pytest

from cli import progress
from cli.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TERMINAL_INTERVAL_S", 0.01)
    monkeypatch.setattr(progress, "FILE_INTERVAL_S", 0.0)


def shown_on(stream: io.StringIO) -> str:
    with ProgressLine(stream) as line:
        for text in ("first", "second"):
            line.show(text)
            while text not in stream.getvalue():
                threading.Event().wait(0.01)
    return stream.getvalue()


def test_a_terminal_ends_with_an_empty_line() -> None:
    shown = shown_on(Terminal())
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")


def test_a_file_gets_lines_and_the_end() -> None:
    lines = shown_on(io.StringIO()).splitlines()
    assert lines[0].startswith("  first (") and lines[-1].startswith("  done (")


def test_a_failure_does_not_claim_to_be_done() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), ProgressLine(stream):
        _ = 1 / 0
    assert "done" not in stream.getvalue()
