"""The journal of a search: every verdict, appended and fsynced, so that a killed search judges nothing twice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict


@dataclass(frozen=True)
class JournalEntry:
    """One line of the journal."""

    task: str
    """What was judged against what; see `task_key`."""
    candidate: Candidate
    verdict: Verdict


def task_key(candidate: Candidate, workloads: Sequence[Workload]) -> str:
    """Identity of a judgement: the candidate and the workloads it was judged on, whatever their order."""
    return records.digest([candidate.digest, sorted(workload.digest for workload in workloads)])


class Journal:
    """Append-only JSON lines. A torn last line (the process died in the write) is cut off and judged again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._entries = {entry.task: entry for entry in read(path)}
        self._cut_torn_line()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict | None:
        """The verdict of an earlier life of this search, if there is one."""
        entry = self._entries.get(task_key(candidate, workloads))
        return entry.verdict if entry else None

    def append(self, candidate: Candidate, verdict: Verdict, workloads: Sequence[Workload]) -> None:
        """Returns once the entry is on disk."""
        entry = JournalEntry(task_key(candidate, workloads), candidate, verdict)
        with self._path.open("ab") as file:
            file.write(records.canonical_json(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._entries[entry.task] = entry

    def entries(self) -> tuple[JournalEntry, ...]:
        """In the order they were judged."""
        return tuple(self._entries.values())

    def _cut_torn_line(self) -> None:
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self._path.open("r+b") as file:
                file.truncate(whole)


def read(path: Path) -> list[JournalEntry]:
    """The whole lines of a journal, also while a search appends to it; nothing is changed.

    Raises:
        MalformedRecordError: a line is damaged; the message names it.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    return [_parse(line, path.name, number) for number, line in enumerate(whole.split(b"\n")[:-1], start=1)]


def _parse(line: bytes, name: str, number: int) -> JournalEntry:
    try:
        return records.parse(JournalEntry, line, f"{name} line {number}")
    except MalformedRecordError as error:
        raise MalformedRecordError(f"{error}; delete {name} to start this search anew") from None
