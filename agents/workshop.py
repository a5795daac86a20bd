"""The live judge as agents reach it while they work: tasks/ hands them one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict


class Workshop(Protocol):
    """Thread-safe; calls wait for their turn at the device. A verdict's `reason` and evidence are the feedback."""

    def build(self, candidate: Candidate) -> Verdict | None:
        """Compiles and nothing else: a verdict `rejected` or `build_failed`, or None where it builds."""
        ...

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """Correctness on these workloads and the edges, with the roughest of timings: cheap."""
        ...

    def measure(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """The search's own verdict, as it would be recorded."""
        ...

    def assembly(self, candidate: Candidate) -> str:
        """Disassembly of the innermost loops of what was built; empty where there is none."""
        ...
