"""How thorough the judge is: budgets, thresholds and deadlines, by purpose."""

from __future__ import annotations

import os
from dataclasses import dataclass

from harness.comparer import FACTOR
from harness.layout import ORDINARY, Sets
from harness.timing import StopRule

PROVEN_WORK = 2e4
"""Recomputed per batch where a verdict is to last."""


@dataclass(frozen=True)
class JudgePolicy:
    """All numbers of a judgement. They are reported nowhere else: a verdict under another policy is another verdict."""

    stop: StopRule
    min_gain: float
    """`faster` needs a workload on which a ratio above 1 plus this is proven: room for what differs between two runners
    of the same code for as long as they live."""
    error_factor: float = FACTOR
    """How many times the baseline's error a candidate may have."""
    regimes_per_workload: int | None = 2
    """Input distributions tried on each captured workload, traffic first; edges see all of them. None means all."""
    batch_ns: float = 5e5
    """Least time of a batch, where there are sets enough."""
    sets: Sets = ORDINARY
    """That are timed."""
    deadline_s: float = 10.0
    """For one request, whatever it asks."""
    total_s: float = 120.0
    """For all that runs the candidate."""
    draws_uses: int = 64
    """Candidates judged on values spliced from the same base draws. 1 draws afresh for each."""
    verified_work: float = 6e3
    """Elements per timed batch that are recomputed in float64, of sets and rows chosen after the batch."""
    threads: int = 0
    """Of both sides; 0 means the cores this process may use."""

    @property
    def thread_count(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))


SEARCHED = 256
"""Candidates of a search on the same base draws. New ones for all workloads take the better part of a second, for which
few candidates should have to wait.
"""


def screening() -> JudgePolicy:
    """Is it right, and roughly how fast? For first tries."""
    stop = StopRule(min_pairs=5, max_pairs=14, budget_s=0.4, tolerance=0.10, margin=0.10, gain=0.05)
    return JudgePolicy(stop=stop, min_gain=0.05, batch_ns=2.5e5, sets=Sets(most=128), draws_uses=SEARCHED)


def search() -> JudgePolicy:
    """Good enough to steer a search: intervals of a few per cent.

    A gain of two, or a loss, is decided by five pairs of batches of a quarter of a millisecond. Gains of 10
    to 50 % take thirty to sixty pairs to prove, and smaller ones are not pursued beyond eighty: `proof` does that.
    """
    stop = StopRule(min_pairs=5, max_pairs=80, budget_s=1.0, tolerance=0.05, margin=0.10, gain=0.02)
    return JudgePolicy(stop=stop, min_gain=0.02, draws_uses=SEARCHED)


def promotion(budget_s: float = 6.0) -> JudgePolicy:
    """Before anything reaches a fleet: fresh draws, every regime, intervals as narrow as that time allows."""
    stop = StopRule(
        min_pairs=15 if budget_s >= 1 else 9,
        max_pairs=160,
        budget_s=budget_s,
        tolerance=0.01,
        margin=1.0,
        gain=0.01,
    )
    return JudgePolicy(
        stop=stop, min_gain=0.01, regimes_per_workload=None, draws_uses=1, total_s=600.0, verified_work=PROVEN_WORK
    )


def proof(budget_s: float = 1.25) -> JudgePolicy:
    """Is there a gain at all? One of up to sixteen runs, in fresh processes, which prove or exclude it together
    (`replication`): measures for so long, unless a gain above a tenth is proven, or one of `min_gain` is excluded.

    `min_gain` lies in the middle between none and 5 %: two runners of the same code may differ by a per cent or two.
    Batches are long, because what it takes to hand one over counts as its own time and makes ratios smaller.
    """
    stop = StopRule(
        min_pairs=15, max_pairs=20_000, budget_s=budget_s, tolerance=0.0, margin=0.1, gain=0.025, persistent=True
    )
    return JudgePolicy(
        stop=stop, min_gain=0.025, batch_ns=2e6, sets=Sets(least=32), total_s=600.0, verified_work=PROVEN_WORK
    )
