"""The registry in a store: what its channels serve and served, and changes that lose nothing when two are made at once.

Every metadata file but `tuf/timestamp.json` is immutable and carries its version in its name. Replacing the timestamp
by compare-and-swap is the one moment at which a change becomes visible: what was written before it is unreachable, so a
crash between any two writes shows nobody anything, and the next change succeeds.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gristmill import limits, records, revocation, trust
from gristmill.errors import ObjectExistsError, ObjectNotFoundError, PreconditionFailedError
from gristmill.revocation import Revocations, not_revoked
from gristmill.store import NotModified, ObjectStore
from gristmill.trust import CHANNELS, AttestationPolicy, Channel
from registry import genesis
from registry.entry import EditFunction, Entry, channel_of, entry_of, next_index
from registry.errors import ConflictError, RegistryStateError
from registry.keys import Keyring
from registry.metadata_reader import DELEGATED, TIMESTAMP_KEY, MetadataReader, State
from registry.metadata_writer import MetadataWriter
from registry.root_chain import read_chain, root_key

MAX_ATTEMPTS = 200
"""Eight promoters that never rest have needed up to 52 of them on SeaweedFS: `benchmarks/promoters.py`."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
"""Short, lest one who has lost often waits while those who come new win."""


@dataclass(frozen=True)
class Live:
    """What hosts can reach from the timestamp of one moment."""

    timestamp_etag: str
    versions: dict[str, int]
    """Role to the version of its metadata that is current, except root's and timestamp's."""
    target_keys: frozenset[str]
    """Where the store keeps the targets of all roles."""
    states: dict[Channel, Entry]


@dataclass(frozen=True)
class Orders:
    """What hosts of one kind are told at one moment."""

    canary: Entry | None
    """None if nothing was ever published there; likewise stable."""
    stable: Entry | None
    share_permille: int
    """Of the fleet's `auto` hosts; see `gristmill.cohort`."""
    revoked: Revocations


