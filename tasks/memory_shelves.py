"""Memory in the object store: segments that searches append, folded into one shelf per family by compare-and-swap.

    memory/<schema>/<family>/segments/<written ms>-<digest>.json   what one search learned in one stretch; put if absent
    memory/<schema>/<family>/sources/<digest>.json                 a candidate; put if absent, before its segment
    memory/<schema>/<family>/shelf.json                            everything folded so far; the one mutable object

A crash between any two writes costs nothing but what was not yet written: sources without a segment are swept after a
day, a segment that a shelf holds already is not counted again, and a shelf is replaced whole or not at all. What cannot
be read is left out with one warning that names it, and removed by the next compaction (a shelf is kept aside).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agents import shelf as shelves
from agents.memory import SCHEMA, Segment, Shelf
from gristmill import records
from gristmill.errors import (
    MalformedRecordError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    PreconditionFailedError,
)
from gristmill.store import ObjectStore, StoredObject, read
from kernels.candidate import Candidate
from kernels.errors import CandidateError

LOGGER = logging.getLogger(__name__)
ROOT = f"memory/{SCHEMA}/"
SHELF = "shelf.json"
MAX_SHELF_BYTES = 32 << 20
MAX_SEGMENT_BYTES = 8 << 20
MAX_SOURCE_BYTES = 4 << 20
SEGMENTS_AT_ONCE = 200
"""Read, or folded, in one go; the oldest first, so that none is left behind."""
ATTEMPTS = 8
"""How often a compaction starts anew because somebody else was first; then that one's result will do."""


@dataclass(frozen=True)
class _Found:
    """A shelf as it lies in the store."""

    shelf: Shelf
    etag: str
    """Empty if there is none yet."""
    damaged: bytes = b""
    """What lies there, if that is no shelf."""


@dataclass(frozen=True)
class _Segments:
    """Segments as they lie in the store."""

    whole: Mapping[str, Segment]
    damaged: tuple[str, ...]
    missed: bool
    """Whether one was gone by the time it was read."""


