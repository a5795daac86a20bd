"""The host's cache: what was verified once, kept so that it can be verified again without a network.

Files appear whole and synced. A process holds `locked` while it changes anything, so that several engines on one host
can share a folder. Nothing in it is believed because it is there: content is hashed each time it is taken out.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gristmill import durable_file, folder_lock, machine, records, revocation, trust
from gristmill.errors import CacheError, MalformedRecordError, RollbackError, TrustError
from gristmill.machine import Binding
from gristmill.revocation import Revocations

R = TypeVar("R")
_OWN_FOLDERS = ("attestations", "blobs", "followed", "generations", "sidecars", "trials", "tuf")
"""Not the outbox: what engines leave there is believed no further than they are."""
LOCK_S = 60.0
"""How long another process may hold a cache before this one does without, and tries again later."""
MEND = "delete it to start from the registry again"
MEND_HIGH_WATER = (
    "nothing tells any more which versions this host has seen, so it takes nothing from the registry and loads nothing "
    "at a start. After a fault of the disk delete it, and the next poll remembers anew; that poll would not notice a "
    "replayed older state, so compare its generation with ./mill registry log"
)


@dataclass(frozen=True)
class GenerationRecord:
    """What a generation consists of, by digest: enough to prove it again offline."""

    targets_sha256: str
    """The signed metadata of the targets role."""
    role_sha256: str
    """The signed metadata of the channel's role."""
    policy_sha256: str
    index_sha256: str
    revoked_sha256: str = ""
    """The list of revoked digests; empty if none was published."""


@dataclass(frozen=True)
class HighWater:
    """The newest versions that this host has seen signed; nothing below is accepted, even if other files are lost."""

    versions: dict[str, int]
    """By name: a TUF role, or a channel's index path."""


