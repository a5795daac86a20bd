"""Reading signed metadata: what is current, verified from a trusted root down before anything is built upon it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from securesystemslib.exceptions import StorageError
from tuf.api.exceptions import LengthOrHashMismatchError, RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from gristmill import cohort, limits, records, revocation, store, trust
from gristmill.cohort import CohortPolicy
from gristmill.errors import ObjectNotFoundError
from gristmill.revocation import Revocations
from gristmill.store import ObjectStore, StoredObject
from gristmill.trust import CHANNELS, AttestationPolicy, Channel
from registry.entry import Entry
from registry.errors import RegistryStateError

TIMESTAMP_KEY = "tuf/timestamp.json"
DELEGATED = (*CHANNELS, revocation.ROLE)
"""Roles that the offline targets role has delegated to."""

S = TypeVar("S", Root, Timestamp, Snapshot, Targets)


@dataclass
class State:
    """All that a change starts from: one consistent, verified reading."""

    root: Root
    timestamp: Metadata[Timestamp]
    timestamp_etag: str
    snapshot: Metadata[Snapshot]
    targets: Metadata[Targets]


class MetadataReader:
    """The metadata of one store. Raises `RegistryStateError` for what is missing or is not what our keys signed."""

    def __init__(self, object_store: ObjectStore) -> None:
        self._store = object_store

    def read(self, root: Root) -> State:
        """What is current, if the keys that this root names have signed it."""
        try:
            found = self._store.get(TIMESTAMP_KEY, max_bytes=limits.MAX_TIMESTAMP_BYTES)
        except ObjectNotFoundError:
            raise RegistryStateError(
                f"{self._store.url}: no registry there yet; publish something first (./mill promote)"
            ) from None
        assert isinstance(found, StoredObject), "no etag was given"
        timestamp = self._verified(Timestamp, found.content, root, "timestamp")
        snapshot = self._verified_file(Snapshot, timestamp.signed.snapshot_meta, root, "snapshot")
        targets = self._verified_file(Targets, snapshot.signed.meta["targets.json"], root, "targets")
        return State(root, timestamp, found.etag, snapshot, targets)

    def role(self, state: State, name: str) -> Metadata[Targets]:
        """The metadata of a delegated role: what signs a channel's indexes, of all fleets, or the revocations."""
        if name not in DELEGATED:
            raise RegistryStateError(f"channel {name!r} is not known, expected one of {', '.join(CHANNELS)}")
        return self._verified_file(Targets, state.snapshot.signed.meta[f"{name}.json"], state.targets.signed, name)

    def revoked(self, state: State) -> Revocations:
        """What no host may load; nothing in a registry that has no such role yet."""
        if f"{revocation.ROLE}.json" not in state.snapshot.signed.meta:
            return revocation.NOTHING
        target = self.role(state, revocation.ROLE).signed.targets.get(revocation.PATH)
        return revocation.NOTHING if target is None else revocation.parse(self._target(target))

    def policy(self, state: State) -> AttestationPolicy:
        """Whose attestations hosts demand."""
        content = self._target(state.targets.signed.targets[trust.POLICY_PATH])
        return records.parse(AttestationPolicy, content, "attestation policy")

    def shares(self, state: State) -> CohortPolicy:
        """How many hosts canaries are tried upon; none of any fleet before the first share was set."""
        target = state.targets.signed.targets.get(cohort.POLICY_PATH)
        return (
            CohortPolicy({}) if target is None else cohort.parse_policy(self._target(target, limits.MAX_SHARES_BYTES))
        )

    def entry(self, role: Metadata[Targets], channel: Channel) -> Entry | None:
        """The channel's index; None before its first promotion."""
        target = role.signed.targets.get(channel.index_path)
        return None if target is None else self.stored_entry(target.hashes["sha256"], channel)

    def stored_entry(self, sha256: str, channel: Channel) -> Entry:
        """An index by digest."""
        content = self._content(channel.index_path, sha256)
        return Entry(trust.parse_index(content, channel), sha256)

    def before(self, entry: Entry, channel: Channel) -> Entry | None:
        """The state before; None if there is none, or none any more."""
        if entry.index.previous is None:
            return None
        try:
            return self.stored_entry(entry.index.previous, channel)
        except ObjectNotFoundError:
            return None

    def _target(self, target: TargetFile, max_bytes: int = limits.MAX_TARGET_BYTES) -> bytes:
        return self._content(target.path, target.hashes["sha256"], max_bytes)

    def _content(self, path: str, sha256: str, max_bytes: int = limits.MAX_TARGET_BYTES) -> bytes:
        content = store.read(self._store, trust.target_key(path, sha256), max_bytes)
        if records.sha256_hex(content) != sha256:
            raise self._not_ours(f"{path} {records.short(sha256)}", ValueError("other content"))
        return content

    def _verified_file(self, kind: type[S], meta: MetaFile, by: Root | Targets, name: str) -> Metadata[S]:
        content = store.read(self._store, metadata_key(name, meta.version), limits.MAX_METADATA_BYTES)
        try:
            meta.verify_length_and_hashes(content)
        except LengthOrHashMismatchError as error:
            raise self._not_ours(name, error) from error
        return self._verified(kind, content, by, name)

    def _verified(self, kind: type[S], content: bytes, by: Root | Targets, name: str) -> Metadata[S]:
        try:
            metadata = Metadata[S].from_bytes(content)
            by.verify_delegate(name, metadata.signed_bytes, metadata.signatures)
        except (RepositoryError, StorageError, ValueError) as error:
            raise self._not_ours(name, error) from error
        if not isinstance(metadata.signed, kind):
            raise self._not_ours(name, TypeError("another role's metadata"))
        return metadata

    def _not_ours(self, name: str, error: Exception) -> RegistryStateError:
        return RegistryStateError(
            f"{self._store.url}: metadata of {name} is not what our keys signed ({error}); use the keys of this "
            "registry, finish a key ceremony that was cut off, or restore the store"
        )


def metadata_key(name: str, version: int) -> str:
    """Where the store keeps a role's metadata of that version."""
    return f"tuf/{version}.{name}.json"
