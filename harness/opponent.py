"""What a candidate is timed against: a baseline of its operator, or another candidate in a runner of its own."""

from __future__ import annotations

import ctypes
import functools
import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from harness.arena import Numbers, OutputArena
from harness.errors import BaselineError
from harness.policy import JudgePolicy
from harness.session import Finding, Session, as_baseline_error
from harness.stock import Stock

STEP_CALLS = 2000
PATIENCE = 6.0
"""A baseline may compile itself at its first call."""


@functools.cache
def step_ns() -> float:
    """What it costs a runner in Python at least to ask for its next call, besides `Stock.link_ns`."""
    anything = ctypes.CDLL(None).getpagesize
    best_ns = math.inf
    for _ in range(5):
        start_ns = time.perf_counter_ns()
        for _ in range(STEP_CALLS):
            anything(None)
        best_ns = min(best_ns, (time.perf_counter_ns() - start_ns) / STEP_CALLS)
    return best_ns


class Opponent(Protocol):
    """One side of a pair, as the other sees it."""

    @property
    def name(self) -> str:
        """Under which its times are remembered."""

    @property
    def needs_setup(self) -> bool:
        """Whether it packs weights, which must stay as they are then."""

    @property
    def run_ns(self) -> int:
        """In its runner, all requests together."""

    def plan(self, stock: Stock) -> None:
        """Takes up a workload whose buffers are filled."""

    def run(self, pool: Numbers, calls: int) -> float:
        """Runs so many of these sets; returns nanoseconds per call."""

    def look_back(self) -> None:
        """Reads what the last batch wrote, if the candidate's side does so with its own: what was read is in the caches
        when the next batch writes there.
        """

    @property
    def process_id(self) -> int | None:
        """Of its runner."""

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
        self._link_ns = 0.0
        self.run_ns = 0
        self._patience_s = policy.deadline_s * PATIENCE

    def plan(self, stock: Stock) -> None:
        payload = stock.plan(with_outputs=False)
        try:
            self._session.plan(payload, self._patience_s)
        except Finding as finding:
            raise as_baseline_error(self.name, finding) from None
        self._link_ns = stock.link_ns + step_ns()

    def run(self, pool: Numbers, calls: int) -> float:
        """The chain is the judge's doing, and taken off. Candidates pay for it: who takes over a runner's loop could do
        with less, and would be faster by the difference.
        """
        try:
            spent_ns = self._session.run(pool, calls, self._seed(), self._patience_s)
        except Finding as finding:
            raise as_baseline_error(self.name, finding) from None
        self.run_ns += spent_ns
        return max(1.0, spent_ns / calls - self._link_ns)

    def look_back(self) -> None:
        """Its outputs are its library's own, in memory that it has just used before."""

    def _seed(self) -> int:
        return int(self._random.integers(0, 1 << 63))

    @property
    def process_id(self) -> int | None:
        return self._session.process_id

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
    ) -> None:
        self.name = digest
        self._session = session
        self._outputs_of = outputs_of
        self._policy = policy
        self.needs_setup = needs_setup
        self._random = np.random.default_rng()
        self.run_ns = 0
        self._outputs: OutputArena | None = None
        self._linked = False
        self._last: tuple[int, Numbers, int] | None = None
        """Seed, pool and calls."""

    def plan(self, stock: Stock) -> None:
        deadline_s = self._policy.deadline_s
        self._outputs, self._last = self._outputs_of(stock), None
        self._linked = stock.layout.linked
        try:
            self._session.plan(stock.plan(), deadline_s, output_bytes=stock.layout.output_bytes)
            if self.needs_setup:
                everything = np.arange(stock.layout.sets, dtype=np.uint32)
                self.run_ns += self._session.setup(everything, deadline_s * stock.layout.sets)
        except Finding as finding:
            raise _as_error(finding) from None

    def run(self, pool: Numbers, calls: int) -> float:
        assert self._outputs is not None
        self._outputs.poison(pool)
        seed = int(self._random.integers(0, 1 << 63))
        try:
            spent_ns = self._session.run(pool, calls, seed, self._policy.deadline_s)
        except Finding as finding:
            raise _as_error(finding) from None
        self.run_ns += spent_ns
        self._last = seed, pool, calls
        return spent_ns / calls

    def look_back(self) -> None:
        if self._outputs is not None and self._last is not None:
            self._outputs.survey(*self._last, linked=self._linked)

    @property
    def process_id(self) -> int | None:
        return self._session.process_id

    def hasten(self) -> None:
        self._session.hasten()


def _as_error(finding: Finding) -> BaselineError:
    return BaselineError(f"the candidate to compare with: {finding.reason}; judge it by itself first")
