"""The object store: immutable objects by put-if-absent, one mutable pointer by compare-and-swap.

A conditional put goes out once. If its answer is lost, or says that somebody else was first, the object is read back
and compared, because a put that landed and was then retried looks exactly like a lost race. So, for `put_new` and
`replace_if` alike: a return means that the object held exactly these bytes after the call began, and two
writers of the same bytes both succeed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit

from gristmill.errors import StoreAddressError

MAX_OBJECT_BYTES = 256 << 20
"""What `get` reads at most when its caller names no limit."""
RENEWED_AFTER_S = 3600.0
"""Age from which `put_new` of bytes that are there already makes the object count as written now."""
_KEY_PART = re.compile(r"[A-Za-z0-9_=+@,.-]{1,255}")


@dataclass(frozen=True)
class StoredObject:
    """What a key held at one moment."""

    content: bytes
    etag: str
    """Opaque; equal while the object is unchanged."""


@dataclass(frozen=True)
class NotModified:
    """The object still is the one with this tag; its content was not sent."""

    etag: str


@dataclass(frozen=True)
class Listing:
    """What a store says of an object without reading it."""

    key: str
    size_bytes: int
    modified_s: float
    """When it was written, by the store's clock: seconds since 1970."""


@runtime_checkable
class ObjectStore(Protocol):
    """Thread-safe. Keys are relative paths with forward slashes; see `checked_key`.

    All methods raise a `StoreError`: unreachable, access refused, bucket missing, full. A call that raises
    `StoreUnreachableError` may or may not have taken effect.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages: without credentials."""
        ...

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        """Reads an object; `NotModified` only if `etag` is given and still current.

        Raises:
            ObjectNotFoundError: there is none.
            ObjectTooLargeError: it is longer than `max_bytes`; no more than that was read.
        """
        ...

    def put_new(self, key: str, content: bytes) -> str:
        """Writes an object that must not exist yet, and returns its tag.

        If it holds just these bytes, it counts from now on as written at most `RENEWED_AFTER_S` ago: whoever removes
        what is old and not referred to can tell that somebody is about to refer to it.

        Raises:
            ObjectExistsError: the key holds other bytes.
        """
        ...

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        """Replaces the object that has this tag, and returns the new tag.

        Raises:
            PreconditionFailedError: the object is another one by now, or gone.
        """
        ...

    def put(self, key: str, content: bytes) -> str:
        """Writes without a condition: for spools and reports, which have one writer per key."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that start with `prefix`, in order."""
        ...

    def scan(self, prefix: str) -> Iterator[Listing]:
        """As `list`, with size and age."""
        ...

    def delete(self, key: str) -> None:
        """Removes an object; that there is none is no error."""
        ...


def read(store: ObjectStore, key: str, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
    """The content of an object; errors as `ObjectStore.get`."""
    found = store.get(key, max_bytes=max_bytes)
    assert isinstance(found, StoredObject), "no etag was given"
    return found.content


def checked_key(key: str) -> str:
    """Returns the key if no store could take it for anything but a path below its root.

    Raises:
        StoreAddressError: absolute, empty, `.` or `..` parts, or characters outside `A-Za-z0-9_=+@,.-`.
    """
    if not all(_KEY_PART.fullmatch(part) and part.strip(".") for part in key.split("/")):
        raise StoreAddressError(
            f"object key {key!r}: expected a relative path of letters, digits and _=+@,.- without empty or dot parts"
        )
    return key


def open_store(url: str, environ: Mapping[str, str]) -> ObjectStore:
    """The store at an address; nothing is contacted yet.

    Args:
        url: `s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=us-east-1` (endpoint and region may also come
            from `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and `AWS_REGION`), or `file:///folder`.
        environ: where `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` are read from; without
            them boto3 looks in its usual places.
    """
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise _bad_address(url, str(error)) from None
    if "@" in parts.netloc:
        raise StoreAddressError(
            f"store address {parts.scheme}://...: credentials do not belong in it; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/") or options:
            raise _bad_address(url, "a folder needs an absolute path and no options")
        from gristmill.directory_store import DirectoryStore

        return DirectoryStore(Path(parts.path))
    if parts.scheme == "s3":
        unknown = sorted(set(options) - {"endpoint", "region"})
        if unknown or not parts.netloc:
            raise _bad_address(url, f"unknown option {unknown[0]!r}" if unknown else "no bucket is named")
        from gristmill.s3_store import Endpoint, S3Store

        endpoint = options.get("endpoint") or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        return S3Store(
            Endpoint(
                bucket=parts.netloc,
                prefix=parts.path.strip("/"),
                url=endpoint or None,
                region=options.get("region") or environ.get("AWS_REGION") or "us-east-1",
                access_key=environ.get("AWS_ACCESS_KEY_ID"),
                secret_key=environ.get("AWS_SECRET_ACCESS_KEY"),
                session_token=environ.get("AWS_SESSION_TOKEN"),
            )
        )
    raise _bad_address(url, f"scheme {parts.scheme!r} is not known")


def _bad_address(url: str, why: str) -> StoreAddressError:
    return StoreAddressError(
        f"store address {url!r}: {why}; expected s3://bucket/prefix?endpoint=http://HOST:PORT&region=REGION "
        "or file:///folder"
    )