class Cache:
    """A folder, made at the first use; see the module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tuf = folder / "tuf"
        """Belongs to `tuf.ngclient`."""
        self._warned = False

    def take_warnings(self) -> list[str]:
        """What somebody should look at, once."""
        if self._warned:
            return []
        folders = (self.folder, *(self.folder / name for name in _OWN_FOLDERS))
        exposed = [str(folder) for folder in folders if _writable_by_all(folder)]
        self._warned = bool(exposed)
        return [
            f"cache: every user of this machine may write to {', '.join(exposed)}: none brings code into a host, but "
            "each can keep kernels from it, and make it forget what it has seen and believe an older state; chmod o-w"
        ] * self._warned

    @contextlib.contextmanager
    def locked(self, seconds: float = LOCK_S) -> Iterator[None]:
        """Waits for the folder's lock and holds it; faults of the file system inside become `CacheError`.

        Raises:
            CacheError: another process has held it for so long; or the folder can't be written, or is full.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with folder_lock.held(self.folder / "lock", seconds):
                self._clear_client()
                yield
        except OSError as error:
            named = f" ({error.filename})" if error.filename else ""
            raise CacheError(
                f"cache {self.folder}: {error.strerror or error}{named}; free some space, or name a folder that this "
                "user can write"
            ) from error

    def _clear_client(self) -> None:
        """Removes what is no file from where the TUF client keeps its own.

        It would read through a link, wait for a pipe, and fail for ever on a folder. What is removed it fetches again.
        """
        history = self.tuf / "root_history"
        for folder in (self.tuf, history):
            if folder.is_symlink() or not folder.is_dir():
                folder.unlink(missing_ok=True)
                folder.mkdir()
        for path in (*self.tuf.iterdir(), *history.iterdir()):
            mode = path.lstat().st_mode
            expected = stat.S_ISDIR if path == history else stat.S_ISREG
            if not expected(mode) and not (path == self.tuf / "root.json" and stat.S_ISLNK(mode)):
                _remove(path)

    def blob_path(self, sha256: str) -> Path:
        """Where content with this digest is, or would be."""
        return self.folder / trust.blob_key(sha256)

    def find(self, sha256: str) -> bytes | None:
        """The content with this digest; None if it is missing or damaged."""
        try:
            content = durable_file.read(self.blob_path(sha256))
        except OSError:
            return None
        return content if records.sha256_hex(content) == sha256 else None

    def add(self, content: bytes) -> str:
        """Keeps content under its digest, which is returned; replaces a damaged copy."""
        sha256 = records.sha256_hex(content)
        if self.find(sha256) is None:
            self._write(self.blob_path(sha256), content)
        return sha256

    def find_attestation(self, manifest_sha256: str, attestor: str) -> bytes | None:
        """An envelope as it was stored; to be verified by whoever takes it."""
        try:
            return durable_file.read(self.folder / trust.attestation_key(manifest_sha256, attestor))
        except OSError:
            return None

    def add_attestation(self, manifest_sha256: str, attestor: str, envelope: bytes) -> None:
        self._write(self.folder / trust.attestation_key(manifest_sha256, attestor), envelope)

    def load_generation(self, channel: trust.Channel) -> GenerationRecord | None:
        """The channel's last good generation; None if there is none.

        Raises:
            CacheError: the record is damaged.
        """
        return self._load(GenerationRecord, self._generation_path(channel))

    def has_generation(self, channel: trust.Channel) -> bool:
        """Whether there is such a record, sound or not."""
        return os.path.lexists(self._generation_path(channel))

    def save_generation(self, channel: trust.Channel, record: GenerationRecord) -> None:
        self._write(self._generation_path(channel), records.canonical_json(record))

    def revoked(self) -> Revocations:
        """All that was ever revoked, as far as this host has heard.

        Raises:
            CacheError: the record is damaged.
        """
        return self._load(Revocations, self._revoked_path) or revocation.NOTHING

    def add_revoked(self, more: Revocations) -> None:
        """Remembers, durably, what a registry has revoked; a damaged record begins anew with that."""
        try:
            known = self.revoked()
        except CacheError:
            known = revocation.NOTHING
        joined = revocation.joined(known, more)
        if joined != known:
            self._write(self._revoked_path, records.canonical_json(joined))

    def followed(self, kind: trust.Channel) -> trust.Channel:
        """Which channel an `auto` host of this fleet, model and hardware has followed last; stable, if that is lost."""
        try:
            name = durable_file.read(self._followed_path(kind)).decode()
        except (OSError, UnicodeDecodeError):
            name = ""
        return replace(kind, name=name if name in trust.CHANNELS else trust.CHANNELS[-1])

    def save_followed(self, channel: trust.Channel) -> None:
        if self.followed(channel) != channel:
            self._write(self._followed_path(channel), channel.name.encode())

    def last_refresh(self) -> durable_file.Stamp:
        """Differs once some process has taken a new timestamp into the cache."""
        return durable_file.stamp(self.tuf / "timestamp.json")

    def watched(self, channel: trust.Channel) -> tuple[Path, ...]:
        """The files of which one is written whenever something changes that hosts of this kind are to know."""
        generations = (self._generation_path(replace(channel, name=name)) for name in trust.CHANNELS)
        return *generations, self._followed_path(channel), self._high_water_path, self.tuf / "timestamp.json"

    def high_water(self) -> dict[str, int]:
        """The versions remembered.

        Raises:
            CacheError: the record is damaged.
        """
        return (self._load(HighWater, self._high_water_path, MEND_HIGH_WATER) or HighWater({})).versions

    def raise_high_water(self, seen: dict[str, int]) -> None:
        """Remembers versions, durably; errors as `check_high_water`."""
        after = self.check_high_water(seen)
        if after != self.high_water():
            self._write(self._high_water_path, records.canonical_json(HighWater(after)))

    def check_high_water(self, seen: dict[str, int]) -> dict[str, int]:
        """Compares with the versions remembered, and returns what would be remembered with these.

        A new root starts every other count anew: that is how the holders of the root keys recover from a
        stolen key that signed an absurdly high version.

        Raises:
            RollbackError: one of them is lower than one seen before.
            CacheError: the record is damaged.
        """
        before = self.high_water()
        if seen["root"] > before.get("root", 0):
            before = {}
        for name, version in seen.items():
            if version < before.get(name, 0):
                raise RollbackError(
                    f"the registry offers version {version} of {name}, but this host has seen {before[name]}; "
                    "somebody replays an old state, or the store was restored from a backup"
                )
        return {**before, **seen}

    def bind_host(self) -> None:
        """Names this host anew where the folder has come from another machine, so that no two hosts report under one
        name or draw one cohort. To be called once per process, under the lock, before the name is used.
        """
        host = self.host_id()
        try:
            known = self._load(Binding, self._binding_path)
        except CacheError:
            known = None
        if known is not None and known.host == host and machine.differ(known.marks, machine.marks(host)):
            (self.folder / "host_id").unlink()
            host = self.host_id()
        kept = known.marks if known is not None and known.host == host else {}
        binding = Binding(host, {**kept, **machine.marks(host)})
        if binding != known:
            self._write(self._binding_path, records.canonical_json(binding))

    def host_id(self) -> str:
        """A random name for this host's reports, made once, or anew after damage; says nothing of the machine."""
        path = self.folder / "host_id"
        try:
            return trust.checked_digest(durable_file.read(path).decode())
        except (OSError, UnicodeDecodeError, TrustError):
            made = secrets.token_hex(32)
            self._write(path, made.encode())
            return made

    @property
    def _binding_path(self) -> Path:
        return self.folder / "host_machine.json"

    @property
    def _revoked_path(self) -> Path:
        return self.folder / "revoked.json"

    @property
    def _high_water_path(self) -> Path:
        return self.folder / "high_water.json"

    def _generation_path(self, channel: trust.Channel) -> Path:
        return self.folder / "generations" / channel.index_path

    def _followed_path(self, kind: trust.Channel) -> Path:
        return self.folder / "followed" / kind.fleet / kind.model / kind.hardware

    def _write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        durable_file.write(path, content)

    def _load(self, kind: type[R], path: Path, mend: str = MEND) -> R | None:
        try:
            return records.parse(kind, durable_file.read(path), str(path))
        except FileNotFoundError:
            return None
        except (MalformedRecordError, OSError) as error:
            raise CacheError(f"{error}; the file is damaged: {mend}") from None


def _writable_by_all(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
