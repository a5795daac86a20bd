"""The approve flow: a person's trigger is the approver's signature, without which no host of stable takes a table."""

from __future__ import annotations

from prefect import flow

from flows import parameters
from flows.promote import release_steps
from flows.steps import Step, table_artifact, tracked
from gristmill import records
from registry.approval import Approval, approve
from tasks import mlflow_mirror, object_store
from tasks.promotion import channel_of, keyring_of
from tasks.settings import Settings, from_environment


def approve_steps(settings: Settings, step: Step, *, channel: str, table: str = "") -> list[Approval]:
    """Approves one table of a channel, or all that it serves; running it again changes nothing."""
    with object_store.opened(settings) as opened:
        keyring = step(keyring_of)(settings)
        return step(approve)(opened.store, keyring, channel_of(settings, channel), table)


@flow(name="approve")
def approve_tables(table: parameters.Table = "", release: parameters.Release = False) -> list[str]:
    """Approves a table of canary, or all; with `release` stable serves them at once. Returns the approved tables."""
    settings = from_environment()
    approvals = approve_steps(settings, tracked, channel="canary", table=table)
    if release:
        release_steps(settings, tracked)
    table_artifact("approvals", rows(approvals), "Approved for stable")
    tracked(mlflow_mirror.keep_mirror)(settings)
    return [approval.table for approval in approvals]


def rows(approvals: list[Approval]) -> list[dict[str, str]]:
    """The approvals as a table, for artifacts and terminals."""
    return [
        {"table": one.table, "manifest": records.short(one.manifest_sha256), "reason": one.reason} for one in approvals
    ]
