"""A file of records, one JSON line each, that is only ever appended to; what was appended survives a crash.

A damaged line costs that line alone: whoever opens the file to append sets it aside in `FILE.damaged`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from gristmill import durable_file, records
from gristmill.errors import GristmillError

LOGGER = logging.getLogger(__name__)
SURROGATE = b"\\ud"
R = TypeVar("R")


class RecordLines(Generic[R]):
    """For one process at a time. Nothing is made before there is something to keep.

    When the file is opened, damaged lines are set aside, with one warning for all of them. A torn last line (the
    process died in the write) is cut off. A crash in between loses nothing: a damaged line may be set aside twice.
    """

    def __init__(self, path: Path, record_type: type[R]) -> None:
        self._path = path
        content = path.read_bytes() if path.exists() else b""
        lines = _read(content, record_type)
        self.found: tuple[R, ...] = tuple(lines.records)
        """What earlier processes appended, in order."""
        if lines.damaged:
            self._set_aside(lines.damaged)
        if content != lines.whole:
            durable_file.write(path, lines.whole)
        if lines.damaged:
            _warn(path, lines, f"set aside in {self._aside.name}")

    def append(self, record: R) -> None:
        """Returns once the line is on disk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _append(self._path, records.canonical_json(record) + b"\n")

    @property
    def _aside(self) -> Path:
        return self._path.with_name(f"{self._path.name}.damaged")

    def _set_aside(self, damaged: dict[int, bytes]) -> None:
        _append(self._aside, b"".join(line + b"\n" for line in damaged.values()))
        durable_file.sync_folder(self._aside.parent)


def read(path: Path, record_type: type[R]) -> list[R]:
    """The records of the whole lines, also while another process appends; nothing is changed.

    Damaged lines are left out, with one warning for all of them.
    """
    lines: _Lines[R] = _read(path.read_bytes() if path.exists() else b"", record_type)
    if lines.damaged:
        _warn(path, lines, "left out")
    return lines.records


@dataclass
class _Lines(Generic[R]):
    """What a file holds."""

    records: list[R] = field(default_factory=list)
    whole: bytes = b""
    """Their lines."""
    damaged: dict[int, bytes] = field(default_factory=dict)
    """Lines that are no records, by number from 1. What follows the last line's end is torn, or being written."""


def _read(content: bytes, record_type: Any) -> _Lines[Any]:
    found: _Lines[Any] = _Lines()
    whole: list[bytes] = []
    *lines, rest = content.split(b"\n")
    for number, line in enumerate([*lines, rest], start=1):
        try:
            found.records.append(_parse(line, record_type))
            whole.append(line + b"\n")
        except (GristmillError, ValueError):
            if number <= len(lines):
                found.damaged[number] = line
    found.whole = b"".join(whole)
    return found


def _parse(line: bytes, record_type: Any) -> Any:
    record = records.parse(record_type, line)
    if SURROGATE in line.lower():
        records.canonical_json(record)  # half a character can be read, and never written
    return record


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _warn(path: Path, lines: _Lines[Any], what: str) -> None:
    count, first, left = len(lines.damaged), min(lines.damaged), len(lines.records)
    which = f"line {first} is" if count == 1 else f"{count} lines (the first is line {first}) are"
    LOGGER.warning("%s/%s: %s damaged and %s; %d are whole", path.parent.name, path.name, which, what, left)
