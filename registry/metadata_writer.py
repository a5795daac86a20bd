"""Writing signed metadata: immutable files under versions that nobody has taken, then the swap of the timestamp.

Versions may have gaps: a file that a crashed or slower writer has left is passed over.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from securesystemslib.signer import Signer
from tuf.api.exceptions import UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets
from tuf.api.metadata import Timestamp as TimestampRole

from gristmill import cohort, limits, records, trust
from gristmill.errors import GristmillError, ObjectExistsError
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry.entry import Entry
from registry.errors import ConflictError, KeyFileError
from registry.keys import Keyring
from registry.metadata_reader import TIMESTAMP_KEY, State, metadata_key

LIFETIMES = {
    "root": timedelta(days=365),
    "targets": timedelta(days=365),
    "canary": timedelta(days=30),
    "stable": timedelta(days=30),
    "revocation": timedelta(days=365),
    "snapshot": timedelta(days=30),
    "timestamp": timedelta(days=7),
}
"""How long a signature says that its content is current. `Repository.renew` starts it anew, for revocation where its
key is: whoever is on call need not come by each month."""
_VERSION_TRIES = 1000


class MetadataWriter:
    """Signs with one keyring, into one store. Not shared between threads."""

    def __init__(self, object_store: ObjectStore, keyring: Keyring) -> None:
        self._store = object_store
        self._keyring = keyring
        self._snapshot_floor = 0

    def require_trusted(self, state: State, name: str) -> None:
        """Whether hosts will believe what this key set signs for a role: it may be from before a key was replaced.

        Raises:
            KeyFileError: they will not.
        """
        for role in ("timestamp", "snapshot", name):
            by = state.root if role in state.root.roles else state.targets.signed
            trusted = by.get_delegated_role(role).keyids
            if not all(key.keyid in trusted for key in self._keyring.public[role]):
                raise KeyFileError(
                    f"keys folder {self._keyring.folder}: its {role} key is not the one that {self._store.url} trusts "
                    "now; bring the key that replaced it here"
                )

    def publish_index(self, state: State, role: Metadata[Targets], channel: Channel, entry: Entry) -> None:
        """Makes an index current, under its own number.

        Raises:
            ObjectExistsError, PreconditionFailedError: others were faster; what was written is out of sight.
        """
        self.put_index(role, channel.index_path, entry)
        role.signed.version = entry.index.number
        self._store.put_new(metadata_key(channel.name, entry.index.number), self.signed(role, channel.name))
        refer(state.snapshot, role, channel.name)
        self.publish_snapshot(state)

    def put_index(self, role: Metadata[Targets], index_path: str, entry: Entry) -> None:
        """Writes an index and lists it in its role's metadata, which is yet to be written."""
        self.put_target(role, index_path, records.canonical_json(entry.index))

    def put_target(self, role: Metadata[Targets], path: str, content: bytes) -> None:
        """Writes a target and lists it in its role's metadata, which is yet to be written.

        Raises:
            RecordTooLargeError: hosts would not read it.
        """
        most_bytes = limits.MAX_SHARES_BYTES if path == cohort.POLICY_PATH else limits.MAX_TARGET_BYTES
        limits.checked(content, most_bytes, f"{self._store.url}: {path}")
        self._store.put_new(trust.target_key(path, records.sha256_hex(content)), content)
        role.signed.targets[path] = TargetFile.from_data(path, content, ["sha256"])

    def put_role(self, state: State, role: Metadata[Targets], name: str) -> None:
        """Writes a role's metadata as a new version, to which the next snapshot refers."""
        role.signed.version += 1
        self.put_bumping(role, name)
        refer(state.snapshot, role, name)

    def publish_target(self, state: State, role: Metadata[Targets], name: str, path: str, content: bytes) -> None:
        """Makes a target of a role current, unless others were faster: `PreconditionFailedError`."""
        self.put_target(role, path, content)
        self.put_role(state, role, name)
        self.publish_snapshot(state)

    def publish_snapshot(self, state: State) -> None:
        """Makes what a snapshot refers to current, unless others were faster: `PreconditionFailedError`."""
        state.snapshot.signed.version = max(state.snapshot.signed.version, self._snapshot_floor) + 1
        self.put_bumping(state.snapshot, "snapshot")
        self._snapshot_floor = state.snapshot.signed.version
        state.timestamp.signed.version += 1
        state.timestamp.signed.snapshot_meta = _meta(state.snapshot)
        content = self.signed(state.timestamp, "timestamp")
        self._store.replace_if(TIMESTAMP_KEY, content, state.timestamp_etag)

    def publish_first(self, snapshot: Metadata[Snapshot]) -> None:
        """As `publish_snapshot`, where there is no timestamp yet: `ObjectExistsError` if others were faster."""
        self.put_bumping(snapshot, "snapshot")
        timestamp = Metadata(TimestampRole(snapshot_meta=_meta(snapshot)))
        self._store.put_new(TIMESTAMP_KEY, self.signed(timestamp, "timestamp"))

    def put_bumping(self, metadata: Metadata[Any], name: str) -> None:
        """Writes an immutable metadata file under the next version that no crashed or slower writer has taken."""
        for _ in range(_VERSION_TRIES):
            try:
                self._store.put_new(metadata_key(name, metadata.signed.version), self.signed(metadata, name))
                return
            except ObjectExistsError:
                metadata.signed.version += 1
        raise ConflictError(f"{self._store.url}: no free version of {name} in {_VERSION_TRIES} tries; check the store")

    def signed(self, metadata: Metadata[Any], name: str) -> bytes:
        """The file of a role's metadata, its lifetime begun anew, signed by all the role's keys.

        Raises:
            RecordTooLargeError: hosts would not read it.
        """
        start_lifetime(metadata, name)
        for signer in self._keyring.signers(name):
            sign(metadata, signer)
        return self.readable(metadata, name)

    def readable(self, metadata: Metadata[Any], name: str) -> bytes:
        """The file of signed metadata, if it is not longer than hosts take: errors as `signed`."""
        most = {"root": limits.MAX_ROOT_BYTES, "timestamp": limits.MAX_TIMESTAMP_BYTES}
        return limits.checked(
            metadata.to_bytes(), most.get(name, limits.MAX_METADATA_BYTES), f"{self._store.url}: metadata of {name}"
        )


def sign(metadata: Metadata[Any], signer: Signer) -> None:
    """Adds a signature; errors are the signer's own, which the library would wrap."""
    try:
        metadata.sign(signer, append=True)
    except UnsignedMetadataError as error:
        if isinstance(error.__cause__, GristmillError):
            raise error.__cause__ from None
        raise


def start_lifetime(metadata: Metadata[Any], name: str) -> None:
    """Sets when it expires, from now, and takes the signatures off."""
    metadata.signed.expires = datetime.now(UTC).replace(microsecond=0) + LIFETIMES[name]
    metadata.signatures.clear()


def refer(snapshot: Metadata[Snapshot], role: Metadata[Targets], name: str) -> None:
    """Makes a snapshot name a role's metadata as it is now."""
    snapshot.signed.meta[f"{name}.json"] = _meta(role)


def _meta(metadata: Metadata[Any]) -> MetaFile:
    return MetaFile.from_data(metadata.signed.version, metadata.to_bytes(), ["sha256"])
