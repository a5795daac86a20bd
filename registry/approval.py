"""Approval: a person's, or a policy's, signed word that stable may serve what the judge has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gristmill import limits, trust
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry import attestation, doctor
from registry.entry import Entry
from registry.errors import ApprovalError, SupersededError
from registry.keys import Keyring
from registry.promotion import ApprovalPolicy, decide_approval
from registry.publication import read_manifest
from registry.repository import Repository

PERSON = "person"


@dataclass(frozen=True)
class Approval:
    """What became of one table."""

    table: str
    manifest_sha256: str
    approved: bool
    """Whether stable may serve it now."""
    reason: str


def approve(
    object_store: ObjectStore,
    keyring: Keyring,
    channel: Channel,
    table: str = "",
    looked_at: Entry | None = None,
    failures: Mapping[str, str] | None = None,
    despite_failure: bool = False,
) -> list[Approval]:
    """Signs what a channel serves, for a person who has looked at it: one table, or all.

    Safe to repeat. It makes nothing current: `registry.publication.move` does.

    Args:
        looked_at: the state that the person has seen; None: whichever is current. No other one is signed.
        failures: tables that the watch has found to fail, and why.
        despite_failure: sign these too. The attestation then says so, for whoever asks later.

    Raises:
        ApprovalError: the channel serves no such table, or it has failed.
        SupersededError: what was looked at is no longer current. Nothing was signed.
        KeyFileError: the approver's key is not here, or was replaced.
    """
    current = Repository(object_store, keyring).current(channel)
    if looked_at is not None and (current is None or current.sha256 != looked_at.sha256):
        raise superseded(channel, looked_at, current)
    tables = dict(current.index.tables) if current else {}
    if table and table not in tables:
        known = ", ".join(sorted(tables)) or "no tables"
        raise ApprovalError(f"{channel}: it does not serve {table!r}; it serves {known}")
    chosen = {table: tables[table]} if table else tables
    failed = {name: why for name, why in (failures or {}).items() if name in chosen}
    if failed and not despite_failure and current is not None:
        raise failing(channel, current, failed)
    attestation.require_counting(keyring, Repository(object_store, keyring).policy(), trust.APPROVER)
    words = {name: f", although it failed in canary: {why}" for name, why in failed.items()}
    for name, digest in chosen.items():
        by = limits.shortened(PERSON + words.get(name, ""))
        sign(object_store, keyring, name, digest, by, anew=name in failed)
    return [
        Approval(name, digest, True, "a person approved it" + words.get(name, ""))
        for name, digest in sorted(chosen.items())
    ]


def superseded(channel: Channel, looked_at: Entry, current: Entry | None) -> SupersededError:
    """Says that somebody has looked at what is no longer current."""
    seen = f"{channel.name}:{looked_at.index.number}"
    if current is None:
        return SupersededError(f"{channel}: {seen} is not current, and nothing else is; nothing was signed")
    now = f"{channel.name}:{current.index.number}"
    return SupersededError(
        f"{channel}: {seen} is no longer current, {now} is; nothing was signed: look at that (./mill registry diff "
        f"{seen} {now}), then approve it by its name"
    )


def failing(channel: Channel, state: Entry, failures: Mapping[str, str]) -> ApprovalError:
    """Says that the watch has found tables of a state to fail, and what may be done about it."""
    table, why = min(failures.items())
    return ApprovalError(
        f"{channel}: {table} of generation {state.index.number} failed: {why}; take it back with ./mill rollback, or, "
        f"if you know better, ./mill approve {channel.name}:{state.index.number} --despite-failure"
    )


def approve_by_policy(
    object_store: ObjectStore, keyring: Keyring, source: Channel, policy: ApprovalPolicy, target_name: str = "stable"
) -> list[Approval]:
    """Signs those tables of a channel whose gains may pass alone; says why the others wait for a person."""
    doctor.require_conditional_puts(object_store)
    repository = Repository(object_store, keyring)
    target = Channel(target_name, source.fleet, source.model, source.hardware)
    demanded = repository.policy()
    if trust.APPROVER not in demanded.required[target_name]:
        return []
    attestation.require_counting(keyring, demanded, trust.APPROVER)
    current = _served(object_store, keyring, target)
    approvals: list[Approval] = []
    for name, digest in sorted(_served(object_store, keyring, source).items()):
        if attestation.is_attested(object_store, demanded, trust.APPROVER, digest):
            approvals.append(Approval(name, digest, True, "it was approved before"))
            continue
        new = read_manifest(object_store, digest).table
        old = read_manifest(object_store, current[name]).table if name in current else None
        decision = decide_approval(new, old, policy)
        if decision.promote:
            sign(object_store, keyring, name, digest, decision.reason)
        approvals.append(Approval(name, digest, decision.promote, decision.reason))
    return approvals


def sign(
    object_store: ObjectStore, keyring: Keyring, table: str, manifest_sha256: str, by: str, anew: bool = False
) -> None:
    """Writes the approver's attestation of one manifest.

    Args:
        by: `PERSON`, with what is to be known of it, or the policy in words.
        anew: also if it was approved before, by other words.
    """
    statement = trust.approval(manifest_sha256, table, by)
    attestation.attest(object_store, keyring, trust.APPROVER, manifest_sha256, statement, anew)


def _served(object_store: ObjectStore, keyring: Keyring, channel: Channel) -> dict[str, str]:
    entry = Repository(object_store, keyring).current(channel)
    return dict(entry.index.tables) if entry else {}
