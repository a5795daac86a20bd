"""An object store in a folder: for one machine, or a file system that honours `flock`, links and renames."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import durable_file
from gristmill.errors import (
    MissingBucketError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    PreconditionFailedError,
    StoreAccessError,
    StoreError,
    StoreFullError,
)
from gristmill.records import sha256_hex
from gristmill.store import MAX_OBJECT_BYTES, RENEWED_AFTER_S, Listing, NotModified, StoredObject, checked_key

PRIVATE = ".gristmill"
"""Folder below the root for the lock and for files under way; never listed."""


class DirectoryStore:
    """Objects are files; put-if-absent is `link`, compare-and-swap is a lock and a rename.

    Files appear whole: they are written and synced aside first. After a crash at most an unreferenced temporary
    file is left in the private folder. A folder that is not there yet is an empty store, which the first write makes,
    if the folder that it would be in is there: otherwise the address is taken for wrong.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        path = self._path(key)
        with self._explained(key):
            self._check_address()
            try:
                content = durable_file.read(path, max_bytes + 1, follow=True)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise ObjectNotFoundError(f"{self.url}: no object {key}") from None
        if len(content) > max_bytes:
            raise ObjectTooLargeError(f"{self.url}: {key} is longer than the {max_bytes} bytes allowed for it")
        found = sha256_hex(content)
        return NotModified(found) if found == etag else StoredObject(content, found)

    def put_new(self, key: str, content: bytes) -> str:
        path = self._path(key)
        with self._explained(key), self._written_aside(content) as aside:
            path.parent.mkdir(parents=True, exist_ok=True)
            while not self._linked(aside, path) and not self._renewed(path, content, key):
                pass
            durable_file.sync_folder(path.parent)
        return sha256_hex(content)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        path = self._path(key)
        new = sha256_hex(content)
        with self._explained(key), self._written_aside(content) as aside, self._locked():
            found = sha256_hex(path.read_bytes()) if path.is_file() else None
            if found == new:
                return new
            if found != etag:
                raise PreconditionFailedError(f"{self.url}: {key} has changed since it was read")
            aside.replace(path)
            durable_file.sync_folder(path.parent)
        return new

    def put(self, key: str, content: bytes) -> str:
        path = self._path(key)
        with self._explained(key), self._written_aside(content) as aside:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(path)
            durable_file.sync_folder(path.parent)
        return sha256_hex(content)

    def list(self, prefix: str) -> Iterator[str]:
        return (found.key for found in self.scan(prefix))

    def scan(self, prefix: str) -> Iterator[Listing]:
        with self._explained(prefix):
            self._check_address()
            folder = self.root / prefix.rpartition("/")[0]
            paths = folder.rglob("*") if folder.is_dir() else ()
            keys = sorted(key for path in paths if (key := path.relative_to(self.root).as_posix()).startswith(prefix))
            found = [self._listing(key) for key in keys if not key.startswith(f"{PRIVATE}/")]
        return iter([one for one in found if one is not None])

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._explained(key), self._locked():
            path.unlink(missing_ok=True)

    def _listing(self, key: str) -> Listing | None:
        """None if it is no file, or none any more."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = (self.root / key).stat()
            if stat.S_ISREG(found.st_mode):
                return Listing(key, found.st_size, found.st_mtime)
        return None

    def _linked(self, aside: Path, path: Path) -> bool:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        return True

    def _renewed(self, path: Path, content: bytes, key: str) -> bool:
        """Whether the file is there and holds these bytes; if it is gone by now, it is to be linked after all."""
        with self._locked():
            if not path.exists():
                return False
            if not path.is_file() or path.read_bytes() != content:
                raise ObjectExistsError(f"{self.url}: {key} already holds other bytes")
            if time.time() - path.stat().st_mtime > RENEWED_AFTER_S:
                os.utime(path)
        return True

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def _private(self) -> Path:
        folder = self.root / PRIVATE
        self._check_address()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def _written_aside(self, content: bytes) -> Iterator[Path]:
        descriptor, name = tempfile.mkstemp(dir=self._private())
        aside = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._private() / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(key, error) from error

    def _explain(self, key: str, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreFullError(f"{self.url}: no room left to write {key}; free some space and try again")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreAccessError(
                f"{self.url}: {key}: {error.strerror}; give this user read and write access to the folder"
            )
        return StoreError(f"{self.url}: {key}: {error.strerror or error}; check that the address names a folder")

    def _check_address(self) -> None:
        if not self.root.exists() and self.root.parent.is_dir():
            return
        if self.root.is_dir():  # asked last: others may be making it
            return
        if self.root.exists():
            raise MissingBucketError(f"{self.url}: this is no folder; check the address")
        raise MissingBucketError(
            f"{self.url}: neither this folder nor the one it would be in exists; check the address, or make it: "
            f"mkdir -p {self.root}"
        )
