"""What all tests share: real object stores, started once, and patience: how long an example takes says nothing here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from registry.embedded_store import EmbeddedStore, running_or_started

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def embedded_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """SeaweedFS on loopback; give every test a prefix of its own."""
    with running_or_started(tmp_path_factory.mktemp("embedded")) as store:
        yield store


@pytest.fixture
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about what a disk keeps: syncing takes most of their time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
