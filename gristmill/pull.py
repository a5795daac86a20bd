"""The puller: polls a channel, verifies all that is new, and hands out generations that may be loaded.

Loads TUF's libraries, so import it where it is needed. A poll without news is one conditional request.
Whatever goes wrong is raised with its reason, and the last good generation stays in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill import cache_collection, metadata_client, revocation
from gristmill.cache import GenerationRecord
from gristmill.cohort import AUTO
from gristmill.errors import CacheError, GristmillError, ObjectNotFoundError, StoreError
from gristmill.follower import START_S, Follower
from gristmill.generation import Generation, empty
from gristmill.limits import MAX_TIMESTAMP_BYTES
from gristmill.metadata_client import TIMESTAMP_KEY
from gristmill.proof import Proof
from gristmill.revocation import not_revoked, remainder
from gristmill.store import NotModified, ObjectStore, StoredObject
from gristmill.store_reader import StoreReader, within

FULL_REFRESH_S = 3600.0
"""At least this often everything is looked at again, so that a new root is seen even if nothing else changes."""
LONGEST_POLL_S = 600.0
"""After which a poll fetches nothing more; what it has verified by then stays in the cache."""


@dataclass(frozen=True)
class _Handed:
    """The generation that was handed out last."""

    generation: Generation
    tables: dict[str, str]
    """Of its index: name to the manifest's digest."""


