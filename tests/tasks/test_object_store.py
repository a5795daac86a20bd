"""The store of the settings, or the embedded one; credentials travel in environments and nowhere else."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.directory_store import DirectoryStore
from gristmill.errors import StoreAddressError
from gristmill.store import open_store, read
from registry.embedded_store import EmbeddedStore
from tasks import object_store
from tests.tasks.world import settings


def test_a_folder_needs_nothing_else(tmp_path: Path) -> None:
    with object_store.opened(settings(tmp_path, tmp_path / "store")) as opened:
        assert isinstance(opened.store, DirectoryStore)
        assert opened.url == f"file://{tmp_path / 'store'}" and opened.environ == {}
    assert not (tmp_path / "store").exists(), "opening writes nothing"


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreAddressError, match="expected s3://"),
        object_store.opened(replace(settings(tmp_path), store_url="ftp://x")),
    ):
        pass


def test_another_process_can_open_the_embedded_store_with_what_it_is_told(
    embedded_store: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is how `./mill serve` joins `./mill demo`. The session's store stands for one started for this home."""
    monkeypatch.setattr(
        "registry.embedded_store.running_or_started", lambda home: contextlib.nullcontext(embedded_store)
    )
    home = tmp_path_factory.mktemp("home")
    with object_store.opened(settings(home)) as opened:
        opened.store.put_new("from/here", b"hello")
        other = open_store(opened.url, opened.environ)
        assert read(other, "from/here") == b"hello"
        secret = opened.environ["AWS_SECRET_ACCESS_KEY"]
        assert secret not in repr(opened) and secret not in opened.url and secret not in opened.store.url
