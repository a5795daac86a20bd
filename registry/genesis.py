"""The first metadata of a registry: its root, empty channels, and whose attestations hosts demand."""

from __future__ import annotations

import contextlib

from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Root, Snapshot, Targets

from gristmill import durable_file, records, revocation, trust
from gristmill.errors import ObjectExistsError
from gristmill.trust import AttestationPolicy
from registry.keys import ROOT_THRESHOLD, Keyring
from registry.metadata_reader import DELEGATED
from registry.metadata_writer import MetadataWriter, refer


def own_root(keyring: Keyring, writer: MetadataWriter) -> bytes:
    """The first root of these keys; made, and kept beside them, at the first call."""
    path = keyring.root_path
    with keyring.locked():
        if not path.exists():
            root = Root(consistent_snapshot=True)
            for name in ("root", "targets", "snapshot", "timestamp"):
                for key in keyring.public[name]:
                    root.add_key(key, name)
            root.roles["root"].threshold = ROOT_THRESHOLD
            durable_file.write(path, writer.signed(Metadata(root), "root"))
        return path.read_bytes()


def create(keyring: Keyring, writer: MetadataWriter) -> None:
    """Makes a registry in which nothing was published, unless others are faster."""
    targets = Metadata(Targets())
    writer.put_target(targets, trust.POLICY_PATH, records.canonical_json(first_policy(keyring)))
    snapshot = Metadata(Snapshot())
    delegated = [name for name in DELEGATED if keyring.public[name]]
    for name in delegated:
        delegate(targets.signed, keyring, name)
    for name, role in [("targets", targets), *((name, Metadata(Targets())) for name in delegated)]:
        writer.put_bumping(role, name)
        refer(snapshot, role, name)
    with contextlib.suppress(ObjectExistsError):
        writer.publish_first(snapshot)


def first_policy(keyring: Keyring) -> AttestationPolicy:
    """What a new registry demands: both attestors on stable, unless the key set is from before the second."""
    attestors = [name for name in trust.ATTESTORS if keyring.public[name]]
    keys = {name: tuple(trust.key_text(key) for key in keyring.public[name]) for name in attestors}
    return AttestationPolicy(keys, required={"canary": (trust.JUDGE,), "stable": tuple(attestors)})


def delegate(targets: Targets, keyring: Keyring, name: str) -> None:
    """Makes the targets role delegate to another, with this keyring's keys."""
    if targets.delegations is None:
        targets.delegations = Delegations({}, {})
    paths = [revocation.PATH] if name == revocation.ROLE else [f"{name}/*/*/*"]
    assert targets.delegations.roles is not None, "no hash bins are made here"
    targets.delegations.roles[name] = DelegatedRole(name, keyids=[], threshold=1, terminating=True, paths=paths)
    for key in keyring.public[name]:
        targets.add_key(key, name)
