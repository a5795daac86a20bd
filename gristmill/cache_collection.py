"""Collection of a cache: what no generation needs any more goes, so that a host's disk does not fill with its history.

Needed are the files of what each channel serves, by the cache's records, and served before that; what the TUF client
names; and whatever was needed a day ago, for another process may still be loading it. A file's time of writing says
when it was last known to be needed. Where a record or an index cannot be read, nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from gristmill import durable_file, records
from gristmill.cache import Cache, GenerationRecord
from gristmill.errors import MalformedRecordError
from gristmill.kernel_table import Artifact
from gristmill.trust import Index, object_files

EVERY_S = 86400.0
"""Between two collections of one cache."""
KEPT_S = 2 * EVERY_S
"""Since a file was last known to be needed: the one collection at which it was not any more, and another."""
TRIALS_KEPT_S = 90 * EVERY_S
"""Since a kernel that is not needed has taken down an engine."""
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_ASIDE = ".aside-"
T = TypeVar("T")


class _UnreadableError(Exception):
    """It can't be told what is needed."""


def collect_if_due(cache: Cache) -> int:
    """Removes what is not needed, at most once a day, and returns how many files. To be called under the cache's lock.

    A file that cannot be removed stays; nobody is worse off than before.
    """
    due = cache.folder / "collected"
    now_s = time.time()
    with contextlib.suppress(OSError):
        if not due.exists():
            due.touch()
        elif abs(now_s - due.stat().st_mtime) >= EVERY_S:
            due.touch()
            with contextlib.suppress(_UnreadableError):
                return _collect(cache, now_s)
    return 0


def _collect(cache: Cache, now_s: float) -> int:
    needed = set(_needed(cache))
    removed = 0
    for kind, kept_s in (("blobs", KEPT_S), ("attestations", KEPT_S), ("trials", TRIALS_KEPT_S)):
        for path in _files(cache.folder / kind):
            with contextlib.suppress(OSError):
                if path.name.partition(".")[0] in needed:
                    if kind != "trials":
                        os.utime(path)
                elif now_s - path.lstat().st_mtime > kept_s:
                    path.unlink()
                    removed += 1
    for path in _files(cache.folder / "generations"):
        with contextlib.suppress(OSError):
            if path.name.startswith(_ASIDE) and now_s - path.lstat().st_mtime > KEPT_S:
                path.unlink()
                removed += 1
    return removed


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):  # follows no links to folders
        yield from (Path(where) / name for name in names)


def _needed(cache: Cache) -> Iterator[str]:
    """Digests of content, and of manifests that attestations are about."""
    seen: set[str] = set()
    for path in _files(cache.tuf):
        if path.suffix == ".json":
            yield from (found.decode() for found in _DIGEST.findall(_read(path)))
    for path in _files(cache.folder / "generations"):
        if path.name.startswith(_ASIDE):
            continue
        record = _parsed(GenerationRecord, _read(path))
        yield from filter(None, vars(record).values())
        index = _index(cache, record.index_sha256)
        yield from _of_index(cache, index, seen)
        if index.previous is not None and cache.blob_path(index.previous).exists():
            yield index.previous
            yield from _of_index(cache, _index(cache, index.previous), seen)


def _index(cache: Cache, sha256: str) -> Index:
    content = cache.find(sha256)
    if content is None:
        raise _UnreadableError
    return _parsed(Index, content)


def _of_index(cache: Cache, index: Index, seen: set[str]) -> Iterator[str]:
    """A manifest that is not there is of a table that no process of this host uses. One that was seen is not read
    again: neighbouring generations share most of theirs.
    """
    for manifest in index.tables.values():
        if manifest in seen:
            continue
        seen.add(manifest)
        yield manifest
        content = cache.find(manifest)
        if content is None and cache.blob_path(manifest).exists():
            raise _UnreadableError
        if content is not None:
            yield from (file.sha256 for file in object_files(_parsed(Artifact, content).table))


def _read(path: Path) -> bytes:
    try:
        return durable_file.read(path, follow=True)
    except OSError:
        raise _UnreadableError from None


def _parsed(kind: type[T], content: bytes) -> T:
    try:
        return records.parse(kind, content, "what the cache holds")
    except MalformedRecordError:
        raise _UnreadableError from None
