"""Memory as a search that may be killed needs it: what it recalled when it began is what it recalls when it goes on.

Its own verdicts reach memory while it runs. A second life that recalled these would begin another search.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from agents.memory import Memory, Recollection
from gristmill.errors import MalformedRecordError
from gristmill.hardware import Hardware
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import recollection_file

PREFIX = "recalled-"


@dataclass(frozen=True)
class SteadyRecall:
    """See `agents.memory.Memory`. Recollections lie in the search's folder until the search has finished."""

    memory: Memory
    folder: Path

    def recall(self, operator: str, dtype: str, hardware: Hardware) -> Recollection:
        path = self.folder / f"{PREFIX}{operator}-{dtype}.json"
        with contextlib.suppress(OSError, MalformedRecordError):
            return recollection_file.read(path)
        recalled = self.memory.recall(operator, dtype, hardware)
        recollection_file.write(path, recalled)
        return recalled

    def record(self, candidate: Candidate, verdict: Verdict) -> None:
        self.memory.record(candidate, verdict)

    def search(self, query: str, limit: int = 8) -> tuple[str, ...]:
        return self.memory.search(query, limit)


def forget(search: Path) -> None:
    """Once a search has finished: one that continues it recalls anew."""
    for path in search.glob(f"{PREFIX}*.json"):
        path.unlink(missing_ok=True)
