"""An object store behind any S3 endpoint that honours `If-None-Match: *` and `If-Match` on puts."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import functools
import hashlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gristmill import forked_child, transfer
from gristmill.errors import (
    MissingBucketError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    PreconditionFailedError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    UnconditionalStoreError,
)
from gristmill.store import MAX_OBJECT_BYTES, RENEWED_AFTER_S, Listing, NotModified, StoredObject, checked_key

CONNECT_TIMEOUT_S = 2
READ_TIMEOUT_S = 15
READ_ATTEMPTS = 3
CONFLICT_ATTEMPTS = 3
"""How often a put-if-absent is sent that the store answered with 409 (two at once, neither landed)."""

_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403", "401"}
_FULL = {"InsufficientStorage", "XMinioStorageFull", "QuotaExceeded", "EntityTooLargeForQuota", "507"}
_RACED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_MISSING = {"NoSuchKey", "NotFound", "404"}


@functools.cache
def _making_client() -> threading.Lock:
    """Clients may be used by many threads, but a session makes them one at a time."""
    return threading.Lock()


_making_client()


@functools.cache
def _session() -> Any:
    """Shared, because parsing the description of S3 costs more than everything else about a client."""
    import boto3

    return boto3.session.Session()


@dataclass(frozen=True)
class Endpoint:
    """Where a bucket is and how to get in."""

    bucket: str
    prefix: str
    url: str | None
    """None is AWS."""
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


def _date_s(answer: Any) -> float:
    """The store's clock when it answered, to about a second; ours if it does not say."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return email.utils.parsedate_to_datetime(date).timestamp() if date else time.time()


class _AmbiguousError(Exception):
    """A put went out, and whether it landed is not known."""


