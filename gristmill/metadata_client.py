"""What is current, asked of a store: TUF's client over an object store, and what it leaves open.

Loads TUF's libraries. The caller holds the cache's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from tuf.api import exceptions as tuf_errors
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from gristmill import cohort, limits, revocation, trust
from gristmill.cache import Cache, GenerationRecord
from gristmill.errors import ObjectNotFoundError, ObjectTooLargeError, RollbackError, StoreAccessError, TrustError
from gristmill.proof import explained, role_with_one_key_twice
from gristmill.store_reader import StoreReader
from gristmill.trust import Channel, Index

TIMESTAMP_KEY = "tuf/timestamp.json"


@dataclass(frozen=True)
class Current:
    """What a registry says now."""

    channel: Channel
    """The one that was asked for; for `auto`, the one that this host's cohort follows."""
    record: GenerationRecord | None
    """None if this channel was never published to."""
    expires: datetime
    """Until when."""


def refresh(cache: Cache, channel: Channel, root_bytes: bytes, reader: StoreReader, timestamp: bytes) -> Current:
    """Follows a timestamp, just read from the store, to all that it signs; keeps it in the cache.

    Args:
        channel: its name may be `cohort.AUTO`.
        root_bytes: the root metadata that all trust starts from.

    Raises:
        TrustError, RollbackError, StaleRegistryError: something is not what was signed, or older than what was seen.
        StoreError, CacheError: as the store and the cache do.
    """
    url = reader.url
    with explained(url):
        updater = Updater(
            str(cache.tuf),
            "tuf",
            fetcher=_StoreFetcher(reader, timestamp),
            config=UpdaterConfig(
                max_root_rotations=limits.MAX_ROOT_ROTATIONS,
                root_max_length=limits.MAX_ROOT_BYTES,
                timestamp_max_length=limits.MAX_TIMESTAMP_BYTES,
                snapshot_max_length=limits.MAX_METADATA_BYTES,
                targets_max_length=limits.MAX_METADATA_BYTES,
            ),
            bootstrap=root_bytes,
        )
        updater.refresh()
        _check_key_lists(cache, root_bytes, url)
        if channel.name == cohort.AUTO:
            channel = _followed(cache, channel, reader, updater)
        index_file = updater.get_targetinfo(channel.index_path)
        policy_file = updater.get_targetinfo(trust.POLICY_PATH)
        revoked_file = updater.get_targetinfo(revocation.PATH)
        expires = _raise_high_water(cache, timestamp, url)
        revoked_sha256 = _fetch_target(cache, reader, revoked_file) if revoked_file else ""
        if revoked_sha256:
            cache.add_revoked(revocation.parse(cache.find(revoked_sha256) or b""))
        if index_file is None:
            _check_never_seen(cache, channel, url)
            return Current(channel, None, expires)
        if policy_file is None:
            raise TrustError(f"{url}: no attestation policy is published; initialise the registry")
        record = GenerationRecord(
            targets_sha256=cache.add((cache.tuf / "targets.json").read_bytes()),
            role_sha256=cache.add((cache.tuf / f"{channel.name}.json").read_bytes()),
            policy_sha256=_fetch_target(cache, reader, policy_file),
            index_sha256=_fetch_target(cache, reader, index_file),
            revoked_sha256=revoked_sha256,
        )
    return Current(channel, record, expires)


def _followed(cache: Cache, kind: Channel, reader: StoreReader, updater: Updater) -> Channel:
    """The channel of this host's cohort.

    A canary that does not hold what its signatures promise is none: its key may be stolen, which must not keep a host
    from following stable.
    """
    signed = updater.get_targetinfo(cohort.POLICY_PATH)
    policy = None if signed is None else cohort.parse_policy(_read_target(cache, reader, signed))
    indexes = [_readable_index(cache, replace(kind, name=name), reader, updater) for name in trust.CHANNELS]
    return replace(kind, name=cohort.channel_name(cache.host_id(), policy, *indexes))


