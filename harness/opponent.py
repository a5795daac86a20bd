"""What a candidate is timed against: a baseline of its operator, or another candidate in a runner of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from harness.arena import Numbers, OutputArena
from harness.errors import BaselineError
from harness.policy import JudgePolicy
from harness.session import Finding, Session, as_baseline_error
from harness.stock import Stock

PATIENCE = 6.0
"""A baseline may compile itself at its first call."""


class Opponent(Protocol):
    """One side of a pair, as the other sees it."""

    @property
    def name(self) -> str:
        """Under which its times are remembered."""

    @property
    def in_python(self) -> bool:
        """Whether its runner is one in Python."""

    @property
    def needs_setup(self) -> bool:
        """Whether it packs weights, which must stay as they are then."""

    @property
    def run_ns(self) -> int:
        """In its runner, all requests together."""

    def plan(self, stock: Stock) -> None:
        """Takes up a workload whose buffers are filled."""

    def run(self, numbers: Numbers) -> float:
        """Runs these sets; returns nanoseconds per call."""

    def hasten(self) -> None:
        """Lets it go before all ordinary processes of this host."""


class Baseline:
    """One of the operator's baselines, in the process that runs nothing else.

    Raises from its methods:
        BaselineError: it does not run.
    """

    def __init__(self, name: str, session: Session, policy: JudgePolicy) -> None:
        self.name = name
        self._session = session
        self._random = np.random.default_rng()
        self.needs_setup = False
        self.in_python = True
        self.run_ns = 0
        self._patience_s = policy.deadline_s * PATIENCE

    def plan(self, stock: Stock) -> None:
        payload = stock.layout.plan(stock.inputs.offset, checked=False, with_outputs=False)
        try:
            self._session.plan(payload, self._patience_s)
        except Finding as finding:
            raise as_baseline_error(self.name, finding) from None

    def run(self, numbers: Numbers) -> float:
        try:
            spent_ns = self._session.run(numbers, len(numbers), self._seed(), self._patience_s)
        except Finding as finding:
            raise as_baseline_error(self.name, finding) from None
        self.run_ns += spent_ns
        return spent_ns / len(numbers)

    def _seed(self) -> int:
        return int(self._random.integers(0, 1 << 63))

    def hasten(self) -> None:
        self._session.hasten()


class RivalCandidate:
    """Another candidate. It is taken to be right: what it writes is not looked at.

    Raises from its methods:
        BaselineError: it does not run.
    """

    def __init__(
        self,
        digest: str,
        session: Session,
        outputs_of: Callable[[Stock], OutputArena],
        policy: JudgePolicy,
        *,
        needs_setup: bool,
        in_python: bool,
    ) -> None:
        self.name = digest
        self.in_python = in_python
        self._session = session
        self._outputs_of = outputs_of
        self._policy = policy
        self.needs_setup = needs_setup
        self._random = np.random.default_rng()
        self.run_ns = 0
        self._outputs: OutputArena | None = None

    def plan(self, stock: Stock) -> None:
        deadline_s = self._policy.deadline_s
        self._outputs = self._outputs_of(stock)
        self._session.used_bytes = max(self._session.used_bytes, stock.layout.output_bytes)
        try:
            self._session.plan(stock.layout.plan(stock.inputs.offset, checked=False), deadline_s)
            if self.needs_setup:
                everything = np.arange(stock.layout.sets, dtype=np.uint32)
                self._session.setup(everything, deadline_s * stock.layout.sets)
        except Finding as finding:
            raise _as_error(finding) from None

    def run(self, numbers: Numbers) -> float:
        assert self._outputs is not None
        self._outputs.poison(numbers)
        seed = int(self._random.integers(0, 1 << 63))
        try:
            spent_ns = self._session.run(numbers, len(numbers), seed, self._policy.deadline_s)
        except Finding as finding:
            raise _as_error(finding) from None
        self.run_ns += spent_ns
        return spent_ns / len(numbers)

    def hasten(self) -> None:
        self._session.hasten()


def _as_error(finding: Finding) -> BaselineError:
    return BaselineError(f"the candidate to compare with: {finding.reason}; judge it by itself first")