class Repository:
    """The registry in a store, as the holder of a keyring sees and changes it.

    Everything read is verified against the keyring's root before it is built upon. Not shared between threads.
    """

    def __init__(self, object_store: ObjectStore, keyring: Keyring) -> None:
        self._store = object_store
        self._keyring = keyring
        self._reader = MetadataReader(object_store)
        self._writer = MetadataWriter(object_store, keyring)

    def initialise(self) -> bytes:
        """Makes the registry if there is none, and returns the root metadata that hosts must be given.

        Raises:
            RegistryStateError: the store holds a registry of other keys.
            KeyFileError: there is no root yet, and root's private keys are not here to make one.
        """
        root = genesis.make_root(self._keyring, self._writer)
        try:
            self._store.put_new(root_key(1), root)
        except ObjectExistsError:
            raise RegistryStateError(
                f"{self._store.url}: this registry was made with other keys than those in {self._keyring.folder}; "
                "use its keys, or an empty store"
            ) from None
        if not self.exists():
            genesis.create(self._keyring, self._writer)
            self.read()
        return root

    def exists(self) -> bool:
        """Whether the store holds a registry, of whatever keys."""
        try:
            self._store.get(TIMESTAMP_KEY, max_bytes=limits.MAX_TIMESTAMP_BYTES)
        except ObjectNotFoundError:
            return False
        return True

    def current(self, channel: Channel) -> Entry | None:
        """The channel's index now; None before the first promotion."""
        return self._reader.entry(self._reader.role(self.read(), channel.name), channel)

    def history(self, channel: Channel) -> Iterator[Entry]:
        """The channel's indexes, newest first, down to the first that `registry.garbage` has left."""
        return self.history_from(self.current(channel), channel)

    def history_from(self, entry: Entry | None, channel: Channel) -> Iterator[Entry]:
        """An index and those before it."""
        while entry is not None:
            yield entry
            entry = self._reader.before(entry, channel)

    def live(self) -> Live:
        """What is current in all channels of all fleets, verified."""
        state = self.read()
        roles = {name.removesuffix(".json"): meta for name, meta in state.snapshot.signed.meta.items()}
        versions = {"snapshot": state.snapshot.signed.version, **{name: meta.version for name, meta in roles.items()}}
        found = [state.targets, *(self._reader.role(state, name) for name in roles if name != "targets")]
        targets = {path: file.hashes["sha256"] for role in found for path, file in role.signed.targets.items()}
        channels = [channel for path in targets if (channel := channel_of(path)) is not None]
        return Live(
            state.timestamp_etag,
            versions,
            frozenset(trust.target_key(path, sha256) for path, sha256 in targets.items()),
            {channel: self._reader.stored_entry(targets[channel.index_path], channel) for channel in channels},
        )

    def channels(self) -> tuple[Channel, ...]:
        """All that something was published to, of all fleets. Reads no index: one that is damaged hides no other."""
        state = self.read()
        paths = (path for name in CHANNELS for path in self._reader.role(state, name).signed.targets)
        return tuple(channel for path in paths if (channel := channel_of(path)) is not None)

    def is_current(self, timestamp_etag: str) -> bool:
        """Whether nothing was published since that timestamp was read."""
        return isinstance(self._store.get(TIMESTAMP_KEY, timestamp_etag, limits.MAX_TIMESTAMP_BYTES), NotModified)

    def orders(self, kind: Channel) -> Orders:
        """What the hosts of a fleet, model and hardware are told now, in one reading, whatever the name of `kind`."""
        state = self.read()
        canary, stable = (
            self._reader.entry(self._reader.role(state, name), replace(kind, name=name)) for name in CHANNELS
        )
        share = self._reader.shares(state).share(kind.fleet)
        return Orders(canary, stable, share, self._reader.revoked(state))

    def commit(self, channel: Channel, edit: EditFunction) -> Entry | None:
        """Applies an edit to whatever is current, and makes the result current.

        On return the edit is visible to hosts, or `edit` has left alone what was current, and that is returned.
        If this raises or the process dies, hosts see either the old state or the whole edit. Tables that are revoked
        are not there for `edit`, and do not come back by one.

        Raises:
            ConflictError: others were faster `MAX_ATTEMPTS` times.
        """
        floor = 0
        written: dict[str, int] = {}
        for _ in _attempts():
            state = self.read()
            role = self._reader.role(state, channel.name)
            self._writer.require_trusted(state, channel.name)
            current = self._reader.entry(role, channel)
            landed = self._landed(current, written, channel)
            if landed is not None:
                return landed
            revoked = self._reader.revoked(state)
            served = _as_served(current, revoked)
            change = edit(served)
            if change is None:
                return served
            change = replace(change, tables=not_revoked(change.tables, revoked))
            floor = max(role.signed.version, floor) + 1
            entry = entry_of(next_index(channel, floor, current, change))
            written[entry.sha256] = floor
            try:
                self._writer.publish_index(state, role, channel, entry)
                return entry
            except (ObjectExistsError, PreconditionFailedError):
                continue
        raise self._conflict(str(channel))

    def revoke(self, more: Revocations) -> Revocations:
        """Adds to what no host may load, and returns all of it. On return hosts see it; else as `commit`.

        Raises:
            RegistryStateError: the registry has no such role yet.
            ConflictError: others were faster `MAX_ATTEMPTS` times.
        """
        for _ in _attempts():
            state = self.read()
            if f"{revocation.ROLE}.json" not in state.snapshot.signed.meta:
                raise RegistryStateError(
                    f"{self._store.url}: this registry is from before kernels could be revoked; run once, where the "
                    "targets key is: ./mill keys init, then ./mill keys rotate revocation"
                )
            self._writer.require_trusted(state, revocation.ROLE)
            known = self._reader.revoked(state)
            revoked = revocation.joined(known, more)
            if revoked == known:
                return known
            role = self._reader.role(state, revocation.ROLE)
            content = records.canonical_json(revoked)
            try:
                self._writer.publish_target(state, role, revocation.ROLE, revocation.PATH, content)
                return revoked
            except PreconditionFailedError:
                continue
        raise self._conflict(revocation.ROLE)

    def revoked(self) -> Revocations:
        """What no host may load, verified."""
        return self._reader.revoked(self.read())

    def renew(self) -> None:
        """Signs what is current once more, so that hosts do not take it for stale. Does nothing if others just did."""
        state = self.read()
        for name in self._renewed(state):
            role = self._reader.role(state, name)
            self._writer.require_trusted(state, name)
            self._writer.put_role(state, role, name)
        try:
            self._writer.publish_snapshot(state)
        except PreconditionFailedError:
            return

    def expiries(self) -> dict[str, datetime]:
        """Role to the moment from which hosts take its signature for stale."""
        state = self.read()
        found = {"root": state.root.expires, "targets": state.targets.signed.expires}
        for name in DELEGATED:
            if f"{name}.json" in state.snapshot.signed.meta:
                found[name] = self._reader.role(state, name).signed.expires
        return {**found, "snapshot": state.snapshot.signed.expires, "timestamp": state.timestamp.signed.expires}

    def policy(self) -> AttestationPolicy:
        """Whose attestations hosts demand now."""
        return self._reader.policy(self.read())

    def trusted_keys(self) -> dict[str, tuple[str, ...]]:
        """Role, or attestor, to the keys that count now: ids, or for attestors `trust.key_text`."""
        state = self.read()
        roles = {name: tuple(role.keyids) for name, role in state.root.roles.items()}
        by = state.targets.signed.delegations
        delegated = {name: tuple(role.keyids) for name, role in (by.roles if by and by.roles else {}).items()}
        return {**roles, **delegated, **self._reader.policy(state).keys}

    def read(self) -> State:
        """The metadata that is current, verified."""
        first = genesis.own_root(self._keyring)
        return self._reader.read(read_chain(self._store, first)[-1])

    def _renewed(self, state: State) -> list[str]:
        """The delegated roles to sign once more: revocation only where its key is."""
        late = f"{revocation.ROLE}.json" in state.snapshot.signed.meta and self._keyring.is_here(revocation.ROLE)
        return [*CHANNELS, revocation.ROLE] if late else list(CHANNELS)

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(
            f"{self._store.url}: {what}: others published {MAX_ATTEMPTS} times meanwhile; try again later"
        )

    def _landed(self, current: Entry | None, written: Mapping[str, int], channel: Channel) -> Entry | None:
        """The one of our writes that became current after all: its answer was lost, and others built upon it."""
        oldest = min(written.values(), default=math.inf)
        for entry in self.history_from(current, channel):
            if entry.index.number < oldest:
                return None
            if entry.sha256 in written:
                return entry
        return None


def _as_served(current: Entry | None, revoked: Revocations) -> Entry | None:
    """A state as hosts see it: without the tables that are revoked."""
    if current is None:
        return None
    return replace(current, index=replace(current.index, tables=not_revoked(current.index.tables, revoked)))


def _attempts() -> Iterator[int]:
    """Counts attempts, with a growing random pause before each but the first."""
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))))
        yield attempt
