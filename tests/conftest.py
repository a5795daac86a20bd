"""Fixtures that several folders share: real object stores, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from registry.embedded_store import EmbeddedStore, running_or_started


@pytest.fixture(scope="session")
def embedded_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """SeaweedFS on loopback; give every test a prefix of its own."""
    with running_or_started(tmp_path_factory.mktemp("embedded")) as store:
        yield store
