from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import errors
from gristmill.directory_store import DirectoryStore
from gristmill.s3_store import Endpoint, S3Store
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
        assert all(finding.passed for finding in findings), findings
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
