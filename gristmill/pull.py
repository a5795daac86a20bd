"""The puller: polls a channel, verifies all that is new, and hands out generations that may be loaded.

Loads boto3's and TUF's libraries, so import it where it is needed. A poll without news is one conditional request.
Whatever goes wrong is raised with its reason, and the last good generation stays in the cache.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from securesystemslib.exceptions import StorageError
from tuf.api import exceptions as tuf_errors
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from gristmill import records, store, trust
from gristmill.cache import Cache, GenerationRecord
from gristmill.errors import (
    GristmillError,
    MalformedRecordError,
    ObjectNotFoundError,
    RollbackError,
    StaleRegistryError,
    StoreAccessError,
    StoreError,
    TrustError,
)
from gristmill.generation import Generation
from gristmill.kernel_table import FileRef, KernelTable
from gristmill.store import NotModified, ObjectStore
from gristmill.trust import AttestationPolicy, Channel, Index

TIMESTAMP_KEY = "tuf/timestamp.json"
MAX_TIMESTAMP_BYTES = 16_384
MAX_METADATA_BYTES = 5_000_000
MAX_ROOT_ROTATIONS = 256
"""How many roots may follow the installed one; with more, the host must be given a newer root to start from."""
FULL_REFRESH_S = 3600.0
"""At least this often everything is looked at again, so that a new root is seen even if nothing else changes."""


@dataclass(frozen=True)
class _Proof:
    """One state of a channel, verified down to the digests of its manifests."""

    record: GenerationRecord
    index: Index
    policy: AttestationPolicy


class Puller:
    """Follows one channel. One thread at a time may use it; processes on one host may share the cache folder."""

    def __init__(
        self,
        object_store: ObjectStore,
        root_bytes: bytes,
        fleet: str,
        model: str,
        hardware: str,
        channel: str,
        cache_dir: Path,
    ) -> None:
        """Nothing is contacted or written yet.

        Args:
            root_bytes: the signed root metadata that the operator installed with the host: what all trust starts from.
            channel: `canary` or `stable`.
        """
        self.channel = Channel(channel, fleet, model, hardware)
        self.cache = Cache(cache_dir)
        self._store = object_store
        self._root = root_bytes
        self._etag: str | None = None
        self._expires = datetime.max.replace(tzinfo=UTC)
        self._full_refresh_at_s = 0.0
        self._followed: GenerationRecord | None = None
        """The state that was proven and handed out last."""

    def poll(self) -> Generation | None:
        """The new generation, or None if there is no news.

        Raises:
            GristmillError: why nothing was taken: the store (`StoreError`), a signature, digest or form (`TrustError`,
                `RollbackError`, `StaleRegistryError`), or the cache (`CacheError`). The next poll tries again.
        """
        etag = self._etag if time.monotonic() < self._full_refresh_at_s else None
        try:
            found = self._store.get(TIMESTAMP_KEY, etag, MAX_TIMESTAMP_BYTES)
        except ObjectNotFoundError:
            if self._etag is None and not self.cache.high_water():
                return None
            raise
        if isinstance(found, NotModified):
            if etag is None:
                raise StoreError(
                    f"{self._store.url}: answers that {TIMESTAMP_KEY} is unchanged, but was asked for it all"
                )
            self._check_fresh()
            return None
        self._etag = None
        with self.cache.locked():
            proof = self._refresh(found.content)
            generation = self._follow(proof) if proof is not None else None
        self._etag = found.etag
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
        with self.cache.locked():
            record = self.cache.load_generation(self.channel)
            if record is None:
                return None
            proof = self._prove(record)
            self.cache.check_high_water(self._seen(proof))
            generation = self._assemble(replace(proof, policy=self._newest_policy(proof)), fetch=False)
        self._followed = record
        return generation

    def _follow(self, proof: _Proof) -> Generation | None:
        """Makes a proven state the last good one; returns what is new to load in it.

        The same index under other keys or another policy is not new, but proven by them from now on.
        """
        known, record = self._followed, proof.record
        news = known is None or known.index_sha256 != record.index_sha256
        generation = None
        if known is None or news or known.policy_sha256 != record.policy_sha256:
            generation = self._take(proof)
        elif known != record:
            self.cache.save_generation(self.channel, record)
        self._followed = record
        return generation if news else None

    def _seen(self, proof: _Proof) -> dict[str, int]:
        return {"root": self._trusted_root().version, self.channel.index_path: proof.index.number}

    def _check_fresh(self) -> None:
        if datetime.now(UTC) >= self._expires:
            raise StaleRegistryError(
                f"{self._store.url}: what is current was signed until {self._expires:%Y-%m-%d %H:%M} UTC and not "
                "renewed; publish or renew the registry, and check this host's clock"
            )

    def _refresh(self, timestamp: bytes) -> _Proof | None:
        """Runs the TUF client on a timestamp just read; None if this channel was never published to."""
        with _explained(self._store.url):
            updater = Updater(
                str(self.cache.tuf),
                "tuf",
                fetcher=_StoreFetcher(self._store, timestamp),
                config=UpdaterConfig(max_root_rotations=MAX_ROOT_ROTATIONS),
                bootstrap=self._root,
            )
            updater.refresh()
            self._check_key_lists()
            index_file = updater.get_targetinfo(self.channel.index_path)
            policy_file = updater.get_targetinfo(trust.POLICY_PATH)
            self._expires = self._raise_high_water(timestamp)
            if index_file is None:
                self._check_never_seen()
                return None
            if policy_file is None:
                raise TrustError(f"{self._store.url}: no attestation policy is published; initialise the registry")
            record = GenerationRecord(
                targets_sha256=self.cache.add((self.cache.tuf / "targets.json").read_bytes()),
                role_sha256=self.cache.add((self.cache.tuf / f"{self.channel.name}.json").read_bytes()),
                policy_sha256=self._fetch_target(policy_file),
                index_sha256=self._fetch_target(index_file),
            )
        return self._prove(record)

    def _raise_high_water(self, offered: bytes) -> datetime:
        """Compares and remembers what was seen; returns when the timestamp expires."""
        folder = self.cache.tuf
        timestamp = Metadata[Timestamp].from_file(str(folder / "timestamp.json")).signed
        if Metadata[Timestamp].from_bytes(offered).signed != timestamp:
            raise RollbackError(
                f"{self._store.url}: there are two timestamps of version {timestamp.version}, both signed: its key was "
                "stolen; rotate it"
            )
        snapshot = Metadata[Snapshot].from_file(str(folder / "snapshot.json")).signed
        root = Metadata[Root].from_file(str(folder / "root.json")).signed
        seen = {"root": root.version, "timestamp": timestamp.version, "snapshot": snapshot.version}
        seen.update({name.removesuffix(".json"): meta.version for name, meta in snapshot.meta.items()})
        self.cache.raise_high_water(seen)
        return timestamp.expires

    def _check_key_lists(self) -> None:
        """What the TUF client leaves open: how many roots there may be, and that thresholds count different keys."""
        root = Metadata[Root].from_file(str(self.cache.tuf / "root.json")).signed
        targets = Metadata[Targets].from_file(str(self.cache.tuf / "targets.json")).signed
        if root.version >= Metadata[Root].from_bytes(self._root).signed.version + MAX_ROOT_ROTATIONS:
            raise TrustError(
                f"{self._store.url}: {MAX_ROOT_ROTATIONS} roots or more follow the one that this host was installed "
                "with; install a newer root.json"
            )
        for signed in (root, targets):
            role = _role_with_one_key_twice(signed)
            if role is not None:
                raise TrustError(f"{self._store.url}: role {role} lists one key twice, so its threshold means nothing")

    def _check_never_seen(self) -> None:
        number = self.cache.high_water().get(self.channel.index_path)
        if number is not None:
            raise RollbackError(
                f"{self._store.url}: the index of {self.channel} is gone, but this host has seen number {number}; its "
                "key was stolen, or the store was restored from a backup"
            )

    def _fetch_target(self, target: TargetFile) -> str:
        sha256 = trust.checked_digest(target.hashes.get("sha256", ""))
        if self.cache.find(sha256) is None:
            key = trust.target_key(target.path, sha256)
            content = store.read(self._store, key, min(target.length, trust.MAX_INDEX_BYTES))
            target.verify_length_and_hashes(content)
            self.cache.add(content)
        return sha256

    def _prove(self, record: GenerationRecord) -> _Proof:
        """Verifies a record's chain from the installed root down to the index, with the cache's bytes only."""
        with _explained(str(self.cache.folder)):
            targets = Metadata[Targets].from_bytes(self._cached(record.targets_sha256, "targets metadata"))
            role = Metadata[Targets].from_bytes(self._cached(record.role_sha256, "channel metadata"))
            self._trusted_root().verify_delegate("targets", targets.signed_bytes, targets.signatures)
            targets.signed.verify_delegate(self.channel.name, role.signed_bytes, role.signatures)
            path = self.channel.index_path
            roles = targets.signed.delegations.roles if targets.signed.delegations else None
            if not roles or not roles[self.channel.name].is_delegated_path(path):
                raise TrustError(f"{self.channel}: its role may not sign {path}")
            index = self._listed(role.signed, path, record.index_sha256)
            policy = self._listed(targets.signed, trust.POLICY_PATH, record.policy_sha256)
        parsed_policy = _parse_policy(policy)
        parsed_index = trust.parse_index(index, self.channel)
        if parsed_index.number > role.signed.version:
            raise TrustError(f"{self.channel}: index {parsed_index.number} claims to be newer than its signature")
        return _Proof(record, parsed_index, parsed_policy)

    def _trusted_root(self) -> Root:
        """The installed root, or the newest one that it leads to through roots signed by both old and new keys.

        Raises:
            RollbackError: that is an older one than this host has seen, because the cache was damaged.
        """
        root = Metadata[Root].from_bytes(self._root).signed
        while (newer := self._next_root(root)) is not None:
            root = newer
        self.cache.raise_high_water({"root": root.version})
        return root

    def _next_root(self, root: Root) -> Root | None:
        path = self.cache.tuf / "root_history" / f"{root.version + 1}.root.json"
        if not path.exists():
            return None
        try:
            newer = Metadata[Root].from_bytes(path.read_bytes())
            root.verify_delegate("root", newer.signed_bytes, newer.signatures)
            newer.signed.verify_delegate("root", newer.signed_bytes, newer.signatures)
        except (tuf_errors.RepositoryError, StorageError, ValueError):
            return None
        sound = newer.signed.version == root.version + 1 and _role_with_one_key_twice(newer.signed) is None
        return newer.signed if sound else None

    def _newest_policy(self, proof: _Proof) -> AttestationPolicy:
        """The one in the newest targets metadata that the TUF client kept; the proof's own if that one is no policy."""
        try:
            metadata = Metadata[Targets].from_file(str(self.cache.tuf / "targets.json"))
            self._trusted_root().verify_delegate("targets", metadata.signed_bytes, metadata.signatures)
            newer = metadata.signed.targets[trust.POLICY_PATH].hashes["sha256"]
            content = self.cache.find(newer)
            return proof.policy if content is None else _parse_policy(content)
        except (tuf_errors.RepositoryError, StorageError, ValueError, KeyError, TrustError):
            return proof.policy

    def _listed(self, signed: Targets, path: str, sha256: str) -> bytes:
        content = self._cached(sha256, path)
        if path not in signed.targets:
            raise TrustError(f"{self.cache.folder}: {path} is not signed by its role")
        signed.targets[path].verify_length_and_hashes(content)
        return content

    def _cached(self, sha256: str, what: str) -> bytes:
        content = self.cache.find(sha256)
        if content is None:
            raise TrustError(f"{self.cache.folder}: {what} is missing or damaged; poll the registry to mend it")
        return content

    def _take(self, proof: _Proof) -> Generation:
        """Fetches what a proven state lacks and makes it the last good generation."""
        seen = self._seen(proof)
        self.cache.check_high_water(seen)
        generation = self._assemble(proof, fetch=True)
        self.cache.save_generation(self.channel, proof.record)
        self.cache.raise_high_water(seen)
        return generation

    def _assemble(self, proof: _Proof, fetch: bool) -> Generation:
        objects: dict[str, Path] = {}
        tables: list[KernelTable] = []
        for name, digest in sorted(proof.index.tables.items()):
            table = self._table(proof.policy, name, digest, fetch)
            for file in trust.object_files(table):
                objects[file.sha256] = self._object(file, fetch)
            tables.append(table)
        return Generation(proof.index.number, self.channel.name, self.channel.hardware, tuple(tables), objects)

    def _table(self, policy: AttestationPolicy, name: str, digest: str, fetch: bool) -> KernelTable:
        required = policy.required.get(self.channel.name, ())
        if not required:
            raise TrustError(f"{self.channel}: the policy does not say whose attestation it needs")
        for attestor in required:
            self._check_attestation(policy, digest, attestor, fetch)
        content = self._blob(digest, trust.MAX_MANIFEST_BYTES, f"manifest of {name}", fetch)
        return trust.parse_manifest(content, name, self.channel.hardware).table

    def _check_attestation(self, policy: AttestationPolicy, digest: str, attestor: str, fetch: bool) -> None:
        keys = policy.keys.get(attestor, ())
        cached = self.cache.find_attestation(digest, attestor)
        if cached is not None:
            try:
                trust.verify_attestation(cached, digest, attestor, keys)
                return
            except TrustError:
                if not fetch:
                    raise
        if not fetch:
            raise TrustError(f"{self.cache.folder}: the attestation of {digest[:12]} by {attestor} is missing")
        try:
            envelope = store.read(self._store, trust.attestation_key(digest, attestor), trust.MAX_ATTESTATION_BYTES)
        except ObjectNotFoundError:
            raise TrustError(f"manifest {digest[:12]} was never attested by {attestor}; it is not used") from None
        trust.verify_attestation(envelope, digest, attestor, keys)
        self.cache.add_attestation(digest, attestor, envelope)

    def _object(self, file: FileRef, fetch: bool) -> Path:
        content = self._blob(file.sha256, file.size_bytes, file.path, fetch)
        if len(content) != file.size_bytes:
            raise TrustError(f"{file.path}: {len(content)} bytes, but its manifest says {file.size_bytes}")
        return self.cache.blob_path(file.sha256)

    def _blob(self, sha256: str, max_bytes: int, what: str, fetch: bool) -> bytes:
        if not fetch:
            return self._cached(sha256, what)
        content = self.cache.find(sha256)
        if content is None:
            content = store.read(self._store, trust.blob_key(sha256), max_bytes)
            if records.sha256_hex(content) != sha256:
                raise TrustError(f"{self._store.url}: {what} was tampered with: its content is not {sha256[:12]}")
            self.cache.add(content)
        return content


