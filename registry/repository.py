"""The signed metadata of the registry: who changes what is current, and how two who do so at once lose nothing.

Every metadata file but `tuf/timestamp.json` is immutable and carries its version in its name; versions may have gaps.
Replacing the timestamp by compare-and-swap is the one moment at which a change becomes visible: what was written
before it is unreachable, so a crash between any two writes shows nobody anything, and the next change succeeds.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from securesystemslib.exceptions import StorageError
from securesystemslib.signer import Key
from tuf.api.exceptions import LengthOrHashMismatchError, RepositoryError
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, MetaFile, Root, Snapshot, TargetFile, Targets
from tuf.api.metadata import Timestamp as TimestampRole

from gristmill import durable_file, records, store, trust
from gristmill.errors import GristmillError, ObjectExistsError, ObjectNotFoundError, PreconditionFailedError
from gristmill.store import NotModified, ObjectStore, StoredObject
from gristmill.trust import CHANNELS, AttestationPolicy, Channel, Index
from registry.errors import ConflictError, KeyFileError, RegistryStateError
from registry.keys import ROOT_THRESHOLD, Keyring
from registry.root_chain import read_chain, root_key

TIMESTAMP_KEY = "tuf/timestamp.json"
LIFETIMES = {
    "root": timedelta(days=365),
    "targets": timedelta(days=365),
    "canary": timedelta(days=30),
    "stable": timedelta(days=30),
    "snapshot": timedelta(days=30),
    "timestamp": timedelta(days=7),
}
"""How long a signature says that its content is current. `Repository.renew` starts it anew."""
MAX_METADATA_BYTES = 5_000_000
MAX_ATTEMPTS = 200
"""Eight promoters that never rest have needed up to 52 of them on SeaweedFS: `benchmarks/promoters.py`."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
"""Short, lest one who has lost often waits while those who come new win."""
_VERSION_TRIES = 1000

S = TypeVar("S", Root, TimestampRole, Snapshot, Targets)


@dataclass(frozen=True)
class Edit:
    """What an index shall say next."""

    tables: dict[str, str]
    reason: str
    restores: int | None = None


@dataclass(frozen=True)
class Entry:
    """An index that is, or was, current."""

    index: Index
    sha256: str


@dataclass(frozen=True)
class Live:
    """What hosts can reach from the timestamp of one moment."""

    timestamp_etag: str
    versions: dict[str, int]
    """Role to the version of its metadata that is current, except root's and timestamp's."""
    target_keys: frozenset[str]
    """Where the store keeps the targets of all roles."""
    states: dict[Channel, Entry]


EditFunction = Callable[[Entry | None], Edit | None]
"""Says what to do with the current state; None: leave it. Called anew after each conflict, so it must be pure."""


@dataclass
class State:
    """All that a change starts from: one consistent, verified reading."""

    root: Root
    timestamp: Metadata[TimestampRole]
    timestamp_etag: str
    snapshot: Metadata[Snapshot]
    targets: Metadata[Targets]


