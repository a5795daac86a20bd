from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import errors
from gristmill.directory_store import DirectoryStore
from gristmill.s3_store import Endpoint, S3Store
from gristmill.store import MAX_OBJECT_BYTES, NotModified, ObjectStore, StoredObject
from registry import doctor
from registry.embedded_store import EmbeddedStore
from tests.registry.world import DelegatingStore, ForgetfulStore


class RacyStore(DelegatingStore):
    """Checks conditions before it writes, not while: right in sequence, wrong in a race."""

    def put_new(self, key: str, content: bytes) -> str:
        try:
            found = self.inner.get(key)
        except errors.ObjectNotFoundError:
            return self.inner.put(key, content)
        if getattr(found, "content", None) != content:
            raise errors.ObjectExistsError(key)
        return self.inner.put(key, content)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        try:
            found = self.inner.get(key)
        except errors.ObjectNotFoundError:
            raise errors.PreconditionFailedError(key) from None
        if found.etag != etag:
            raise errors.PreconditionFailedError(key)
        return self.inner.put(key, content)


def failed(store: DelegatingStore) -> set[str]:
    return {finding.check for finding in doctor.examine(store) if not finding.passed}


def test_good_stores_pass(tmp_path: Path, embedded_store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "RACERS", 3)
    monkeypatch.setattr(doctor, "ROUNDS", 1)
    key = embedded_store.credentials
    at = Endpoint("gristmill", "doctor", embedded_store.endpoint, "us-east-1", key.access_key, key.secret_key)
    for store in (DirectoryStore(tmp_path), S3Store(at)):
        findings = doctor.examine(store)
        assert all(finding.passed or not finding.essential for finding in findings), findings
        assert list(store.list("")) == []


def test_a_store_without_conditions_fails(tmp_path: Path) -> None:
    store = ForgetfulStore(DirectoryStore(tmp_path))
    assert {"conditions", "one winner of a race"} <= failed(store)
    with pytest.raises(errors.UnconditionalStoreError, match="Use a store"):
        doctor.require_conditional_puts(store)
    assert list(store.list("")) == []


def test_only_a_race_shows_a_racy_store(tmp_path: Path) -> None:
    store = RacyStore(DirectoryStore(tmp_path))
    assert "conditions" not in failed(store)
    assert failed(store) & {"one winner of a race", "no lost update"}


def test_a_good_store_is_probed_once(tmp_path: Path) -> None:
    store = DelegatingStore(DirectoryStore(tmp_path))
    doctor.require_conditional_puts(store)
    store.put = None  # type: ignore[assignment, method-assign]
    store.put_new = None  # type: ignore[assignment, method-assign]
    doctor.require_conditional_puts(store)


class RefusingStore(DelegatingStore):
    """Its credentials may not do some things."""

    def __init__(self, inner: ObjectStore, *refused: str) -> None:
        super().__init__(inner)
        self.refused = refused

    def _check(self, what: str) -> None:
        if what in self.refused:
            raise errors.StoreAccessError(f"{what} was refused")

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        self._check("read")
        return self.inner.get(key, etag, max_bytes)

    def put_new(self, key: str, content: bytes) -> str:
        self._check("write")
        return self.inner.put_new(key, content)

    def put(self, key: str, content: bytes) -> str:
        self._check("write")
        return self.inner.put(key, content)

    def list(self, prefix: str) -> Iterator[str]:
        self._check("list")
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self._check("delete")
        self.inner.delete(key)


@pytest.mark.parametrize(
    ("refused", "cost"),
    [
        ("write", "nothing can be published"),
        ("read", "pull nothing"),
        ("list", "registry gc"),
        ("delete", "frees nothing"),
    ],
)
def test_a_permission_that_lacks_is_named_with_its_cost(
    tmp_path: Path, refused: str, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "RACERS", 2)
    findings = {finding.check: finding for finding in doctor.examine(RefusingStore(DirectoryStore(tmp_path), refused))}
    found = findings["permissions"]
    assert not found.passed and found.essential and f"may not {refused}" in found.detail and cost in found.detail
    assert findings["clock"].passed


def test_credentials_that_may_nothing(tmp_path: Path) -> None:
    with pytest.raises(errors.StoreAccessError, match="was refused"):
        doctor.examine(RefusingStore(DirectoryStore(tmp_path), "read", "write", "list", "delete"))


class Remote(DelegatingStore):
    """Tells of itself what a test wants to hear."""

    skew_s = 0.0
    refuses = True
    versions = True

    def clock_skew_s(self) -> float:
        return self.skew_s

    def refuses_damage(self, key: str) -> bool:
        return self.refuses

    def keeps_old_versions(self) -> bool:
        return self.versions


@pytest.mark.parametrize(
    ("what", "value", "check", "essential", "cost"),
    [
        ("skew_s", -120.0, "clock", True, "expire"),
        ("refuses", False, "checksums", True, "found by hosts"),
        ("versions", False, "versioning", False, "backups"),
    ],
)
def test_each_lack_is_one_finding(
    tmp_path: Path, what: str, value: object, check: str, essential: bool, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "RACERS", 2)
    store = Remote(DirectoryStore(tmp_path))
    assert failed(store) == set()
    setattr(store, what, value)
    (found,) = [finding for finding in doctor.examine(store) if not finding.passed]
    assert (found.check, found.essential) == (check, essential) and cost in found.detail
