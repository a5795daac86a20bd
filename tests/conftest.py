"""What all tests share: real object stores, started once, disks that keep nothing, and patience: how long an example
or a host's first poll takes says nothing here.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from registry.embedded_store import EmbeddedStore, running_or_started

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads that wait for others of theirs would compute until these come, on cores that are others' now.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""MLflow commits a dozen times per run, and a busy disk takes its time over each."""


@pytest.fixture(scope="session")
def template_home() -> Iterator[Path]:
    """A home whose MLflow schema is made, in `mlflow.db`; making it takes seconds, copying it does not."""
    from tasks import mlflow_store

    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        mlflow_store.open_store(Path(folder), f"sqlite:///{folder}/mlflow.db")
        yield Path(folder)


@pytest.fixture(scope="session")
def embedded_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """SeaweedFS on loopback; give every test a prefix of its own."""
    with running_or_started(tmp_path_factory.mktemp("embedded")) as store:
        yield store


@pytest.fixture(scope="session", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """No test can tell what a disk keeps, and syncing takes most of the time of many. Who tests what becomes of a sync
    that fails puts in its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def judges_own_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the judge itself runs as machine code takes seconds to build: once, not for each judge in a folder of its
    own. Workers side by side share it too.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        if native := sys.modules.get("harness.native"):
            build = native.build
            patch.setattr(native, "build", lambda cache, compiler, identity: build(folder / "own", compiler, identity))
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_starts() -> Iterator[None]:
    """A host's first poll takes what it takes, and none waits for a sidecar that no test has started. Who tests
    starts sets `start_s`.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in (("gristmill.pull", 3600.0), ("gristmill.cache_reader", 0.0)):
            if name in sys.modules:
                patch.setattr(sys.modules[name], "START_S", seconds)
        yield