class S3Store:
    """Reads are retried, conditional puts never are; see `gristmill.store` for what a put promises."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._at = endpoint
        forked_child.tell(self)

    def forked(self) -> None:
        """In a forked child: makes connections of its own, for what comes through its parent's is its parent's."""
        _making_client.cache_clear()
        _making_client()  # before there are threads that would make two of it
        for name in ("_reader", "_writer"):
            self.__dict__.pop(name, None)

    @property
    def url(self) -> str:
        path = f"{self._at.bucket}/{self._at.prefix}" if self._at.prefix else self._at.bucket
        return f"s3://{path}" + (f" at {self._at.url}" if self._at.url else "")

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        condition = {"IfNoneMatch": etag} if etag else {}
        with self._explained(key) as codes:
            codes["304"] = None
            return self._get(key, max_bytes, **condition)[0]
        if etag is None:
            raise StoreError(f"{self.url}: answered that {key} is unchanged (304) to a request without a condition")
        return NotModified(etag)

    def _get(self, key: str, max_bytes: int, **condition: str) -> tuple[StoredObject, float]:
        """An object, and how old it is by the store's clock, in seconds."""
        with self._in_time(key, max_bytes):
            answer = self._reader.get_object(Bucket=self._at.bucket, Key=self._name(key), **condition)
            with contextlib.closing(answer["Body"]) as body:
                found = StoredObject(self._read_up_to(body, key, max_bytes), str(answer["ETag"]))
        modified = answer.get("LastModified")
        return found, _date_s(answer) - modified.timestamp() if modified else math.inf

    def _read_up_to(self, body: Any, key: str, max_bytes: int) -> bytes:
        """Counts what comes, because a store need not tell the length, nor the truth about it."""
        content = bytearray()
        while chunk := body.read(max_bytes + 1 - len(content)):
            content += chunk
            if len(content) > max_bytes:
                raise ObjectTooLargeError(f"{self.url}: {key} is longer than the {max_bytes} bytes allowed for it")
        return bytes(content)

    def put_new(self, key: str, content: bytes) -> str:
        lost: Exception | None = None
        for _ in range(CONFLICT_ATTEMPTS):
            try:
                return self._put_once(key, content, IfNoneMatch="*")
            except (_AmbiguousError, PreconditionFailedError) as error:
                lost = error.__cause__ if isinstance(error.__cause__, Exception) else error
                landed, age_s = self._read_back(key)
                if landed is not None and landed.content != content:
                    raise ObjectExistsError(f"{self.url}: {key} already holds other bytes") from None
                if landed is not None and age_s <= RENEWED_AFTER_S:
                    return landed.etag
                if landed is not None:
                    with contextlib.suppress(_AmbiguousError, PreconditionFailedError):
                        return self._put_once(key, content, IfMatch=landed.etag)
                elif isinstance(error, _AmbiguousError):
                    break
        raise StoreUnreachableError(
            f"{self.url}: writing {key} was not confirmed ({lost}); check the store's log, then try again"
        )

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        try:
            return self._put_once(key, content, IfMatch=etag)
        except (_AmbiguousError, PreconditionFailedError) as error:
            landed, _ = self._read_back(key)
            if landed is not None and landed.content == content:
                return landed.etag
            if isinstance(error, _AmbiguousError) and landed is not None and landed.etag == etag:
                raise StoreUnreachableError(
                    f"{self.url}: replacing {key} was not confirmed ({error.__cause__}); "
                    "check the store's log, then try again"
                ) from error
            raise PreconditionFailedError(f"{self.url}: {key} has changed since it was read") from None

    def put(self, key: str, content: bytes) -> str:
        with self._explained(key), self._in_time(key, len(content)):
            return self._send(self._reader, key, content)
        raise AssertionError("unreachable: no answer code is expected here")

    def list(self, prefix: str) -> Iterator[str]:
        return (key for key, _ in self._listed(prefix))

    def scan(self, prefix: str) -> Iterator[Listing]:
        for key, item in self._listed(prefix):
            yield Listing(key, int(item["Size"]), item["LastModified"].timestamp())

    def _listed(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        start = f"{self._at.prefix}/" if self._at.prefix else ""
        with self._explained(prefix):
            pages = self._reader.get_paginator("list_objects_v2").paginate(
                Bucket=self._at.bucket, Prefix=start + prefix
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield str(item["Key"])[len(start) :], item

    def delete(self, key: str) -> None:
        with self._explained(key):
            self._reader.delete_object(Bucket=self._at.bucket, Key=self._name(key))

    def create_bucket(self) -> None:
        """Makes the bucket; that it exists is no error."""
        with self._explained(self._at.bucket) as codes:
            codes.update({"BucketAlreadyOwnedByYou": None, "BucketAlreadyExists": None})
            self._reader.create_bucket(Bucket=self._at.bucket)

    def clock_skew_s(self) -> float:
        """How far the store's clock is ahead of ours, in seconds, to about one."""
        with self._explained(self._at.bucket):
            answer = self._reader.head_bucket(Bucket=self._at.bucket)
            return _date_s(answer) - time.time()
        raise AssertionError("unreachable: no answer code is expected here")

    def keeps_old_versions(self) -> bool:
        """Whether what is overwritten or deleted can be had back."""
        with self._explained(self._at.bucket):
            return str(self._reader.get_bucket_versioning(Bucket=self._at.bucket).get("Status")) == "Enabled"
        raise AssertionError("unreachable: no answer code is expected here")

    def refuses_damage(self, key: str) -> bool:
        """Whether the store turns away an object that is not what its checksum says; it is removed if not."""
        with self._explained(key) as codes:
            codes["400"] = None
            other = base64.b64encode(hashlib.sha256(b"something else").digest()).decode()
            self._writer.put_object(Bucket=self._at.bucket, Key=self._name(key), Body=b"1", ChecksumSHA256=other)
            self.delete(key)
            return False
        return True

    def _put_once(self, key: str, content: bytes, **condition: str) -> str:
        with self._explained(key, sent=True), self._in_time(key, len(content), sent=True):
            return self._send(self._writer, key, content, **condition)
        raise AssertionError("unreachable: no answer code is expected here")

    def _send(self, client: Any, key: str, content: bytes, **condition: str) -> str:
        answer = client.put_object(
            Bucket=self._at.bucket,
            Key=self._name(key),
            Body=content,
            ChecksumSHA256=base64.b64encode(hashlib.sha256(content).digest()).decode(),
            **condition,
        )
        return str(answer["ETag"])

    def _read_back(self, key: str) -> tuple[StoredObject | None, float]:
        """What is there, if anything, and its age in seconds."""
        with contextlib.suppress(ObjectNotFoundError), self._explained(key):
            return self._get(key, MAX_OBJECT_BYTES)
        return None, 0.0

    def _name(self, key: str) -> str:
        checked_key(key)
        return f"{self._at.prefix}/{key}" if self._at.prefix else key

    @functools.cached_property
    def _reader(self) -> Any:
        return self._client(READ_ATTEMPTS)

    @functools.cached_property
    def _writer(self) -> Any:
        return self._client(1)

    def _client(self, attempts: int) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": attempts},
            s3={"addressing_style": "path"} if self._at.url else None,
            max_pool_connections=16,
        )
        with _making_client():
            client = _session().client(
                "s3",
                endpoint_url=self._at.url,
                region_name=self._at.region,
                aws_access_key_id=self._at.access_key,
                aws_secret_access_key=self._at.secret_key,
                aws_session_token=self._at.session_token,
                config=config,
            )
        transfer.bound(client)
        return client

    @contextlib.contextmanager
    def _in_time(self, key: str, size_bytes: int, sent: bool = False) -> Iterator[None]:
        """Cuts off a transfer that takes longer than so many bytes may; `sent` as of `_explained`."""
        allowed_s = transfer.limit_s(size_bytes)
        with transfer.within(allowed_s) as ongoing:
            try:
                yield
            finally:
                if ongoing.expired:
                    late = StoreUnreachableError(
                        f"{self.url}: {key} was not through after {allowed_s:.0f} s; look at the store and the network"
                    )
                    if sent:
                        raise _AmbiguousError from late
                    raise late

    @contextlib.contextmanager
    def _explained(self, key: str, sent: bool = False) -> Iterator[dict[str, None]]:
        """Turns botocore's errors into ours. Answer codes that the caller adds to what is yielded end the block.

        Args:
            sent: whether a conditional put is under way, so that a lost answer is `_AmbiguousError`.
        """
        from botocore import exceptions as boto

        expected: dict[str, None] = {}
        try:
            yield expected
        except boto.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            http_status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code in expected or str(http_status) in expected:
                return
            if sent and http_status >= 500 and http_status not in (501, 507) and code not in _FULL:
                raise _AmbiguousError from error
            raise self._explain(key, code, http_status, sent) from error
        except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
            raise StoreAccessError(
                f"{self.url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
            ) from error
        except (boto.EndpointConnectionError, boto.ConnectTimeoutError) as error:
            raise StoreUnreachableError(
                f"{self.url}: nothing answers there; start the store, or correct the endpoint in the store's address"
            ) from error
        except boto.BotoCoreError as error:
            if sent and isinstance(error, boto.HTTPClientError):
                raise _AmbiguousError from error
            raise StoreUnreachableError(f"{self.url}: {key}: {error}; check the store, then try again") from error

    def _explain(self, key: str, code: str, http_status: int, sent: bool) -> StoreError:
        codes = {code, str(http_status)}
        if code == "NoSuchBucket":
            return MissingBucketError(f"{self.url}: there is no bucket {self._at.bucket}; create it, or name another")
        if codes & _RACED or (sent and codes & _MISSING):
            return PreconditionFailedError(f"{self.url}: {key} is not what the condition demands")
        if codes & _MISSING:
            return ObjectNotFoundError(f"{self.url}: no object {key}")
        if codes & _REFUSED:
            return StoreAccessError(
                f"{self.url}: {key} was refused ({code}); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they "
                "are allowed to do in this bucket"
            )
        if codes & _FULL:
            return StoreFullError(f"{self.url}: no room left to write {key}; free some space and try again")
        if http_status == 501:
            return UnconditionalStoreError(
                f"{self.url}: does not implement conditional puts; use a store that does, such as seaweedfs or AWS S3"
            )
        return StoreError(f"{self.url}: {key}: the store answered {code or http_status}; look in its log")