def _readable_index(cache: Cache, channel: Channel, reader: StoreReader, updater: Updater) -> Index | None:
    try:
        signed = updater.get_targetinfo(channel.index_path)
        return None if signed is None else trust.parse_index(_read_target(cache, reader, signed), channel)
    except (tuf_errors.RepositoryError, TrustError, ObjectNotFoundError, ObjectTooLargeError, ValueError, KeyError):
        return None
    except tuf_errors.DownloadError as error:
        if isinstance(error, tuf_errors.DownloadHTTPError) or isinstance(error.__cause__, tuf_errors.DownloadHTTPError):
            return None
        raise


class _StoreFetcher(FetcherInterface):
    """Lets the TUF client read from an object store; the timestamp was read already."""

    def __init__(self, reader: StoreReader, timestamp: bytes) -> None:
        self._reader = reader
        self._timestamp = timestamp

    def _fetch(self, url: str) -> Iterator[bytes]:
        if url == TIMESTAMP_KEY:
            return iter([self._timestamp])
        try:
            return iter([self._reader.read(url, limits.MAX_METADATA_BYTES)])
        except ObjectNotFoundError as error:
            raise tuf_errors.DownloadHTTPError(str(error), 404) from error
        except StoreAccessError as error:
            raise tuf_errors.DownloadHTTPError(str(error), 403) from error


def _check_key_lists(cache: Cache, root_bytes: bytes, url: str) -> None:
    """What the TUF client leaves open: how many roots there may be, and that thresholds count different keys."""
    root = Metadata[Root].from_file(str(cache.tuf / "root.json")).signed
    targets = Metadata[Targets].from_file(str(cache.tuf / "targets.json")).signed
    if root.version >= Metadata[Root].from_bytes(root_bytes).signed.version + limits.MAX_ROOT_ROTATIONS:
        raise TrustError(
            f"{url}: {limits.MAX_ROOT_ROTATIONS} roots or more follow the one that this host was installed with; "
            "install a newer root.json"
        )
    for signed in (root, targets):
        role = role_with_one_key_twice(signed)
        if role is not None:
            raise TrustError(f"{url}: role {role} lists one key twice, so its threshold means nothing")


def _raise_high_water(cache: Cache, offered: bytes, url: str) -> datetime:
    """Compares and remembers what was seen; returns when the timestamp expires."""
    timestamp = Metadata[Timestamp].from_file(str(cache.tuf / "timestamp.json")).signed
    if Metadata[Timestamp].from_bytes(offered).signed != timestamp:
        raise RollbackError(
            f"{url}: there are two timestamps of version {timestamp.version}, both signed: its key was stolen; "
            "rotate it"
        )
    snapshot = Metadata[Snapshot].from_file(str(cache.tuf / "snapshot.json")).signed
    root = Metadata[Root].from_file(str(cache.tuf / "root.json")).signed
    seen = {"root": root.version, "timestamp": timestamp.version, "snapshot": snapshot.version}
    seen.update({name.removesuffix(".json"): meta.version for name, meta in snapshot.meta.items()})
    cache.raise_high_water(seen)
    return timestamp.expires


def _check_never_seen(cache: Cache, channel: Channel, url: str) -> None:
    number = cache.high_water().get(channel.index_path)
    if number is not None:
        raise RollbackError(
            f"{url}: the index of {channel} is gone, but this host has seen number {number}; its key was stolen, or "
            "the store was restored from a backup"
        )


def _read_target(cache: Cache, reader: StoreReader, target: TargetFile) -> bytes:
    content = cache.find(_fetch_target(cache, reader, target))
    assert content is not None, "it was fetched just now"
    return content


def _fetch_target(cache: Cache, reader: StoreReader, target: TargetFile) -> str:
    sha256 = trust.checked_digest(target.hashes.get("sha256", ""))
    if cache.find(sha256) is None:
        content = reader.read(trust.target_key(target.path, sha256), min(target.length, limits.MAX_TARGET_BYTES))
        target.verify_length_and_hashes(content)
        cache.add(content)
    return sha256
