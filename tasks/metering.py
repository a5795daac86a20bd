"""A search's time, charged to its budget: the wall time as it passes, the device's judgement by judgement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agents.metered_time import DeviceTime, WallTime
from agents.spending import Budget
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks.search_session import Bench


@dataclass(frozen=True)
class MeteredBench:
    """A bench whose judgements and checks are charged, without waits for the compiler.

    See `tasks.search_session.Bench`.
    """

    bench: Bench
    time: DeviceTime

    def prepare(self, candidate: Candidate) -> None:
        self.bench.prepare(candidate)

    def is_built(self, candidate: Candidate) -> bool:
        return self.bench.is_built(candidate)

    def build(self, candidate: Candidate) -> Verdict | None:
        return self.bench.build(candidate)

    def assembly(self, candidate: Candidate) -> str:
        return self.bench.assembly(candidate)

    def judge(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """Raises BudgetSpentError before it begins."""
        with self.time.charge("a judgement") as waits_s:
            verdict = self.bench.judge(candidate, workloads)
            waits_s.append(verdict.build_s)
        return verdict

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """Raises BudgetSpentError before it begins."""
        with self.time.charge("a check") as waits_s:
            verdict = self.bench.check(candidate, workloads)
            waits_s.append(verdict.build_s)
        return verdict


@contextlib.contextmanager
def metered(bench: Bench, budget: Budget | None) -> Iterator[tuple[Bench, Callable[[], None]]]:
    """The bench to judge with, and what to call often while the search goes on; both as they are without a budget.

    Raises:
        BudgetSpentError: from either, once a cap does not allow more.
    """
    if budget is None:
        yield bench, lambda: None
        return
    with WallTime(budget) as wall:
        yield MeteredBench(bench, DeviceTime(budget)), wall.tick
