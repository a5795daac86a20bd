"""The watch flow: looks at the reports of canary hosts and of the rest, and releases, rolls back, or waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect import flow
from prefect.events import emit_event

from flows import parameters
from flows.promote import release_steps
from flows.rollback import rollback_steps
from flows.steps import Step, table_artifact, tracked
from registry import failures
from registry.canary import Outcome, WatchPolicy
from registry.errors import ApprovalError, RollbackTargetError, SupersededError
from registry.rollback import take_out
from tasks import canary, mlflow_mirror, object_store, promotion, watch_report
from tasks.canary import Looked
from tasks.settings import Settings, from_environment

EVENT = "gristmill.canary."
"""Followed by the outcome."""


@dataclass(frozen=True)
class Watched:
    """What was found at one channel, and what was done about it."""

    looked: Looked
    action: str = ""
    """Empty if nothing was, or had to be."""


def watch_steps(settings: Settings, step: Step, policy: WatchPolicy, *, act: bool) -> list[Watched]:
    """Looks at all canaries of this fleet and model; with `act`, also does what follows from it.

    May be killed anywhere: what was decided is written down first, and done only if the state that was judged is still
    the one that canary serves. So whoever looks next goes on, and nothing is done twice.
    """
    with object_store.opened(settings) as opened:
        keyring = step(promotion.keyring_of)(settings)
        channels = step(canary.canary_channels)(opened.store, keyring, settings)
        looks = [step(canary.look_at)(opened.store, keyring, channel, policy, act) for channel in channels]
        return [Watched(one, _act(settings, step, one) if act else "") for one in looks]


def _act(settings: Settings, step: Step, looked: Looked) -> str:
    if looked.watch is None or looked.assessment is None:
        return ""
    there = replace(settings, hardware=looked.channel.hardware)
    outcome, judged = looked.assessment.outcome, looked.watch.canary.state
    try:
        if outcome is Outcome.FAILED and looked.watch.failed_before:
            return _take_out(there, step, looked)
        if outcome is Outcome.FAILED:
            return _roll_back(there, step, judged, failures.told(looked.assessment.reason))
        if outcome is Outcome.SUCCEEDED:
            released = release_steps(there, step, judged, by_person=False)
            return f"released: {released.channel} is at {released.number}"
    except SupersededError as error:
        return str(error)
    except ApprovalError as error:
        return f"waits for a person: {error}"
    return ""


def _roll_back(settings: Settings, step: Step, judged: str, reason: str) -> str:
    """One state back; to no kernels at all where that one is gone, serves the same, or what hosts no longer take."""
    try:
        back = rollback_steps(settings, "canary", None, step, judged, reason)
        undone = back.index_sha256 != judged
    except (RollbackTargetError, ApprovalError):
        undone = False
    if not undone:
        back = rollback_steps(settings, "canary", 0, step, judged, reason)
    if back.index_sha256 == judged:
        return f"nothing is left to roll back: {back.channel} serves no kernels"
    return f"rolled back: {back.channel} is at {back.number}"


def _take_out(settings: Settings, step: Step, looked: Looked) -> str:
    """What failed before leaves canary table by table: what was promoted with it since has not failed."""
    assert looked.watch is not None and looked.assessment is not None, "it was judged"
    relapsed = [looked.watch.canary.manifests[table] for table in looked.watch.failed_before]
    with object_store.opened(settings) as opened:
        keyring = step(promotion.keyring_of)(settings)
        reason = failures.told(looked.assessment.reason)
        left = step(take_out)(opened.store, keyring, looked.channel, relapsed, reason)
    return f"took out {', '.join(looked.watch.failed_before)}: {left.channel} is at {left.number}"


@flow(name="watch")
def watch(act: parameters.Act = True, policy: parameters.WatchNumbers = None) -> list[str]:
    """Looks at the canaries once, and acts. Returns what it found."""
    settings = from_environment()
    found = watch_steps(settings, tracked, canary.policy_of(policy or {}), act=act)
    table_artifact("canary-hosts", watch_report.host_rows(one.looked for one in found), summary(found))
    table_artifact("canary-comparison", watch_report.comparison_rows(one.looked for one in found), summary(found))
    table_artifact("canary-trouble", watch_report.trouble_rows(one.looked for one in found), summary(found))
    for one in found:
        if one.looked.assessment is not None and one.action:
            emit_event(
                event=EVENT + one.looked.assessment.outcome.value,
                resource={"prefect.resource.id": f"gristmill.fleet.{settings.fleet}.{settings.model}"},
                payload={"reason": one.looked.assessment.reason, "action": one.action},
            )
    if found:
        tracked(mlflow_mirror.keep_mirror)(settings)
    return [line(one) for one in found]


def summary(found: Sequence[Watched]) -> str:
    """All channels in words, for an artifact."""
    return "\n\n".join(map(line, found)) or "Nothing was published to canary yet."


def line(watched: Watched) -> str:
    """One channel in words."""
    done = f"; {watched.action}" if watched.action else ""
    return f"{watch_report.sentence(watched.looked)}{done}"
