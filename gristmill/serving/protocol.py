"""What the serving process understands: one JSON object a line on standard input, one a line on standard output.

Commands carry `command` and an `id` that every answer repeats. Answers carry `event`: `ready`, `progress`, `result`,
`error`, and without an id what the host tells (`staged`, `swap`, `rollback`, `refusal`, `poll_failed`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from gristmill import records
from gristmill.errors import GristmillError, ServingError
from gristmill.traces import Request


@dataclass(frozen=True)
class ReplayCommand:
    """`replay`: serve all requests, a fixed number at a time."""

    command: str
    requests: tuple[Request, ...]
    concurrency: int = 4
    seed: int = 0
    detail: bool = False
    """Whether the result holds every step and every token, not only the summary."""
    id: str = ""


@dataclass(frozen=True)
class PairedCommand:
    """`ab`: the paired A/B at each concurrency."""

    command: str
    requests: tuple[Request, ...]
    concurrency: tuple[int, ...] = (4, 8)
    pairs: int = 20
    block_steps: int = 8
    seed: int = 0
    time_operators: bool = True
    id: str = ""


@dataclass(frozen=True)
class PlainCommand:
    """`status`, `flush` or `quit`."""

    command: str
    id: str = ""


Command = ReplayCommand | PairedCommand | PlainCommand
COMMANDS: dict[str, type[ReplayCommand] | type[PairedCommand] | type[PlainCommand]] = {
    "replay": ReplayCommand,
    "ab": PairedCommand,
    "status": PlainCommand,
    "flush": PlainCommand,
    "quit": PlainCommand,
}


def parse_command(line: str) -> Command:
    """Reads one line.

    Raises:
        ServingError: not JSON, or an unknown command.
        MalformedRecordError: a field is missing, unknown or of the wrong type.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ServingError(f"command {line[:60]!r}: not JSON ({error}); expected one object a line") from None
    name = value.get("command") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in COMMANDS:
        raise ServingError(f"command {line[:60]!r}: expected an object whose command is one of {', '.join(COMMANDS)}")
    return records.decode(COMMANDS[name], value, f"command {name}")


def command_id(line: str) -> str:
    """The id of a line that may not be a command at all; empty if it has none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    found = value.get("id", "") if isinstance(value, dict) else ""
    return found if isinstance(found, str) else ""


class LineWriter:
    """Writes answers, one whole line each, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Writes one answer; a reader that has gone is no error, the process ends by its closed input."""
        line = json.dumps({"event": event, **{name: records.encode(value) for name, value in fields.items()}})
        try:
            with self._lock:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (BrokenPipeError, ValueError):
            return


def answer(writer: LineWriter, command: Command, result_of: Callable[[Command], Any]) -> None:
    """Obeys one command and writes what came of it; what its sender can mend is an answer too."""
    try:
        result = result_of(command)
    except GristmillError as error:
        writer.write("error", id=command.id, message=str(error))
        return
    writer.write("result", id=command.id, result=result)
