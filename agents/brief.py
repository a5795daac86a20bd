"""The brief: all that an agent is told before it proposes. Data only, so that it can be shown and logged as it is."""

from __future__ import annotations

from dataclasses import dataclass

from agents.errors import BriefError
from gristmill.domain import AxisRange
from gristmill.hardware import Hardware
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict


@dataclass(frozen=True)
class Best:
    """The best proven ratio on one workload so far."""

    workload: str
    """Label of the workload."""
    candidate: str
    """Digest of the candidate that reached it."""
    ratio: float
    """Baseline time over candidate time."""


@dataclass(frozen=True)
class Parent:
    """A judged candidate that the next one is to be derived from."""

    candidate: Candidate
    verdict: Verdict


@dataclass(frozen=True)
class Brief:
    """One operator and dtype to make faster on one kind of hardware.

    Raises:
        BriefError: there is no workload, or one is of another operator or dtype.
    """

    operator: str
    dtype: str
    workloads: tuple[Workload, ...]
    """What traffic shows; `calls` and `time_ns` say how much each matters."""
    hardware: Hardware
    cores: int
    """Logical processors that a candidate may use."""
    bandwidth_gb_s: float
    """Measured peak of reading memory."""
    gflop_s: float
    """Measured peak of multiply-add arithmetic in float32, both counted."""
    best: tuple[Best, ...] = ()
    feedback: tuple[str, ...] = ()
    """Lines about what was tried, newest last."""
    pattern: str = ""
    """Name of the optimisation pattern to follow; empty leaves the choice to the agent."""
    parents: tuple[Parent, ...] = ()
    """What to improve on, the first before the others; none asks for something new."""
    focus: AxisRange | None = None
    """Part of the traffic that the candidate is for; None is all of it."""
    lessons: tuple[str, ...] = ()
    """What memory knows of this operator and hardware, the most useful first."""
    strategy: str = ""
    """Name of the strategy that asks."""

    def __post_init__(self) -> None:
        if not self.workloads:
            raise BriefError(f"brief for {self.operator} {self.dtype}: no workloads; capture traffic first")
        for workload in self.workloads:
            if (workload.operator, workload.dtype) != (self.operator, self.dtype):
                raise BriefError(
                    f"brief for {self.operator} {self.dtype}: workload {workload.label} belongs to another search"
                )

    def weight(self, workload: Workload) -> float:
        """Share of the time that the engine spends in this workload; of the calls or even, where time is unknown."""
        for measure in (lambda w: w.time_ns, lambda w: w.calls, lambda w: 1):
            total = sum(measure(w) for w in self.workloads)
            if total > 0:
                return measure(workload) / total
        raise AssertionError("an even share always adds up")
