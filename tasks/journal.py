"""The journal of a search: every verdict, appended and fsynced, so that a killed search judges nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill import records
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import record_lines
from tasks.record_lines import RecordLines


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
    """Append-only JSON lines; see `RecordLines`. For one thread."""

    def __init__(self, path: Path) -> None:
        self._lines = RecordLines(path, JournalEntry)
        self._entries = {entry.task: entry for entry in self._lines.found}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict | None:
        """The verdict of an earlier life of this search, if there is one."""
        entry = self._entries.get(task_key(candidate, workloads))
        return entry.verdict if entry else None

    def append(self, candidate: Candidate, verdict: Verdict, workloads: Sequence[Workload]) -> None:
        """Returns once the entry is on disk."""
        entry = JournalEntry(task_key(candidate, workloads), candidate, verdict)
        self._lines.append(entry)
        self._entries[entry.task] = entry

    def entries(self) -> tuple[JournalEntry, ...]:
        """In the order they were judged."""
        return tuple(self._entries.values())

    def entries_on(self, workloads: Sequence[Workload]) -> tuple[JournalEntry, ...]:
        """Those that were judged on exactly these workloads, in order."""
        operator = workloads[0].operator
        mine = (entry for entry in self._entries.values() if entry.candidate.operator == operator)
        return tuple(entry for entry in mine if entry.task == task_key(entry.candidate, workloads))


def read(path: Path) -> list[JournalEntry]:
    """The entries of a journal, also while a search appends to it; nothing is changed. See `record_lines.read`."""
    return record_lines.read(path, JournalEntry)
