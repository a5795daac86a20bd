"""What agents that cost something proposed, from the moment it came: no answer is lost, whatever ends the search.

A proposal whose verdict is in the journal is done with. The others are judged first when the search goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.workload import Workload
from kernels.candidate import Candidate
from tasks import record_lines
from tasks.journal import Journal, task_key
from tasks.record_lines import RecordLines

FILE_NAME = "proposals.jsonl"
"""In a search's folder."""


@dataclass(frozen=True)
class Proposal:
    """One line: a candidate came in, or the search ended before it was judged."""

    task: str
    """See `tasks.journal.task_key`."""
    candidate: Candidate
    unjudged: str = ""
    """Why it has no verdict, as of this line; empty while it waits for one."""


class ProposalRecord:
    """Thread-safe. Every method returns once what it was told is on disk."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._lines = RecordLines(path, Proposal)
        self._latest = {proposal.task: proposal for proposal in self._lines.found}

    def add(self, candidate: Candidate, workloads: Sequence[Workload]) -> None:
        """It came in, and waits."""
        self._append(Proposal(task_key(candidate, workloads), candidate))

    def leave(self, candidate: Candidate, workloads: Sequence[Workload], reason: str) -> None:
        """It will not be judged in this life of the search."""
        self._append(Proposal(task_key(candidate, workloads), candidate, reason))

    def unjudged(self, journal: Journal, workloads: Sequence[Workload]) -> tuple[Proposal, ...]:
        """What has no verdict on these workloads, in the order in which it came."""
        with self._lock:
            proposals = list(self._latest.values())
        return tuple(
            one
            for one in proposals
            if one.candidate.operator == workloads[0].operator
            and one.task == task_key(one.candidate, workloads)
            and journal.find(one.candidate, workloads) is None
        )

    def _append(self, proposal: Proposal) -> None:
        with self._lock:
            if self._latest.get(proposal.task) != proposal:
                self._lines.append(proposal)
                self._latest[proposal.task] = proposal


def read(path: Path) -> list[Proposal]:
    """The lines of a record, also while a search appends to it; nothing is changed. See `record_lines.read`."""
    return record_lines.read(path, Proposal)