class MemoryShelves:
    """All shelves of one store. Any number of processes use them at once. Methods raise `StoreError`.

    An object that cannot be read is left out, with one warning that names it; the rest is not affected.
    """

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._store = store
        self._now_ms = now_ms
        self._warned: set[str] = set()

    def families(self) -> tuple[str, ...]:
        """Those of which anything is known."""
        return tuple(dict.fromkeys(key[len(ROOT) :].split("/")[0] for key in self._store.list(ROOT)))

    def add(self, segment: Segment, sources: Sequence[Candidate]) -> str:
        """Writes a segment and the sources that it names; returns its name. Doing it again changes nothing."""
        folder = f"{ROOT}{segment.family}/"
        for candidate in sources:
            content = records.canonical_json(candidate)
            try:
                self._store.put_new(f"{folder}sources/{candidate.digest}.json", content)
            except ObjectExistsError:
                LOGGER.debug("candidate %s is there with another origin", candidate.digest)
        name = segment_name(segment)
        self._store.put_new(f"{folder}segments/{name}.json", records.canonical_json(segment))
        return name

    def read(self, family: str) -> Shelf:
        """All that is known of a family now, segments that nobody has folded yet included."""
        for _ in range(ATTEMPTS):
            # In this order: a segment that is folded and removed meanwhile is in the shelf that is read after.
            names = self._segment_names(family)
            found = self._find(family)
            segments = self._segments(family, found.shelf, names)
            if not segments.missed:
                break
        return shelves.fold(found.shelf, segments.whole.items())

    def sources(self, family: str, digests: Iterable[str]) -> dict[str, Candidate]:
        """The candidates with these digests, as far as they are there and whole."""
        found = {digest: self._source(f"{ROOT}{family}/sources/{digest}.json", digest) for digest in digests}
        return {digest: candidate for digest, candidate in found.items() if candidate is not None}

    def unfolded(self, family: str) -> int:
        """How many segments wait for a compaction."""
        return len(self._segment_names(family))

    def compact(self, family: str, change: Callable[[Shelf], Shelf] = lambda shelf: shelf) -> Shelf:
        """Folds segments into the shelf, then removes them, and sources that have long been without use.

        Args:
            change: applied to what was folded, before it is written; may be called several times.
        """
        for _ in range(ATTEMPTS):
            found = self._find(family)
            names = self._segment_names(family)
            segments = self._segments(family, found.shelf, names)
            folded = change(shelves.fold(found.shelf, segments.whole.items()))
            # Listed after the segments were read, so that what they name is there.
            folded, unused = shelves.swept(folded, self._stored_sources(family), self._now_ms())
            if self._replaced(family, found, folded):
                self._remove(family, [*(n for n in names if _held(folded, n)), *segments.damaged], unused)
                return folded
        return self._find(family).shelf

    def forget(self, matches: Callable[[str, str], bool]) -> int:
        """Lets go of what was learned of operators and hardware that match `(operator, hardware key)`; returns how many
        records, lessons and candidates that were.
        """
        gone = 0
        for family in self.families():
            for _ in range(self.unfolded(family) // SEGMENTS_AT_ONCE + 1):
                before = self.compact(family)
            after = self.compact(family, lambda shelf: shelves.without(shelf, matches))
            gone += before.contents.size - after.contents.size
        return gone

    def _find(self, family: str) -> _Found:
        key = f"{ROOT}{family}/{SHELF}"
        try:
            stored = self._store.get(key, max_bytes=MAX_SHELF_BYTES)
        except ObjectNotFoundError:
            return _Found(shelves.empty(family), "")
        assert isinstance(stored, StoredObject), "no etag was given"
        try:
            shelf = records.parse(Shelf, stored.content, key)
            if (shelf.schema, shelf.family) == (SCHEMA, family):
                _check(shelves.complaint_of_shelf(shelf), key)
                return _Found(shelf, stored.etag)
            self._warn(key, f"schema {shelf.schema} of {shelf.family!r}")
        except MalformedRecordError as error:
            self._warn(key, str(error))
        return _Found(shelves.empty(family), stored.etag, stored.content)

    def _segment_names(self, family: str) -> list[str]:
        """The oldest first."""
        folder = f"{ROOT}{family}/segments/"
        names = [key[len(folder) :].removesuffix(".json") for key in self._store.list(folder)]
        return sorted(name for name in names if _NAME.fullmatch(name))[:SEGMENTS_AT_ONCE]

    def _segments(self, family: str, shelf: Shelf, names: Iterable[str]) -> _Segments:
        """Those that the shelf does not hold yet."""
        whole: dict[str, Segment] = {}
        damaged = []
        missed = False
        for name in names:
            if _held(shelf, name):
                continue
            key = f"{ROOT}{family}/segments/{name}.json"
            try:
                segment = records.parse(Segment, read(self._store, key, MAX_SEGMENT_BYTES), key)
                if (segment.schema, segment.family, segment_name(segment)) == (SCHEMA, family, name):
                    _check(shelves.complaint(segment.contents), key)
                    whole[name] = segment
                    continue
                self._warn(key, "it is not what its name says")
            except ObjectNotFoundError:
                missed = True
                continue
            except (MalformedRecordError, ObjectTooLargeError) as error:
                self._warn(key, str(error))
            damaged.append(name)
        return _Segments(whole, tuple(damaged), missed)

    def _source(self, key: str, digest: str) -> Candidate | None:
        try:
            candidate = records.parse(Candidate, read(self._store, key, MAX_SOURCE_BYTES), key)
        except (MalformedRecordError, ObjectTooLargeError, ObjectNotFoundError, CandidateError) as error:
            self._warn(key, str(error))
            return None
        if candidate.digest != digest:
            self._warn(key, "it is not what its name says")
            return None
        return candidate

    def _stored_sources(self, family: str) -> Iterator[str]:
        folder = f"{ROOT}{family}/sources/"
        return (key[len(folder) :].removesuffix(".json") for key in self._store.list(folder))

    def _replaced(self, family: str, found: _Found, shelf: Shelf) -> bool:
        key, content = f"{ROOT}{family}/{SHELF}", records.canonical_json(shelf)
        if found.damaged:
            aside = f"{ROOT}{family}/damaged/{records.sha256_hex(found.damaged)}"
            self._store.put_new(aside, found.damaged)
        elif shelf == found.shelf:
            return True
        try:
            if found.etag:
                self._store.replace_if(key, content, found.etag)
            else:
                self._store.put_new(key, content)
        except (ObjectExistsError, PreconditionFailedError):
            return False
        return True

    def _remove(self, family: str, segments: Iterable[str], sources: Iterable[str]) -> None:
        for name in segments:
            self._store.delete(f"{ROOT}{family}/segments/{name}.json")
        for digest in sources:
            self._store.delete(f"{ROOT}{family}/sources/{digest}.json")

    def _warn(self, key: str, why: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            LOGGER.warning("memory: %s is left out: %s", key, why)


def segment_name(segment: Segment) -> str:
    """Its place in time, and the digest of all of it."""
    return f"{segment.written_ms:015d}-{records.digest(segment)[:32]}"


def _check(complaint: str, key: str) -> None:
    """Raises MalformedRecordError for what would fail every fold that it is in."""
    if complaint:
        raise MalformedRecordError(f"{key}: {complaint}")


_NAME = re.compile(r"\d{15}-[0-9a-f]{32}")


def _held(shelf: Shelf, name: str) -> bool:
    return shelves.holds(shelf, name, int(name.partition("-")[0]))
