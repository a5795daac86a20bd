"""What long commands print while they work: one line per thing that happened, with the time since the start."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from cli import interrupt

if TYPE_CHECKING:
    from tasks.search_session import Trial

REPEAT_S = 2.0
"""A search prints at most this often while nothing improves."""
WAITING_REPEAT_S = 10.0
"""And this often how many agents wait for their provider: with many agents that changes all the time."""


class Watch:
    """Lines on standard error, so that standard output stays the result. One per command."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._operator = ""
        self._best = 0.0
        self._trials = 0
        self._printed_s = 0.0
        self._waiting = 0
        self._waiting_printed_s = -WAITING_REPEAT_S

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def say(self, phase: str, text: str) -> None:
        """Prints one line; raises a KeyboardInterrupt that got lost on the way."""
        print(f"[{self.elapsed_s():5.0f} s] {phase:<8} {text}", file=sys.stderr, flush=True)
        interrupt.check()

    def operator(self, operator: str, dtype: str, budget_s: float, workloads: int) -> None:
        """A search turns to an operator (see `tasks.compilation.Progress`)."""
        self._operator, self._best, self._trials = f"{operator} {dtype}", 0.0, 0
        self.say("search", f"{self._operator}: {budget_s:.0f} s, scored on {workloads} workloads")

    def trial(self, trial: Trial, best_ratio: float) -> None:
        """One more candidate; printed when it improves on the best, and now and then otherwise."""
        interrupt.check()
        self._trials += 1
        now_s = time.monotonic()
        improved = best_ratio > self._best * 1.005
        if not improved and now_s - self._printed_s < REPEAT_S:
            return
        self._best, self._printed_s = max(self._best, best_ratio), now_s
        pattern, status = trial.candidate.origin.pattern, trial.verdict.status.value
        self.say("search", f"{self._operator}: candidate {self._trials} ({pattern}) {status}; best {best_ratio:.2f}x")

    def waiting(self, agents: int, why: str, *, at_the_end: bool = False) -> None:
        """So many agents wait for their provider; printed when that has changed, and only now and then."""
        if at_the_end:
            if agents:
                self.say("search", f"{self._operator}: agents that waited for their provider at the end: {agents}")
            self._waiting = 0
            return
        now_s = time.monotonic()
        if agents == self._waiting or now_s - self._waiting_printed_s < WAITING_REPEAT_S:
            return
        self._waiting, self._waiting_printed_s = agents, now_s
        told = f"agents that wait for their provider: {agents}" + (f" ({why})" if why else "")
        self.say("search", f"{self._operator}: {told}")
