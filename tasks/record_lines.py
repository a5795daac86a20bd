"""A file of records, one JSON line each, that is only ever appended to; what was appended survives a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Generic, TypeVar

from gristmill import records
from gristmill.errors import MalformedRecordError

R = TypeVar("R")


class RecordLines(Generic[R]):
    """For one process at a time. A torn last line (the process died in the write) is cut off when the file is opened.
    Nothing is made before there is something to keep.

    Raises:
        MalformedRecordError: a line is damaged; the message names it.
    """

    def __init__(self, path: Path, record_type: type[R]) -> None:
        self._path = path
        self.found = tuple(read(path, record_type))
        """What earlier processes appended, in order."""
        self._cut_torn_line()

    def append(self, record: R) -> None:
        """Returns once the line is on disk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(records.canonical_json(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _cut_torn_line(self) -> None:
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self._path.open("r+b") as file:
                file.truncate(whole)


def read(path: Path, record_type: type[R]) -> list[R]:
    """The whole lines, also while another process appends; nothing is changed.

    Raises:
        MalformedRecordError: a line is damaged; the message names it.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    return [
        _parse(line, path.name, number, record_type) for number, line in enumerate(whole.split(b"\n")[:-1], start=1)
    ]


def _parse(line: bytes, name: str, number: int, record_type: Any) -> Any:
    try:
        return records.parse(record_type, line, f"{name} line {number}")
    except MalformedRecordError as error:
        raise MalformedRecordError(f"{error}; delete {name} to start this search anew") from None
