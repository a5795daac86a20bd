"""What one agent knows of candidates: which it must not propose, and which it still owes.

Thread-safe: verdicts come in while a model thinks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from kernels.candidate import Candidate
from kernels.verdict import Verdict


class Proposals:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._owed: deque[Candidate] = deque()

    def is_known(self, candidate: Candidate) -> bool:
        """Whether it was proposed, is owed, or was judged."""
        with self._lock:
            return candidate.digest in self._known

    def what_is_known(self, candidate: Candidate) -> str:
        """What became of a known candidate, in one line."""
        with self._lock:
            return self._known.get(candidate.digest, "") or "it waits for its verdict"

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        """It was judged, whoever proposed it: it is not owed any more."""
        with self._lock:
            self._known[candidate.digest] = f"{verdict.status.value}: {verdict.reason}"
            self._owed = deque(owed for owed in self._owed if owed.digest != candidate.digest)

    def add(self, candidates: Iterable[Candidate]) -> None:
        """These are to be proposed, in this order; known ones are left out."""
        with self._lock:
            for candidate in candidates:
                if candidate.digest not in self._known:
                    self._known[candidate.digest] = ""
                    self._owed.append(candidate)

    def take(self, operator: str, dtype: str, count: int) -> list[Candidate]:
        """At most `count` of the owed ones of this operator and dtype."""
        with self._lock:
            fitting = [c for c in self._owed if (c.operator, c.domain.dtype) == (operator, dtype)][:count]
            self._owed = deque(owed for owed in self._owed if owed not in fitting)
            return fitting