class Puller(Follower):
    """Fills its cache from a store. Processes on one host may share the folder."""

    def __init__(
        self,
        object_store: ObjectStore,
        root_bytes: bytes,
        fleet: str,
        model: str,
        hardware: str,
        channel: str,
        cache_dir: Path,
        tables: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """Nothing is contacted or written yet."""
        super().__init__(root_bytes, fleet, model, hardware, channel, cache_dir, tables)
        self.start_s = START_S
        self._store = object_store
        self._etag: str | None = None
        self._full_refresh_at_s = 0.0
        self._polled = self._bound = False
        self._followed: GenerationRecord | None = None
        """The state that was proven and handed out last."""
        self._handed: _Handed | None = None
        self._names: frozenset[str] | None = None
        """Of the tables that it was asked for."""

    def poll(self) -> Generation | None:
        """The new generation, or None if there is no news.

        The first one takes `START_S` at most, where the cache holds a generation that can serve meanwhile.

        Where a new state cannot be taken, but revokes kernels of the generation handed out last, that one is handed out
        again without them; the next poll says why.

        Raises:
            GristmillError: why nothing was taken: the store (`StoreError`), a signature, digest or form (`TrustError`,
                `RollbackError`, `StaleRegistryError`), or the cache (`CacheError`). The next poll tries again.
        """
        names = self._wanted()
        if self._followed is not None and not self.cache.has_generation(self.channel):
            self._followed = self._etag = None  # somebody has emptied the cache
        known = names == self._names and time.monotonic() < self._full_refresh_at_s
        before = self.cache.last_refresh()
        hasty = not self._polled and self._can_start_offline()
        self._polled = True
        try:
            found = self._timestamp(self._etag if known else None, hasty)
        except ObjectNotFoundError:
            if self._etag is None and not self.cache.high_water():
                return None
            raise
        if found is None:
            self._check_fresh(self._store.url, "publish or renew the registry")
            return None
        self._etag = None
        try:
            with self.cache.locked(self.start_s) if hasty else self.cache.locked():
                if self.cache.last_refresh() != before:  # by another process, which may have read a newer one
                    found = self._timestamp(None, hasty) or found
                reader = StoreReader(self._store, self.start_s if hasty else LONGEST_POLL_S, strict=hasty)
                generation = self._refresh(found.content, names, reader)
        except GristmillError:
            less = self._remainder()
            if less is None:
                raise
            return less
        self._etag, self._names = found.etag, names
        self._full_refresh_at_s = time.monotonic() + FULL_REFRESH_S
        return generation

    def last_good(self) -> Generation | None:
        """The generation taken last, from the cache alone; None if there never was one.

        Everything but expiry is verified again: signatures, the digest of every file, and attestations by the
        newest policy that was ever seen, so that a revoked attestor's word counts no more.

        Raises:
            TrustError, CacheError: the cache is damaged, or holds what is no longer trusted; `poll` mends it once the
                store is reachable.
        """
        if not self.cache.folder.exists():
            return None
        names = self._wanted()
        with self.cache.locked():
            if self._setting.name == AUTO:
                self._turn_to(self.cache.followed(self._setting))
            record = self.cache.load_generation(self.channel)
            if record is None:
                return None
            proof = self._proven(record)
            generation = self._assembler.assemble(proof, names, None)
        self._handed = _Handed(generation, proof.index.tables)
        self._followed, self._names = record, names
        return generation

    def _timestamp(self, etag: str | None, hasty: bool) -> StoredObject | None:
        """None if it still is the one with this tag."""

        def read() -> StoredObject | NotModified:
            return self._store.get(TIMESTAMP_KEY, etag, MAX_TIMESTAMP_BYTES)

        found = within(self.start_s, f"{self._store.url}: {TIMESTAMP_KEY}", read) if hasty else read()
        if isinstance(found, StoredObject):
            return found
        if etag is None:
            raise StoreError(f"{self._store.url}: answers that {TIMESTAMP_KEY} is unchanged, but was asked for it all")
        return None

    def _refresh(self, timestamp: bytes, names: frozenset[str] | None, reader: StoreReader) -> Generation | None:
        """Follows a timestamp just read; what is new to load in the state that it leads to."""
        if not self._bound:
            self.cache.bind_host()
            self._bound = True
        current = metadata_client.refresh(self.cache, self._setting, self._root, reader, timestamp)
        self._expires = current.expires
        self._turn_to(current.channel)
        if current.record is not None:
            generation = self._follow(self._prover.prove(current.record), names, reader)
        else:
            generation = self._leave()
        if self._setting.name == AUTO:
            self.cache.save_followed(self.channel)
        cache_collection.collect_if_due(self.cache)
        return generation

    def _remainder(self) -> Generation | None:
        """What was handed out last, without what was revoked since; None if that is nothing."""
        if self._handed is None:
            return None
        try:
            revoked = self.cache.revoked()
        except CacheError:
            revoked = revocation.NOTHING
        last, manifests = self._handed.generation, not_revoked(self._handed.tables, revoked)
        tables = tuple(remainder(table, revoked) for table in last.tables if table.name in manifests)
        if tables == last.tables:
            return None
        less = replace(last, tables=tables)
        self._handed = _Handed(less, self._handed.tables)
        self._followed = None  # what comes next is news, also if it is what was handed out before
        return less

    def _leave(self) -> Generation | None:
        """What an `auto` host serves that has left canary for a channel that was never published to: nothing of ours.

        A host of one channel never gets here once it has followed it.
        """
        if self._handed is None:
            return None
        self._followed = self._handed = None
        return empty(self.channel.name, self.channel.hardware)

    def _follow(self, proof: Proof, names: frozenset[str] | None, reader: StoreReader) -> Generation | None:
        """Makes a proven state the last good one; returns what is new to load in it.

        The same index under other keys or another policy is not new, but proven by them from now on.
        """
        known, record = self._followed, proof.record
        news = known is None or _content(known) != _content(record) or names != self._names
        generation = None
        if known is None or news or known.policy_sha256 != record.policy_sha256:
            self.cache.check_high_water(proof.seen)
            generation = self._assembler.assemble(proof, names, reader)
            self._handed = _Handed(generation, proof.index.tables)
            self.cache.save_generation(self.channel, record)
            self.cache.raise_high_water(proof.seen)
        elif known != record:
            self.cache.save_generation(self.channel, record)
        self._followed = record
        return generation if news else None


def _content(record: GenerationRecord) -> tuple[str, str]:
    """What a generation is made of: what the channel serves, and what of it is revoked."""
    return record.index_sha256, record.revoked_sha256
