"""A serving process from the outside: started, commanded in JSON lines, ended. It dies with us: its input closes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gristmill import records
from gristmill.traces import Request
from tasks.errors import ServingError

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 20.0

Event = dict[str, Any]
REFERENCE = (sys.executable, "-m", "gristmill.serving")
"""The reference engine."""


class ServingProcess:
    """One engine process. Commands block until their result; what the host tells on the way goes to `on_event`.

    Use it as a context manager, from one thread. `on_event` is called from a thread of its own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log_path: Path,
        on_event: Callable[[Event], None] = lambda event: None,
        command: Sequence[str] = REFERENCE,
        cwd: Path | None = None,
    ) -> None:
        """`command` starts the process, before its arguments."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log_path
        self._on_event = on_event
        self._answers: dict[str, queue.Queue[Event]] = {"": queue.Queue()}
        self._ids = (f"c{number}" for number in itertools.count())
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environ},
                cwd=cwd,
                text=True,
                start_new_session=True,
            )
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name="serving", daemon=True)
        self._reader.start()

    def __enter__(self) -> ServingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> Event:
        """The first status, once the model is built.

        Raises:
            ServingError: it did not come up.
        """
        return self._wait(self._answers[""], timeout_s, "start")

    def replay(self, requests: Sequence[Request], concurrency: int, seed: int = 0, *, detail: bool = False) -> Event:
        """Serves all requests; returns the summary."""
        return self._command("replay", requests=requests, concurrency=concurrency, seed=seed, detail=detail)

    def paired(
        self, requests: Sequence[Request], concurrency: Sequence[int], *, pairs: int, block_steps: int, seed: int = 0
    ) -> Event:
        """The paired A/B of kernels on and off."""
        return self._command(
            "ab", requests=requests, concurrency=concurrency, pairs=pairs, block_steps=block_steps, seed=seed
        )

    def status(self) -> Event:
        return self._command("status")

    def flush(self) -> Event:
        """Writes what was sampled so far to the spool."""
        return self._command("flush")

    def close(self) -> None:
        """Ends the process: its input closes, and it is killed if that is not enough."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it died before reading
            self._process.stdin.close()
        self._wait_or_kill()
        self._reader.join()
        self._process.stdout.close()

    def _command(self, command: str, **fields: Any) -> Event:
        number = next(self._ids)
        answers = self._answers[number] = queue.Queue()
        line = json.dumps({"command": command, "id": number, **{k: records.encode(v) for k, v in fields.items()}})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._dead(command) from None
        if self._ended.is_set():
            raise self._dead(command)
        answer = self._wait(answers, None, command)
        del self._answers[number]
        result: Event = answer["result"]
        return result

    def _wait(self, answers: queue.Queue[Event], timeout_s: float | None, what: str) -> Event:
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise ServingError(f"serving process: no answer to {what} within {timeout_s:.0f} s") from None
        if answer["event"] == "ended":
            raise self._dead(what)
        if answer["event"] == "error":
            raise ServingError(f"serving process, {what}: {answer.get('message')}")
        return answer

    def _dead(self, what: str) -> ServingError:
        self._wait_or_kill()
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        return ServingError(f"serving process ended ({self._process.returncode}) during {what}: {last}")

    def _wait_or_kill(self) -> None:
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # what an engine has spawned is of its session
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Hands answers to who waits for them. Whatever ends it, nobody waits any longer."""
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._hand_over(line)
        finally:
            self._ended.set()
            for answers in list(self._answers.values()):
                answers.put({"event": "ended"})

    def _hand_over(self, line: str) -> None:
        try:
            event: Event = json.loads(line)
            kind, number = event["event"], event.get("id") or ""
        except (ValueError, TypeError, KeyError, AttributeError):
            for answers in list(self._answers.values()):
                answers.put({"event": "error", "message": f"answered {line[:80]!r}, which is not of its protocol"})
            return
        if kind in ("result", "error", "ready") and number in self._answers:
            self._answers[number].put(event)
        else:
            self._on_event(event)
