"""The end-to-end gate on an engine: whether tables that won alone may serve, from a trial in the live process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gristmill.kernel_table import Artifact
from registry.promotion import Decision
from tasks.engine_trial import Trial

ROUNDING_GAP = 0.3
"""A token stood out so little from the next, over what it did from the 20th, that rounding may pick either: bfloat16's
steps are an eighth of that distance where the largest logits of a model of random weights are, and two logits round.
"""


@dataclass(frozen=True)
class EnginePolicy:
    """What the whole engine must gain."""

    least_starts: int = 2
    min_ratio_low: float = 1.0
    """Lower end of the interval of tokens/s, at every concurrency."""
    max_latency_ratio_low: float = 1.0
    """TTFT and TPOT may not be proven worse: the lower end of theirs may not be above this."""
    max_difference_share: float = 0.1
    """Share of requests that may get other tokens, rounding included; none where the engine's choice was clear."""


DEFAULT_POLICY = EnginePolicy()


def decide_engine_release(
    trial: Trial, artifacts: Sequence[Artifact], policy: EnginePolicy = DEFAULT_POLICY
) -> Decision:
    """Whether stable may serve it. No evidence is no, and so is a table that no call reached."""
    if len(trial.starts) < policy.least_starts or not trial.concurrencies:
        return Decision(False, f"{len(trial.starts)} starts were measured; {policy.least_starts} are needed")
    for reason in (_unused(trial, artifacts), _leaking(trial), _other_tokens(trial, policy)):
        if reason:
            return Decision(False, reason)
    worst = float("inf")
    for concurrency in trial.concurrencies:
        speed = trial.ratio("tokens_per_s", concurrency)
        if speed.low <= policy.min_ratio_low:
            kind = "slower" if speed.high < policy.min_ratio_low else "inconclusive"
            return Decision(
                False,
                f"{concurrency} requests at a time: {kind}, {speed.middle:.3f}x tokens/s "
                f"({speed.low:.3f} to {speed.high:.3f})",
            )
        for measure, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
            latency = trial.ratio(measure, concurrency)
            if latency.low > policy.max_latency_ratio_low:
                return Decision(
                    False,
                    f"{concurrency} requests at a time: {name} is worse, {latency.middle:.3f}x "
                    f"({latency.low:.3f} to {latency.high:.3f})",
                )
        worst = min(worst, speed.low)
    at = ", ".join(str(concurrency) for concurrency in trial.concurrencies)
    return Decision(
        True, f"at least {worst:.3f}x tokens/s end to end at {at} requests, over {len(trial.starts)} starts"
    )


def _unused(trial: Trial, artifacts: Sequence[Artifact]) -> str:
    hits: Mapping[str, int] = trial.hits
    for artifact in artifacts:
        if not any(hits.get(entry.candidate) for entry in artifact.table.entries):
            return f"{artifact.table.name}: no call in the engine's workers reached a kernel of this table"
    return "" if artifacts else "no table was promoted to canary"


def _leaking(trial: Trial) -> str:
    off = sum(start.hits_off for start in trial.starts)
    return f"{off} hits were counted while kernels were off, so the arms are not what they seem" if off else ""


def _other_tokens(trial: Trial, policy: EnginePolicy) -> str:
    differences = [one for start in trial.starts for one in start.differences]
    clear = [one for one in differences if one.gap is not None and one.gap > ROUNDING_GAP]
    requests = sum(start.compared_requests for start in trial.starts)
    if clear:
        first = clear[0]
        return (
            f"request {first.request} got token {first.kernels_token} instead of {first.engine_token} at position "
            f"{first.position}, although the engine's choice was clear"
        )
    if len(differences) > policy.max_difference_share * requests:
        return f"{len(differences)} of {requests} requests got other tokens, by rounding as far as can be told"
    return ""
