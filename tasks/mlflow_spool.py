"""The spool between a search and MLflow: records on disk first, so that an outage costs a search nothing.

One file per search, JSON lines, each fsynced before the search goes on; only the search's own process appends. Beside
it stands how many bytes have reached MLflow. A line may reach it twice, never zero times: whoever sends is idempotent.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from agents.episode import Episode
from gristmill import records
from kernels.candidate import Candidate
from kernels.verdict import Verdict


@dataclass(frozen=True)
class SearchStart:
    """The first line: which search this is."""

    search_id: str
    experiment: str
    started_ms: int
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchTrial:
    """One judged candidate."""

    step: int
    recorded_ms: int
    candidate: Candidate
    verdict: Verdict


@dataclass(frozen=True)
class SearchEpisode:
    """How candidates came about, or why none did."""

    recorded_ms: int
    episode: Episode


@dataclass(frozen=True)
class SearchEnd:
    """The last line of a search that ended by itself."""

    ended_ms: int
    summary: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SpoolLine:
    """Exactly one of the four."""

    start: SearchStart | None = None
    trial: SearchTrial | None = None
    episode: SearchEpisode | None = None
    end: SearchEnd | None = None


class Spool:
    """The file of one search. Holds an exclusive lock from `open` to `close`.

    A torn last line, from a process that died in the write, is cut off when the spool is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._drained_path = path.with_suffix(".drained")
        self._file: BinaryIO | None = None

    def open(self, *, create: bool = True, wait_s: float = 0.0) -> bool:
        """Whether the lock was free, or became so in time, and the file is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not create and not self.path.exists():
            return False
        deadline = time.monotonic() + wait_s
        while (file := self._locked()) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        self._file = file
        self._cut_torn_line()
        return True

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def append(self, line: SpoolLine) -> None:
        """Returns once the line is on disk."""
        assert self._file is not None
        self._file.write(records.canonical_json(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def lines(self, start: int = 0) -> Iterator[tuple[SpoolLine, int]]:
        """The whole lines from a byte offset on, each with the offset behind it."""
        with self.path.open("rb") as file:
            file.seek(start)
            for number, content in enumerate(file, start=1):
                if not content.endswith(b"\n"):
                    return
                start += len(content)
                yield records.parse(SpoolLine, content, f"{self.path.name} line {number}"), start

    def drained(self) -> int:
        """How many bytes have reached MLflow."""
        try:
            return int(self._drained_path.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def mark_drained(self, offset: int) -> None:
        """Not fsynced: losing it only means sending lines again."""
        draft = self._drained_path.with_suffix(".draft")
        draft.write_text(str(offset))
        draft.replace(self._drained_path)

    def remove(self) -> None:
        """Once everything is in MLflow."""
        self.path.unlink(missing_ok=True)
        self._drained_path.unlink(missing_ok=True)

    def _locked(self) -> BinaryIO | None:
        """The file, under its lock; None while another holds it. That one may have removed it, so look again."""
        file = self.path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        file.close()
        return None

    def _cut_torn_line(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        if self.drained() > whole:
            self.mark_drained(0)
