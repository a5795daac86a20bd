"""In an incident the object store is enough: Prefect is gone here, and MLflow takes connections and says nothing."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.__main__ import main
from gristmill.directory_store import DirectoryStore
from gristmill.trust import Channel
from registry.keys import load_keys
from registry.publication import Published, publish
from tasks import mlflow_mirror
from tasks.settings import from_environment
from tests.registry.world import make_artifact, shared_keys, take

COMMANDS = (
    ["registry", "log"],
    ["registry", "show"],
    ["registry", "diff", "canary~1", "canary"],
    ["registry", "gc", "--dry-run"],
    ["registry", "doctor"],
    ["keys", "show"],
    ["renew"],
    ["canary"],
    ["approve", "canary"],
    ["promote", "--release"],
    ["rollback"],
    ["revoke", "0" * 64, "--reason", "wrong"],
)
MIRRORED = ("approve", "promote", "rollback", "revoke")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections and never answers. Whoever waits for it still is let go at the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    for thread in threading.enumerate():
        if thread.name == "mirror":
            thread.join()


@pytest.fixture
def served(tmp_path: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch) -> Published:
    for name in [name for name in os.environ if name.startswith(("MILL_", "AWS_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILL_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("PREFECT_API_URL", f"{silent_server}/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent_server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mlflow_mirror, "PATIENCE_S", 0.1)
    monkeypatch.setattr(mlflow_mirror, "GRACE_S", 0.1)
    (tmp_path / "store").mkdir()
    settings = from_environment()
    shutil.copytree(shared_keys(), settings.keys_dir)
    store, keyring = DirectoryStore(tmp_path / "store"), load_keys(settings.keys_dir)
    channel = Channel("canary", settings.fleet, settings.model, settings.hardware)
    for code in (b"code 1", b"code 2"):
        artifact, files = make_artifact("rms_norm", code)
        artifact = replace(artifact, table=replace(artifact.table, hardware=settings.hardware))
        published = publish(store, keyring, channel, [artifact], files, take)
    return published


def test_commands_need_the_object_store_alone(served: Published, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert main(command) == 0, command
        said = capsys.readouterr()
        assert said.out, command


@pytest.mark.usefixtures("served")
def test_what_mlflow_missed_is_said_in_a_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollback"]) == 0
    (line,) = [record.getMessage() for record in caplog.records if record.name == mlflow_mirror.__name__]
    assert line.startswith("MLflow's model registry") and "./mill registry mirror" in line and "\n" not in line
    assert "is at" in capsys.readouterr().out


@pytest.mark.usefixtures("served")
def test_a_mirror_that_is_asked_for_ends_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_mirror.mirror, "__defaults__", (0.1,))
    assert main(["registry", "mirror"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("mill: MLflow") and complaint.count("\n") == 1
