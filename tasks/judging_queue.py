"""What waits for the judge: questions of agents at work, ahead of what they propose."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum

from agents.errors import BudgetSpentError
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict

ENDED = "the search has ended"


class Kind(StrEnum):
    """What is asked of the judge."""

    CHECK = "check"
    MEASURE = "measure"
    PROPOSAL = "proposal"
    """To be measured, and to be counted as a trial."""


@dataclass(frozen=True, eq=False)
class Request:
    """One thing for the judge to do."""

    kind: Kind
    candidate: Candidate
    workloads: tuple[Workload, ...]
    answer: Future[Verdict] = field(default_factory=Future)
    """Gets the verdict, or BudgetSpentError when the search ends before."""


class JudgingQueue:
    """Many threads put, one takes. Once it is closed nothing stays in it: what comes later is answered at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._questions: deque[Request] = deque()
        self._proposals: deque[Request] = deque()
        self._unjudged: list[Request] = []
        self._closed = False

    def put(self, kind: Kind, candidate: Candidate, workloads: Sequence[Workload]) -> Future[Verdict]:
        """The verdict, later."""
        request = Request(kind, candidate, tuple(workloads))
        with self._changed:
            if self._closed:
                self.refuse(request)
            else:
                (self._proposals if kind is Kind.PROPOSAL else self._questions).append(request)
                self._changed.notify_all()
        return request.answer

    def take(self, is_ready: Callable[[Candidate], bool]) -> Request | None:
        """A question, or else the first proposal that need not wait for the compiler."""
        with self._changed:
            if self._questions:
                return self._questions.popleft()
            chosen = next((request for request in self._proposals if is_ready(request.candidate)), None)
            if chosen is not None:
                self._proposals.remove(chosen)
            return chosen

    @property
    def is_empty(self) -> bool:
        with self._changed:
            return not self._questions and not self._proposals

    def notify(self) -> None:
        """Wakes whoever waits: something else has changed."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Until something is put in, `notify`, or the time-out; not at all where a question waits."""
        with self._changed:
            if not self._questions:
                self._changed.wait(timeout_s)

    def close(self) -> None:
        """Answers everybody who waits, or ever will, that the search has ended."""
        with self._changed:
            self._closed = True
            for request in (*self._questions, *self._proposals):
                self.refuse(request)
            self._questions.clear()
            self._proposals.clear()

    def unjudged(self) -> list[Request]:
        """Proposals that met a closed queue, in order."""
        with self._changed:
            return list(self._unjudged)

    def check_open(self) -> None:
        """Raises BudgetSpentError once it is closed."""
        if self._closed:
            raise BudgetSpentError(ENDED)

    def refuse(self, request: Request) -> None:
        """Answers that the search has ended; for the taker, what it did not come to do."""
        with self._changed:
            if request.kind is Kind.PROPOSAL:
                self._unjudged.append(request)
            if not request.answer.done():
                request.answer.set_exception(BudgetSpentError(ENDED))