class Repository:
    """The registry in a store, as the holder of a keyring sees and changes it.

    Everything read is verified against the keyring's root before it is built upon. Not shared between threads.
    """

    def __init__(self, object_store: ObjectStore, keyring: Keyring) -> None:
        self._store = object_store
        self._keyring = keyring
        self._snapshot_floor = 0

    def initialise(self) -> bytes:
        """Makes the registry if there is none, and returns the root metadata that hosts must be given.

        Raises:
            RegistryStateError: the store holds a registry of other keys.
        """
        root = self._own_root()
        try:
            self._store.put_new(root_key(1), root)
        except ObjectExistsError:
            raise RegistryStateError(
                f"{self._store.url}: this registry was made with other keys than those in {self._keyring.folder}; "
                "use its keys, or an empty store"
            ) from None
        try:
            self._store.get(TIMESTAMP_KEY)
        except ObjectNotFoundError:
            self._create()
        return root

    def current(self, channel: Channel) -> Entry | None:
        """The channel's index now; None before the first promotion."""
        state = self._read()
        return self._entry(self._role(state, channel.name), channel)

    def history(self, channel: Channel) -> Iterator[Entry]:
        """The channel's indexes, newest first, down to the first that `registry.garbage` has left."""
        return self.history_from(self.current(channel), channel)

    def history_from(self, entry: Entry | None, channel: Channel) -> Iterator[Entry]:
        """An index and those before it."""
        while entry is not None:
            yield entry
            entry = self._before(entry, channel)

    def live(self) -> Live:
        """What is current in all channels of all fleets, verified."""
        state = self._read()
        roles = {name.removesuffix(".json"): meta for name, meta in state.snapshot.signed.meta.items()}
        versions = {"snapshot": state.snapshot.signed.version, **{name: meta.version for name, meta in roles.items()}}
        found = {"targets": state.targets}
        for name, meta in roles.items():
            if name != "targets":
                found[name] = self._verified_file(Targets, meta, state.targets.signed, name)
        targets = {path: file.hashes["sha256"] for role in found.values() for path, file in role.signed.targets.items()}
        channels = [channel for path in targets if (channel := channel_of(path)) is not None]
        return Live(
            state.timestamp_etag,
            versions,
            frozenset(trust.target_key(path, sha256) for path, sha256 in targets.items()),
            {channel: self._stored_entry(targets[channel.index_path], channel) for channel in channels},
        )

    def is_current(self, timestamp_etag: str) -> bool:
        """Whether nothing was published since that timestamp was read."""
        return isinstance(self._store.get(TIMESTAMP_KEY, timestamp_etag, MAX_METADATA_BYTES), NotModified)

    def commit(self, channel: Channel, edit: EditFunction) -> Entry | None:
        """Applies an edit to whatever is current, and makes the result current.

        On return the edit is visible to hosts, or `edit` has left alone what was current, and that is returned.
        If this raises or the process dies, hosts see either the old state or the whole edit.

        Raises:
            ConflictError: others were faster `MAX_ATTEMPTS` times.
        """
        floor = 0
        written: dict[str, int] = {}
        for attempt in range(MAX_ATTEMPTS):
            state = self._read()
            role = self._role(state, channel.name)
            self._require_trusted(state, channel.name)
            current = self._entry(role, channel)
            landed = self._landed(current, written, channel)
            if landed is not None:
                return landed
            change = edit(current)
            if change is None:
                return current
            floor = max(role.signed.version, floor) + 1
            entry = entry_of(next_index(channel, floor, current, change))
            written[entry.sha256] = floor
            try:
                self._write_index(state, role, channel, entry)
                return entry
            except (ObjectExistsError, PreconditionFailedError):
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)))
        raise ConflictError(
            f"{self._store.url}: {channel}: others published {MAX_ATTEMPTS} times meanwhile; try again later"
        )

    def renew(self) -> None:
        """Signs what is current once more, so that hosts do not take it for stale. Does nothing if others just did."""
        state = self._read()
        for name in CHANNELS:
            role = self._role(state, name)
            self._require_trusted(state, name)
            role.signed.version += 1
            self._put_bumping(role, name)
            refer(state.snapshot, role, name)
        try:
            self._publish_snapshot(state)
        except PreconditionFailedError:
            return

    def policy(self) -> AttestationPolicy:
        """Whose attestations hosts demand now."""
        return self._published_policy(self._read())

    def trusted_keys(self) -> dict[str, tuple[str, ...]]:
        """Role, or attestor, to the keys that count now: ids, or for attestors `trust.key_text`."""
        state = self._read()
        roles = {name: tuple(role.keyids) for name, role in state.root.roles.items()}
        channels = {name: tuple(state.targets.signed.get_delegated_role(name).keyids) for name in CHANNELS}
        return {**roles, **channels, **self._published_policy(state).keys}

    def _create(self) -> None:
        policy = records.canonical_json(self._policy())
        digest = records.sha256_hex(policy)
        self._store.put_new(trust.target_key(trust.POLICY_PATH, digest), policy)
        targets = Metadata(Targets(delegations=self._delegations()))
        targets.signed.targets[trust.POLICY_PATH] = TargetFile.from_data(trust.POLICY_PATH, policy, ["sha256"])
        snapshot = Metadata(Snapshot())
        for name, role in [("targets", targets), *((name, Metadata(Targets())) for name in CHANNELS)]:
            self._put_bumping(role, name)
            refer(snapshot, role, name)
        self._put_bumping(snapshot, "snapshot")
        timestamp = Metadata(TimestampRole(snapshot_meta=_meta(snapshot)))
        try:
            self._store.put_new(TIMESTAMP_KEY, self._signed(timestamp, "timestamp"))
        except ObjectExistsError:
            self._read()

    def _own_root(self) -> bytes:
        path = self._keyring.root_path
        with self._keyring.locked():
            if not path.exists():
                root = Root(consistent_snapshot=True)
                for name in ("root", "targets", "snapshot", "timestamp"):
                    for key in self._keyring.public[name]:
                        root.add_key(key, name)
                root.roles["root"].threshold = ROOT_THRESHOLD
                durable_file.write(path, self._signed(Metadata(root), "root"))
            return path.read_bytes()

    def _policy(self) -> AttestationPolicy:
        """What a new registry demands: both attestors on stable, unless the key set is from before the second."""
        attestors = [name for name in trust.ATTESTORS if self._keyring.public[name]]
        keys = {name: tuple(trust.key_text(key) for key in self._keyring.public[name]) for name in attestors}
        return AttestationPolicy(keys, required={"canary": (trust.JUDGE,), "stable": tuple(attestors)})

    def _delegations(self) -> Delegations:
        keys: dict[str, Key] = {key.keyid: key for name in CHANNELS for key in self._keyring.public[name]}
        roles = {
            name: DelegatedRole(
                name,
                keyids=[key.keyid for key in self._keyring.public[name]],
                threshold=1,
                terminating=True,
                paths=[f"{name}/*/*/*"],
            )
            for name in CHANNELS
        }
        return Delegations(keys, roles)

    def _write_index(self, state: State, role: Metadata[Targets], channel: Channel, entry: Entry) -> None:
        content = records.canonical_json(entry.index)
        self._store.put_new(trust.target_key(channel.index_path, entry.sha256), content)
        role.signed.targets[channel.index_path] = TargetFile.from_data(channel.index_path, content, ["sha256"])
        role.signed.version = entry.index.number
        self._store.put_new(metadata_key(channel.name, entry.index.number), self._signed(role, channel.name))
        refer(state.snapshot, role, channel.name)
        self._publish_snapshot(state)

    def _publish_snapshot(self, state: State) -> None:
        state.snapshot.signed.version = max(state.snapshot.signed.version, self._snapshot_floor) + 1
        self._put_bumping(state.snapshot, "snapshot")
        self._snapshot_floor = state.snapshot.signed.version
        state.timestamp.signed.version += 1
        state.timestamp.signed.snapshot_meta = _meta(state.snapshot)
        content = self._signed(state.timestamp, "timestamp")
        self._store.replace_if(TIMESTAMP_KEY, content, state.timestamp_etag)

    def _put_bumping(self, metadata: Metadata[Any], name: str) -> None:
        """Writes an immutable metadata file under the next version that no crashed or slower writer has taken."""
        for _ in range(_VERSION_TRIES):
            try:
                self._store.put_new(metadata_key(name, metadata.signed.version), self._signed(metadata, name))
                return
            except ObjectExistsError:
                metadata.signed.version += 1
        raise ConflictError(f"{self._store.url}: no free version of {name} in {_VERSION_TRIES} tries; check the store")

    def _signed(self, metadata: Metadata[Any], name: str) -> bytes:
        self._expire(metadata, name)
        for signer in self._keyring.signers(name):
            metadata.sign(signer, append=True)
        return metadata.to_bytes()

    def _expire(self, metadata: Metadata[Any], name: str) -> None:
        metadata.signed.expires = datetime.now(UTC).replace(microsecond=0) + LIFETIMES[name]
        metadata.signatures.clear()

    def _read(self) -> State:
        return self._read_under(read_chain(self._store, self._own_root())[-1])

    def _read_under(self, root: Root) -> State:
        """What is current, if the keys that this root names have signed it."""
        try:
            found = self._store.get(TIMESTAMP_KEY, max_bytes=MAX_METADATA_BYTES)
        except ObjectNotFoundError:
            raise RegistryStateError(
                f"{self._store.url}: no registry there yet; publish something first (./mill promote)"
            ) from None
        assert isinstance(found, StoredObject), "no etag was given"
        timestamp = self._verified(TimestampRole, found.content, root, "timestamp")
        snapshot = self._verified_file(Snapshot, timestamp.signed.snapshot_meta, root, "snapshot")
        targets = self._verified_file(Targets, snapshot.signed.meta["targets.json"], root, "targets")
        return State(root, timestamp, found.etag, snapshot, targets)

    def _role(self, state: State, name: str) -> Metadata[Targets]:
        if name not in CHANNELS:
            raise RegistryStateError(f"channel {name!r} is not known, expected one of {', '.join(CHANNELS)}")
        return self._verified_file(Targets, state.snapshot.signed.meta[f"{name}.json"], state.targets.signed, name)

    def _require_trusted(self, state: State, channel_name: str) -> None:
        """Whether hosts will believe what this key set signs: it may be from before a key was replaced."""
        for by, role in ((state.root, "timestamp"), (state.root, "snapshot"), (state.targets.signed, channel_name)):
            trusted = by.get_delegated_role(role).keyids
            if not all(key.keyid in trusted for key in self._keyring.public[role]):
                raise KeyFileError(
                    f"keys folder {self._keyring.folder}: its {role} key is not the one that {self._store.url} trusts "
                    "now; bring the key that replaced it here"
                )

    def _published_policy(self, state: State) -> AttestationPolicy:
        target = state.targets.signed.targets[trust.POLICY_PATH]
        key = trust.target_key(trust.POLICY_PATH, target.hashes["sha256"])
        content = store.read(self._store, key, trust.MAX_INDEX_BYTES)
        if records.sha256_hex(content) != target.hashes["sha256"]:
            raise self._not_ours("the policy", ValueError("other content"))
        return records.parse(AttestationPolicy, content, "attestation policy")

    def _verified_file(self, kind: type[S], meta: MetaFile, by: Root | Targets, name: str) -> Metadata[S]:
        content = store.read(self._store, metadata_key(name, meta.version), MAX_METADATA_BYTES)
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

    def _entry(self, role: Metadata[Targets], channel: Channel) -> Entry | None:
        target = role.signed.targets.get(channel.index_path)
        return None if target is None else self._stored_entry(target.hashes["sha256"], channel)

    def _stored_entry(self, sha256: str, channel: Channel) -> Entry:
        content = store.read(self._store, trust.target_key(channel.index_path, sha256), trust.MAX_INDEX_BYTES)
        if records.sha256_hex(content) != sha256:
            raise self._not_ours(f"index {sha256[:12]}", ValueError("other content"))
        return Entry(trust.parse_index(content, channel), sha256)

    def _landed(self, current: Entry | None, written: Mapping[str, int], channel: Channel) -> Entry | None:
        """The one of our writes that became current after all: its answer was lost, and others built upon it."""
        oldest = min(written.values(), default=math.inf)
        while current is not None and current.index.number >= oldest:
            if current.sha256 in written:
                return current
            current = self._before(current, channel)
        return None

    def _before(self, entry: Entry, channel: Channel) -> Entry | None:
        """The state before; None if there is none, or none any more."""
        if entry.index.previous is None:
            return None
        try:
            return self._stored_entry(entry.index.previous, channel)
        except ObjectNotFoundError:
            return None


