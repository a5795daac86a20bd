"""One line of progress: rewritten in place on a terminal, repeated now and then where there is none (CI, a file)."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self, TextIO

TERMINAL_INTERVAL_S = 0.5
FILE_INTERVAL_S = 15.0


class ProgressLine:
    """Shows what is going on and for how long. Thread-safe; standard library only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._text = ""
        self._written = ""
        self._started_s = time.monotonic()
        self._last_write_s = 0.0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._ticker.join()
        if self._terminal:
            self._stream.write("\r\x1b[K")
        elif error is None:
            self._write("done")
        self._stream.flush()

    def show(self, text: str) -> None:
        """Replaces what is shown."""
        with self._lock:
            self._text = text

    def _tick(self) -> None:
        while not self._over.wait(TERMINAL_INTERVAL_S):
            due = time.monotonic() - self._last_write_s >= FILE_INTERVAL_S
            with self._lock:
                text = self._text
            if text and (self._terminal or due):
                self._write(text)

    def _write(self, text: str) -> None:
        line = f"  {text} ({time.monotonic() - self._started_s:.0f} s)"
        self._stream.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        self._stream.flush()
        self._last_write_s = time.monotonic()
