"""What nothing refers to any more: left by promoters that died between two writes, or older than anybody goes back.

First the store is listed, then everything that the timestamp, and the states worth keeping, refer to is marked; what
was listed, is not marked, and was written longer ago than a grace period is garbage. Whoever is about to refer to
something has written it within that period, or made it young again (`ObjectStore.put_new`), so a promotion in flight
loses nothing; if it dies at the worst of moments, what it came to need is put back. Age is by the store's clock alone.
Roots stay for ever: hosts follow them one by one. Reports of hosts that are gone go after some days.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gristmill import records, store, trust
from gristmill.errors import ObjectExistsError, ObjectNotFoundError
from gristmill.kernel_table import Artifact
from gristmill.store import RENEWED_AFTER_S, Listing, ObjectStore
from gristmill.trust import Channel
from registry.entry import Entry
from registry.errors import CollectionError
from registry.metadata_reader import metadata_key
from registry.publication import read_manifest
from registry.repository import Live, Repository

DAY_S = 86_400.0
LEAST_REPORTS_S = 1 * DAY_S
KEPT_BYTES = 64 << 20
"""Of what was removed last, for whoever turns out to need it."""
FOLDERS = {
    "targets": "index",
    "tuf": "metadata",
    "attestations": "attestation",
    "blobs": "blob",
    "probe": "probe",
    "reports": "report",
}
"""Where the registry writes, and what; everything else in the store is somebody else's. In the order of removal: what
refers before what it refers to, so that a kill in between leaves nothing that refers to what is gone."""
_METADATA = re.compile(r"tuf/(\d+)\.([a-z_]+)\.json")
_ATTESTATION = re.compile(r"attestations/sha256/([0-9a-f]{64})\.[a-z]+\.dsse")
_REPORT = re.compile(r"reports/.+\.json")
_CONTENT = re.compile(r"(?:targets/.+/|blobs/sha256/[0-9a-f]{2}/)[0-9a-f]{64}(?:\..+)?")


@dataclass(frozen=True)
class KeepingPolicy:
    """What is kept although hosts no longer ask for it."""

    keep_s: float = 90 * DAY_S
    """A state is kept until so long after another took its place."""
    keep_states: int = 10
    """So many of each channel's newest states are kept whatever their age: something to roll back to."""
    grace_s: float = 1 * DAY_S
    """How long an object may be there before anything refers to it: longer than any promotion takes."""
    reports_s: float = 7 * DAY_S
    """How long the last report of a host that has fallen silent is kept."""

    def __post_init__(self) -> None:
        if not (self.keep_s >= 0 and self.keep_states >= 2 and self.grace_s > RENEWED_AFTER_S):
            raise CollectionError(
                f"keeping {self.keep_states} states for {self.keep_s / DAY_S:g} days with {self.grace_s / 3600:g} h of "
                f"grace: expected at least 2 states, 0 days, and more than {RENEWED_AFTER_S / 3600:g} h"
            )
        if not self.reports_s >= LEAST_REPORTS_S:
            raise CollectionError(
                f"keeping reports for {self.reports_s / DAY_S:g} days: expected at least {LEAST_REPORTS_S / DAY_S:g}; "
                "the watch looks at those of the last hours"
            )


@dataclass(frozen=True)
class Marked:
    """What must stay."""

    live: Live
    keys: frozenset[str]
    manifests: frozenset[str]
    """Digests; their attestations stay with them."""

    def needs(self, key: str) -> bool:
        match = _ATTESTATION.fullmatch(key)
        return key in self.keys or (match is not None and match[1] in self.manifests)


@dataclass(frozen=True)
class Garbage:
    """One object to remove, and why."""

    found: Listing
    kind: str
    why: str


@dataclass(frozen=True)
class Swept:
    """What became of a plan."""

    removed: tuple[Garbage, ...]
    spared: tuple[Garbage, ...]
    """Somebody came to need them after they were listed."""


DEFAULT_POLICY = KeepingPolicy()


