"""Approval: a person's, or a policy's, signed word that stable may serve what the judge has measured."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import trust
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry import attestation, doctor
from registry.errors import ApprovalError
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


def approve(object_store: ObjectStore, keyring: Keyring, channel: Channel, table: str = "") -> list[Approval]:
    """Signs what a channel serves, for a person who has looked at it: one table, or all.

    Safe to repeat. It makes nothing current: `registry.publication.move` does.

    Raises:
        ApprovalError: the channel serves no such table.
        KeyFileError: the approver's key is not here, or was replaced.
    """
    tables = _served(object_store, keyring, channel)
    if table and table not in tables:
        known = ", ".join(sorted(tables)) or "no tables"
        raise ApprovalError(f"{channel}: it does not serve {table!r}; it serves {known}")
    chosen = {table: tables[table]} if table else tables
    attestation.require_counting(keyring, Repository(object_store, keyring).policy(), trust.APPROVER)
    for name, digest in chosen.items():
        sign(object_store, keyring, name, digest, PERSON)
    return [Approval(name, digest, True, "a person approved it") for name, digest in sorted(chosen.items())]


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


def sign(object_store: ObjectStore, keyring: Keyring, table: str, manifest_sha256: str, by: str) -> None:
    """Writes the approver's attestation of one manifest.

    Args:
        by: `PERSON`, or the policy in words.
    """
    statement = trust.approval(manifest_sha256, table, by)
    attestation.attest(object_store, keyring, trust.APPROVER, manifest_sha256, statement)


def _served(object_store: ObjectStore, keyring: Keyring, channel: Channel) -> dict[str, str]:
    entry = Repository(object_store, keyring).current(channel)
    return dict(entry.index.tables) if entry else {}