class _StoreFetcher(FetcherInterface):
    """Lets the TUF client read from an object store; the timestamp was read already."""

    def __init__(self, object_store: ObjectStore, timestamp: bytes) -> None:
        self._store = object_store
        self._timestamp = timestamp

    def _fetch(self, url: str) -> Iterator[bytes]:
        if url == TIMESTAMP_KEY:
            return iter([self._timestamp])
        try:
            return iter([store.read(self._store, url, MAX_METADATA_BYTES)])
        except ObjectNotFoundError as error:
            raise tuf_errors.DownloadHTTPError(str(error), 404) from error
        except StoreAccessError as error:
            raise tuf_errors.DownloadHTTPError(str(error), 403) from error


def _parse_policy(content: bytes) -> AttestationPolicy:
    try:
        policy = records.parse(AttestationPolicy, content, "attestation policy")
    except MalformedRecordError as error:
        raise TrustError(str(error)) from None
    keys = ["".join(key.split()) for listed in policy.keys.values() for key in listed]
    if len(set(keys)) < len(keys):
        raise TrustError("attestation policy: it lists one key twice, so that one thief could speak for two attestors")
    return policy


def _role_with_one_key_twice(signed: Root | Targets) -> str | None:
    """The first role that lists the same public key under two ids."""
    delegations = signed if isinstance(signed, Root) else signed.delegations
    if delegations is None or delegations.roles is None:
        return None
    for name, role in delegations.roles.items():
        keys = [str(delegations.keys[i].keyval.get("public")) for i in role.keyids if i in delegations.keys]
        if len({"".join(key.split()) for key in keys}) < len(keys):
            return name
    return None


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turns the errors of the TUF libraries into ours."""
    try:
        yield
    except tuf_errors.ExpiredMetadataError as error:
        raise StaleRegistryError(
            f"{where}: {error}; publish or renew the registry, and check this host's clock"
        ) from error
    except tuf_errors.BadVersionNumberError as error:
        raise RollbackError(f"{where}: an older state than one already seen is offered ({error})") from error
    except (tuf_errors.RepositoryError, tuf_errors.DownloadError, StorageError, ValueError, KeyError) as error:
        if isinstance(error.__cause__, GristmillError):
            raise error.__cause__ from None
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise TrustError(f"{where}: the signed metadata does not hold: {error}{cause}") from error
