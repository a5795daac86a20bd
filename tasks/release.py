"""The end-to-end gate: whether what runs on canary may move to stable, from a paired A/B in a serving process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.serving.paired import PairedResult
from registry.promotion import Decision

ROUNDING_GAP = 1e-3
"""Gap between the two best logits, over their spread, below which rounding may pick either token."""


@dataclass(frozen=True)
class ReleasePolicy:
    """What the whole process must gain, because kernels that win alone may lose together."""

    min_ratio_low: float = 1.0
    """Lower end of the interval of tokens/s with kernels over tokens/s without, at every concurrency."""
    max_difference_share: float = 0.01
    """Share of compared tokens that may differ, rounding included."""


DEFAULT_POLICY = ReleasePolicy()


def decide_release(runs: Sequence[PairedResult], policy: ReleasePolicy = DEFAULT_POLICY) -> Decision:
    """Whether stable may serve it. No evidence is no."""
    if not runs:
        return Decision(False, "no A/B was run")
    for run in runs:
        where = f"{run.concurrency} concurrent requests"
        if not any(run.hits.values()):
            return Decision(False, f"{where}: no call reached a promoted kernel")
        unexplained = [d for d in run.differences if d.top2_gap > ROUNDING_GAP * d.logit_scale]
        if unexplained:
            first = unexplained[0]
            return Decision(
                False,
                f"{where}: request {first.request} got token {first.kernels_token} instead of {first.engine_token}, "
                f"although the engine's best two logits are {first.top2_gap:.2g} apart",
            )
        if len(run.differences) > policy.max_difference_share * run.compared_tokens:
            return Decision(False, f"{where}: {len(run.differences)} of {run.compared_tokens} tokens differ")
        if run.ratio_low <= policy.min_ratio_low:
            return Decision(False, f"{where}: {run.ratio:.3f}x, lower bound {run.ratio_low:.3f}")
    worst = min(run.ratio_low for run in runs)
    return Decision(
        True, f"at least {worst:.2f}x end to end at {', '.join(str(run.concurrency) for run in runs)} requests"
    )