def collect(
    object_store: ObjectStore,
    repository: Repository,
    policy: KeepingPolicy = DEFAULT_POLICY,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Swept:
    """Removes the garbage of a registry; with `dry_run`, only says what it would remove.

    May run beside promotions, and be killed at any moment: what it leaves is a valid registry with less garbage.
    Writes one small object to read the store's clock, also in a dry run.

    Raises:
        RegistryStateError: what is current is not what our keys signed.
        CollectionError: a current manifest is missing, for good or because a promotion is just putting it back. Nothing
            more is removed in either case.
    """
    now_s = store_clock_s(object_store)
    listed = [found for folder in FOLDERS for found in object_store.scan(f"{folder}/")]
    tell(f"{len(listed)} objects listed")
    marked = mark(object_store, repository, listed, now_s, policy)
    plan = plan_collection(listed, marked, now_s - policy.grace_s, now_s - policy.reports_s)
    if dry_run:
        return Swept(plan, ())

    def mark_again(removed: Mapping[str, bytes]) -> Marked:
        return mark(object_store, repository, listed, now_s, policy, removed)

    return _sweep(object_store, plan, marked.live, mark_again, repository.is_current, tell)


def plan_collection(
    listed: Iterable[Listing], marked: Marked, written_before_s: float, silent_before_s: float
) -> tuple[Garbage, ...]:
    """What of a listing is garbage, in the order of removal.

    Args:
        written_before_s: what is younger is spared.
        silent_before_s: when a host that reported last is taken for gone.
    """
    objects = [found for found in listed if found.key.partition("/")[0] in FOLDERS]
    settled = _settled_versions(objects, marked.live.versions, written_before_s)
    plan = [
        Garbage(found, FOLDERS[found.key.partition("/")[0]], why)
        for found in objects
        if found.modified_s < written_before_s
        and not marked.needs(found.key)
        and (why := _why_garbage(found, settled, silent_before_s)) is not None
    ]
    order = list(FOLDERS.values())
    return tuple(sorted(plan, key=lambda garbage: (order.index(garbage.kind), garbage.found.key)))


def mark(
    object_store: ObjectStore,
    repository: Repository,
    listed: Iterable[Listing],
    now_s: float,
    policy: KeepingPolicy = DEFAULT_POLICY,
    removed: Mapping[str, bytes] = MappingProxyType({}),
) -> Marked:
    """Everything that hosts, or somebody who rolls back within the keeping period, may ask for.

    Args:
        removed: objects, by key, that can be put back.

    Raises:
        RegistryStateError: see `Repository.live`.
    """
    live = repository.live()
    written_s = {found.key: found.modified_s for found in listed}
    keys = set(live.target_keys)
    keys |= {metadata_key(role, version) for role, version in live.versions.items()}
    manifests: set[str] = set()
    for channel, entry in live.states.items():
        for state in _kept(repository.history_from(entry, channel), channel, written_s, now_s, policy):
            keys.add(trust.target_key(channel.index_path, state.sha256))
            keys.add(metadata_key(channel.name, state.index.number))
            manifests.update(state.index.tables.values())
    current = {digest for entry in live.states.values() for digest in entry.index.tables.values()}
    for digest in manifests:
        keys.add(trust.blob_key(digest))
        try:
            artifact = _manifest(object_store, digest, removed)
            keys.update(trust.blob_key(file.sha256) for file in trust.all_files(artifact))
        except ObjectNotFoundError:
            if digest in current:
                raise CollectionError(
                    f"{object_store.url}: manifest {records.short(digest)}, which is current, is missing; restore it, "
                    "or publish it again, before anything is removed"
                ) from None
    return Marked(live, frozenset(keys), frozenset(manifests))


def _manifest(object_store: ObjectStore, sha256: str, removed: Mapping[str, bytes]) -> Artifact:
    content = removed.get(trust.blob_key(sha256))
    if content is None:
        return read_manifest(object_store, sha256)
    return records.parse(Artifact, content, f"manifest {records.short(sha256)}")


def store_clock_s(object_store: ObjectStore) -> float:
    """What time the store thinks it is: that of an object just written, in seconds since 1970."""
    key = f"probe/{uuid.uuid4().hex}/clock"
    object_store.put_new(key, b"")
    try:
        return next(found.modified_s for found in object_store.scan(key))
    finally:
        object_store.delete(key)


def _kept(
    states: Iterable[Entry], channel: Channel, written_s: Mapping[str, float], now_s: float, policy: KeepingPolicy
) -> Iterable[Entry]:
    """The states, newest first, until one was replaced too long ago and enough are kept without it."""
    replaced_s = now_s
    for number, state in enumerate(states):
        if number >= policy.keep_states and now_s - replaced_s > policy.keep_s:
            return
        yield state
        replaced_s = written_s.get(trust.target_key(channel.index_path, state.sha256), now_s)


def _settled_versions(
    objects: Iterable[Listing], current: Mapping[str, int], written_before_s: float
) -> dict[str, int]:
    """Role to a version from before the grace period, not above the current one: hosts have left what is below it."""
    settled: dict[str, int] = defaultdict(int)
    for found in objects:
        match = _METADATA.fullmatch(found.key)
        if match and found.modified_s < written_before_s:
            version, role = int(match[1]), match[2]
            if version <= current.get(role, 0):
                settled[role] = max(settled[role], version)
    return settled


def _why_garbage(found: Listing, settled: Mapping[str, int], silent_before_s: float) -> str | None:
    """Why an object that nothing needs may go; None if it must stay all the same, or is not known.

    Metadata above the current version stays until a publication or a renewal has passed it: its name would be free, a
    promoter could write it anew, and a second collection that had looked before would delete what is current.
    """
    key = found.key
    if match := _METADATA.fullmatch(key):
        version, role = int(match[1]), match[2]
        return "a newer version is current" if version < settled.get(role, 0) else None
    if _ATTESTATION.fullmatch(key) or _CONTENT.fullmatch(key):
        return "no state that is kept refers to it"
    if _REPORT.fullmatch(key):
        return "its host has been silent for days" if found.modified_s < silent_before_s else None
    return "left by a check of the store" if key.startswith("probe/") else None


class _Bin:
    """What was removed last, so that it can be put back: `KEPT_BYTES` of it, or one object."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._size_bytes = 0

    def take(self, key: str, content: bytes) -> None:
        self.contents[key] = content
        self._size_bytes += len(content)
        while len(self.contents) > 1 and self._size_bytes > KEPT_BYTES:
            self._drop(next(iter(self.contents)))

    def put_back(self, object_store: ObjectStore, needs: Callable[[str], bool]) -> list[str]:
        """Writes what is needed after all, and returns its keys."""
        back = [key for key in self.contents if needs(key)]
        for key in back:
            with contextlib.suppress(ObjectExistsError):
                object_store.put_new(key, self.contents[key])
            self._drop(key)
        return back

    def _drop(self, key: str) -> None:
        self._size_bytes -= len(self.contents.pop(key))


def _sweep(
    object_store: ObjectStore,
    plan: Iterable[Garbage],
    live: Live,
    mark_again: Callable[[Mapping[str, bytes]], Marked],
    is_current: Callable[[str], bool],
    tell: Callable[[str], None],
) -> Swept:
    """Deletes one by one, after a second look at each. If a publication has landed since, all is marked again, and what
    was removed and is needed now is put back: who has published it may be dead by now.
    """
    removed: dict[str, Garbage] = {}
    spared: list[Garbage] = []
    emptied, etag, needs = _Bin(), live.timestamp_etag, _nothing

    def look_again() -> None:
        nonlocal etag, needs
        if not is_current(etag):
            marked = mark_again(emptied.contents)
            etag, needs = marked.live.timestamp_etag, marked.needs
            spared.extend(removed.pop(key) for key in emptied.put_back(object_store, needs))

    for garbage in plan:
        key = garbage.found.key
        try:
            content = store.read(object_store, key)
        except ObjectNotFoundError:
            continue
        if needs(key) or next(object_store.scan(key), garbage.found).modified_s > garbage.found.modified_s:
            spared.append(garbage)
            continue
        object_store.delete(key)
        removed[key] = garbage
        emptied.take(key, content)
        look_again()
        tell(f"{len(removed)} removed")
    look_again()
    return Swept(tuple(removed.values()), tuple(spared))


def _nothing(key: str) -> bool:
    return False