def channel_of(index_path: str) -> Channel | None:
    """Whose index has this TUF target path; None if it is another target."""
    name, _, rest = index_path.partition("/")
    fleet, _, rest = rest.partition("/")
    model, _, file = rest.partition("/")
    hardware = file.removeprefix("index.").removesuffix(".json")
    try:
        channel = Channel(name, fleet, model, hardware)
    except GristmillError:
        return None
    return channel if name in CHANNELS and channel.index_path == index_path else None


def next_index(channel: Channel, number: int, current: Entry | None, change: Edit) -> Index:
    return Index(
        channel=channel.name,
        fleet=channel.fleet,
        model=channel.model,
        hardware=channel.hardware,
        number=number,
        tables=change.tables,
        previous=current.sha256 if current else None,
        restores=change.restores,
        created_utc=datetime.now(UTC).isoformat(timespec="microseconds"),
        reason=change.reason,
    )


def entry_of(index: Index) -> Entry:
    return Entry(index, records.digest(index))


def metadata_key(name: str, version: int) -> str:
    """Where the store keeps a role's metadata of that version."""
    return f"tuf/{version}.{name}.json"


def _meta(metadata: Metadata[Any]) -> MetaFile:
    return MetaFile.from_data(metadata.signed.version, metadata.to_bytes(), ["sha256"])


def refer(snapshot: Metadata[Snapshot], role: Metadata[Targets], name: str) -> None:
    snapshot.signed.meta[f"{name}.json"] = _meta(role)
