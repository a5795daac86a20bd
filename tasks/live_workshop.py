"""The live judge as agents reach it from their threads: builds beside the measuring, all else in the judge's queue."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Protocol

from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks.judging_queue import JudgingQueue, Kind

BUILDERS = 3
"""Enough to keep a judge busy that measures a candidate in the time of two builds, at the lowest priority."""


class BuildingBench(Protocol):
    """The part of the judge that any thread may call while it measures."""

    def prepare(self, candidate: Candidate) -> None: ...

    def build(self, candidate: Candidate) -> Verdict | None: ...

    def assembly(self, candidate: Candidate) -> str: ...


class LiveWorkshop:
    """See `agents.workshop.Workshop`. All its methods raise BudgetSpentError once the search has ended.

    Builds wait for workers of their own: a swarm asks for many, and what the judge is to measure next must not wait.
    """

    def __init__(self, bench: BuildingBench, queue: JudgingQueue) -> None:
        self._bench = bench
        self._queue = queue
        self._builders = ThreadPoolExecutor(BUILDERS, thread_name_prefix="asked build")
        self._asked = 0
        self._counting = threading.Lock()
        self._built: set[str] = set()
        """Digests of what needs no builder any more: who checks a program measures it next."""

    @property
    def is_building(self) -> bool:
        """Whether an agent waits for a build."""
        return self._asked > 0

    def build(self, candidate: Candidate) -> Verdict | None:
        self._queue.check_open()
        if candidate.digest in self._built:
            return None
        with self._counting:
            self._asked += 1
        try:
            failure = self._builders.submit(self._bench.build, candidate).result()
            if failure is None:
                self._built.add(candidate.digest)
            return failure
        except (CancelledError, RuntimeError):  # the latter where `submit` comes after `drop`
            self._queue.check_open()
            raise
        finally:
            with self._counting:
                self._asked -= 1

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        return self._judged(Kind.CHECK, candidate, workloads)

    def measure(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """On all workloads of the search it is a trial of it, recorded as such whether or not it is ever submitted."""
        return self._judged(Kind.MEASURE, candidate, workloads)

    def assembly(self, candidate: Candidate) -> str:
        self._queue.check_open()
        return self._bench.assembly(candidate)

    def drop(self) -> None:
        """Gives up the builds that have not begun; for after the queue is closed."""
        self._builders.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Returns when no builder works any more."""
        self._builders.shutdown(cancel_futures=True)

    def _judged(self, kind: Kind, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """A program that is refused or does not build never reaches the queue: agents try many such."""
        failure = self.build(candidate)
        if failure is not None:
            return failure
        return self._queue.put(kind, candidate, workloads).result()
