"""Digests: whatever any command shows of one, every command and setting that takes digests takes."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cli.__main__ import main
from gristmill.directory_store import DirectoryStore
from gristmill.kernel_table import Artifact
from gristmill.kill_switch import read_kill_switch
from gristmill.trust import Channel
from registry.keys import load_keys
from registry.publication import publish
from tasks.settings import from_environment
from tests.registry.world import make_artifact, shared_keys, take

SHOWN = re.compile(r"\b(?:[0-9a-f]{12,64}|(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,11})\b")
COMMANDS = (
    ["registry", "log"],
    ["registry", "show"],
    ["registry", "diff", "canary~1", "canary"],
    ["registry", "diff", "canary", "canary"],
    ["approve", "canary"],
    ["keys", "show"],
    ["revoke", "f00" + "0" * 61, "--reason", "to see what it says"],
)


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Artifact]:
    """What canary served, and serves."""
    monkeypatch.setenv("MILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILL_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "store").mkdir()
    settings = from_environment()
    shutil.copytree(shared_keys(), settings.keys_dir)
    channel = Channel("canary", settings.fleet, settings.model, settings.hardware)
    found = []
    for code in (b"code 1", b"code 2"):
        artifact, files = make_artifact("rms_norm", code)
        artifact = replace(artifact, table=replace(artifact.table, hardware=settings.hardware))
        publish(DirectoryStore(tmp_path / "store"), load_keys(settings.keys_dir), channel, [artifact], files, take)
        found.append(artifact)
    return found


def shown(capsys: pytest.CaptureFixture[str], command: list[str]) -> set[str]:
    assert main(command) == 0, command
    return set(SHOWN.findall("".join(capsys.readouterr())))


@pytest.mark.usefixtures("artifacts")
def test_every_digest_that_is_shown_is_long_enough_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        digests = shown(capsys, command)
        assert digests and not [one for one in digests if len(one) < 12], command


def test_kernels_that_are_shown_can_be_denied_and_revoked(
    artifacts: list[Artifact], capsys: pytest.CaptureFixture[str]
) -> None:
    entry = artifacts[-1].table.entries[0]
    digests = shown(capsys, ["registry", "show"])
    kernels = [one for one in digests if entry.object.sha256.startswith(one)]
    candidates = [one for one in digests if entry.candidate.startswith(one)]
    assert kernels and candidates
    for digest in (*kernels, *candidates):
        assert read_kill_switch({"GRISTMILL_KILL": f"deny={digest}"}).denies(entry)
        assert main(["revoke", digest, "--reason", "wrong"]) == 0
        assert "is revoked" in capsys.readouterr().out


@pytest.mark.usefixtures("artifacts")
@pytest.mark.parametrize("whole", [False, True])
def test_a_state_is_none_to_revoke(whole: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["registry", "log", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)[1]["state"]
    assert main(["revoke", state if whole else state[:12], "--reason", "wrong"]) == 2
    told = capsys.readouterr().err
    assert "is a state of a channel, canary:2, and no kernel" in told and told.count("\n") == 1


@pytest.mark.usefixtures("artifacts")
def test_states_that_are_shown_name_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    for state in shown(capsys, ["registry", "diff", "canary", "canary"]):
        for typed in (state, state.upper(), f" {state}"):
            assert main(["registry", "show", typed]) == 0
            assert f"state {state}" in capsys.readouterr().out
