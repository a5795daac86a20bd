"""Examines a store before the registry trusts it: a promise that it makes on paper is not one that it keeps."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from gristmill import store
from gristmill.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessError,
    StoreError,
    UnconditionalStoreError,
)
from gristmill.store import NotModified, ObjectStore, StoredObject

RACERS = 8
ROUNDS = 4
INCREMENTS = 3
"""How often each racer counts up."""
MAX_CLOCK_SKEW_S = 60.0
"""S3 itself refuses requests signed 15 minutes off; signatures on metadata expire by the clock, too."""


@dataclass(frozen=True)
class Finding:
    """One thing that was tried."""

    check: str
    passed: bool
    detail: str
    """What was seen; if it failed, what that would cost."""
    essential: bool = True
    """Whether a store that fails must not be used."""


@runtime_checkable
class RemoteStore(Protocol):
    """What can be asked of a store behind a network; see `gristmill.s3_store.S3Store`."""

    def clock_skew_s(self) -> float: ...

    def refuses_damage(self, key: str) -> bool: ...

    def keeps_old_versions(self) -> bool: ...


_proven: set[tuple[type, str]] = set()


def require_conditional_puts(object_store: ObjectStore) -> None:
    """A cheap, sequential probe, once per process and store.

    Raises:
        UnconditionalStoreError: the store ignores conditions.
    """
    identity = (type(object_store), object_store.url)
    if identity in _proven:
        return
    finding = _probe("conditions", object_store, _conditions)
    if not finding.passed:
        raise UnconditionalStoreError(
            f"{object_store.url}: {finding.detail}; two promotions at once would overwrite each other. Use a store "
            "with conditional puts (seaweedfs, AWS S3, or file:///...)"
        )
    _proven.add(identity)


def examine(object_store: ObjectStore) -> tuple[Finding, ...]:
    """All checks, in order; writes below `probe/` and removes what it wrote. Takes seconds.

    Raises:
        StoreError: the store can't be reached or used at all.
    """
    checks: tuple[tuple[str, Callable[[ObjectStore, str], str]], ...] = (
        ("permissions", _permissions),
        ("conditions", _conditions),
        ("one winner of a race", _race),
        ("no lost update", _count),
        ("unchanged reads", _not_modified),
        ("listing", _listing),
        ("checksums", _checksums),
        ("clock", _clock),
    )
    found = tuple(_probe(name, object_store, check) for name, check in checks)
    return (*found, replace(_probe("versioning", object_store, _versioning), essential=False))


class _BrokenPromiseError(Exception):
    """The store did what it must not do; the message says what."""


def _probe(name: str, object_store: ObjectStore, check: Callable[[ObjectStore, str], str]) -> Finding:
    folder = f"probe/{uuid.uuid4().hex}"
    try:
        return Finding(name, True, check(object_store, folder))
    except _BrokenPromiseError as error:
        return Finding(name, False, str(error))
    except StoreAccessError as error:
        if name == "permissions":
            raise
        return Finding(name, False, f"could not be tried: {error}")
    finally:
        with contextlib.suppress(StoreError):
            for key in list(object_store.list(f"{folder}/")):
                object_store.delete(key)


def _permissions(object_store: ObjectStore, folder: str) -> str:
    key = f"{folder}/object"
    tried: dict[str, tuple[Callable[[], object], str]] = {
        "write": (lambda: object_store.put_new(key, b"1"), "nothing can be published"),
        "read": (lambda: object_store.get(key), "hosts with these credentials pull nothing"),
        "list": (lambda: list(object_store.list(f"{folder}/")), "`registry gc` and captures don't see what is there"),
        "delete": (lambda: object_store.delete(key), "`registry gc` frees nothing, and probes like these stay"),
    }
    refused: dict[str, StoreAccessError] = {}
    for what, (act, _) in tried.items():
        try:
            act()
        except StoreAccessError as error:
            refused[what] = error
        except ObjectNotFoundError:
            continue
    if len(refused) == len(tried):
        raise refused["read"]
    if refused:
        costs = "; ".join(f"may not {what}: {tried[what][1]}" for what in refused)
        raise _BrokenPromiseError(f"{costs}. Extend what these credentials are allowed to do")
    return f"may {', '.join(tried)}"


def _conditions(object_store: ObjectStore, folder: str) -> str:
    key = f"{folder}/object"
    old = object_store.put_new(key, b"1")
    try:
        object_store.put_new(key, b"2")
    except ObjectExistsError:
        pass
    else:
        raise _BrokenPromiseError("a put with If-None-Match: * replaced an object that existed")
    object_store.replace_if(key, b"3", old)
    try:
        object_store.replace_if(key, b"4", old)
    except PreconditionFailedError:
        pass
    else:
        raise _BrokenPromiseError("a put with If-Match replaced an object that had changed")
    try:
        object_store.replace_if(f"{folder}/missing", b"5", old)
    except PreconditionFailedError:
        return "put-if-absent and compare-and-swap are refused when they must be"
    raise _BrokenPromiseError("a put with If-Match made an object that did not exist")


def _race(object_store: ObjectStore, folder: str) -> str:
    for turn in range(ROUNDS):
        key = f"{folder}/race-{turn}"
        start = threading.Barrier(RACERS)

        def put(racer: int, key: str = key, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                object_store.put_new(key, f"racer {racer}".encode())
            except ObjectExistsError:
                return False
            return True

        with ThreadPoolExecutor(RACERS) as pool:
            winners = sum(pool.map(put, range(RACERS)))
        if winners != 1:
            raise _BrokenPromiseError(
                f"{winners} of {RACERS} concurrent puts of one new key won: two promoters would "
                "each take a version for theirs"
            )
    return f"{ROUNDS} races of {RACERS}: one winner each"


def _count(object_store: ObjectStore, folder: str) -> str:
    key = f"{folder}/counter"
    object_store.put_new(key, b"0")

    def increment(racer: int) -> None:
        done = 0
        while done < INCREMENTS:
            found = object_store.get(key)
            assert isinstance(found, StoredObject), "no etag was given"
            value, _, _ = found.content.partition(b" ")
            try:
                object_store.replace_if(key, f"{int(value) + 1} by {racer}".encode(), found.etag)
                done += 1
            except PreconditionFailedError:
                time.sleep(0.001 * racer)

    with ThreadPoolExecutor(RACERS) as pool:
        list(pool.map(increment, range(RACERS)))
    counted = int(store.read(object_store, key).partition(b" ")[0])
    if counted != RACERS * INCREMENTS:
        raise _BrokenPromiseError(
            f"{RACERS * INCREMENTS} concurrent compare-and-swaps left a counter at {counted}: promotions would be lost"
        )
    return f"{counted} concurrent compare-and-swaps, none lost"


def _not_modified(object_store: ObjectStore, folder: str) -> str:
    key = f"{folder}/object"
    etag = object_store.put_new(key, b"1")
    if not isinstance(object_store.get(key, etag), NotModified):
        raise _BrokenPromiseError("an unchanged object was sent again: polling hosts would cost full transfers")
    object_store.delete(key)
    try:
        object_store.get(key)
    except ObjectNotFoundError:
        return "unchanged objects are not sent again"
    raise _BrokenPromiseError("a deleted object could still be read")


def _listing(object_store: ObjectStore, folder: str) -> str:
    keys = [f"{folder}/{name}" for name in ("a", "b/c")]
    for key in keys:
        object_store.put(key, b"x")
    try:
        found = list(object_store.list(f"{folder}/"))
    except StoreError as error:
        raise _BrokenPromiseError(f"listing failed: {error}") from None
    if found != keys:
        raise _BrokenPromiseError(
            f"listing gave {len(found)} of {len(keys)} keys just written: `registry gc` and captures would miss some"
        )
    return "objects are listed as soon as they are written"


def _checksums(object_store: ObjectStore, folder: str) -> str:
    if not isinstance(object_store, RemoteStore):
        return "nothing is sent over a network"
    if not object_store.refuses_damage(f"{folder}/damaged"):
        raise _BrokenPromiseError("an object with a wrong checksum was kept: damage on the way would be found by hosts")
    return "an object with a wrong checksum is refused"


def _clock(object_store: ObjectStore, folder: str) -> str:
    skew_s = object_store.clock_skew_s() if isinstance(object_store, RemoteStore) else 0.0
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        raise _BrokenPromiseError(
            f"its clock is {skew_s:.0f} s ahead of ours: it would refuse signed requests, or signatures would expire "
            "early or late; set both by NTP"
        )
    return f"its clock is {skew_s:.0f} s ahead of ours"


def _versioning(object_store: ObjectStore, folder: str) -> str:
    if not isinstance(object_store, RemoteStore):
        raise _BrokenPromiseError("a folder keeps no old versions: what a mistake deletes comes from backups only")
    try:
        kept = object_store.keeps_old_versions()
    except StoreError:
        raise _BrokenPromiseError(
            "whether old versions are kept was not answered; if not, what a mistake or a stolen key deletes is lost"
        ) from None
    if kept:
        return "old versions are kept: let a lifecycle rule remove them, or `registry gc` frees nothing"
    raise _BrokenPromiseError(
        "no old versions are kept: what a mistake or a stolen key deletes comes from backups only; switch versioning on"
    )
