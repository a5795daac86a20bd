"""`./mill revoke`: by digits that other commands show; bad input in one line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cli.__main__ import main
from gristmill.directory_store import DirectoryStore
from gristmill.trust import Channel
from registry.keys import load_keys
from registry.publication import publish
from registry.repository import Repository
from tasks.settings import from_environment
from tests.registry.world import make_artifact, shared_keys, take


@pytest.fixture
def candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Digest of what canary serves."""
    monkeypatch.setenv("MILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILL_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "store").mkdir()
    settings = from_environment()
    shutil.copytree(shared_keys(), settings.keys_dir)
    artifact, files = make_artifact("rms_norm", b"code")
    artifact = replace(artifact, table=replace(artifact.table, hardware=settings.hardware))
    channel = Channel("canary", settings.fleet, settings.model, settings.hardware)
    keyring = load_keys(settings.keys_dir)
    publish(DirectoryStore(tmp_path / "store"), keyring, channel, [artifact], files, take)
    return artifact.table.entries[0].candidate


def test_says_what_it_was_and_where(candidate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revoke", candidate[:12], "--reason", "wrong at 7 tokens"]) == 0
    told = capsys.readouterr().out
    assert f"candidate {candidate} is revoked" in told and "rms_norm.float32 of canary/" in told
    assert main(["revoke", candidate, "--reason", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "candidate"


@pytest.mark.parametrize("digest", ["rms_norm", "0" * 12, "f" * 65])
def test_what_is_no_digest(candidate: str, digest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revoke", digest, "--reason", "wrong"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("mill: ") and complaint.count("\n") == 1


def test_reason_that_is_longer_than_hosts_take(candidate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revoke", candidate, "--reason", "x" * 501]) == 2
    complaint = capsys.readouterr().err
    assert "expected 500 at most" in complaint and complaint.count("\n") == 1
    assert main(["registry", "log"]) == 0


def test_reason_is_one_printable_line(candidate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revoke", candidate, "--reason", "wrong\n\x1b[31m at\t7"]) == 0
    settings = from_environment()
    revoked = Repository(DirectoryStore(Path(settings.store_url.removeprefix("file://"))), load_keys(settings.keys_dir))
    assert revoked.revoked().reasons == {candidate: "wrong [31m at 7"}
    capsys.readouterr()
    assert main(["revoke", candidate, "--reason", "\x1b\n"]) == 2
    assert main(["revoke", "\x1b[31m" + "f" * 12, "--reason", "wrong"]) == 2
    assert all(line.isprintable() for line in capsys.readouterr().err.splitlines())
