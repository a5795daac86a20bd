"""The first metadata of a registry: its root, empty channels, and whose attestations hosts demand."""

from __future__ import annotations

import contextlib

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Root, Snapshot, Targets

from gristmill import durable_file, records, revocation, trust
from gristmill.errors import ObjectExistsError
from gristmill.trust import AttestationPolicy
from registry.errors import KeyFileError, RegistryStateError
from registry.keys import ROOT_THRESHOLD, Keyring
from registry.metadata_reader import DELEGATED
from registry.metadata_writer import MetadataWriter, refer


def own_root(keyring: Keyring) -> bytes:
    """The first root of these keys, which lies beside them. Writes nothing: keys may lie on a read-only mount.

    Raises:
        RegistryStateError: there is none.
        KeyFileError: it can't be read, or is damaged.
    """
    path = keyring.root_path
    try:
        content = path.read_bytes()
        Metadata[Root].from_bytes(content)
    except FileNotFoundError:
        raise RegistryStateError(
            f"keys folder {keyring.folder}: root.json is missing, so no registry is known there yet; make one where "
            "all keys are: ./mill keys init; on another machine bring root.json too, as ./mill keys export does"
        ) from None
    except OSError as error:
        raise KeyFileError(f"key file {path}: {error.strerror}; let this user read it") from None
    except (RepositoryError, ValueError) as error:
        raise KeyFileError(
            f"key file {path}: is damaged ({error}); copy it again from another holder of keys, or from a host"
        ) from None
    return content


def make_root(keyring: Keyring, writer: MetadataWriter) -> bytes:
    """As `own_root`; made, and kept beside the keys, where there is none yet. Needs root's private keys then."""
    if keyring.root_path.exists():
        return own_root(keyring)
    with keyring.locked():
        if not keyring.root_path.exists():
            root = Root(consistent_snapshot=True)
            for name in ("root", "targets", "snapshot", "timestamp"):
                for key in keyring.public[name]:
                    root.add_key(key, name)
            root.roles["root"].threshold = ROOT_THRESHOLD
            durable_file.write(keyring.root_path, writer.signed(Metadata(root), "root"))
    return own_root(keyring)


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
