"""`./mill keys` and `./mill approve`: a ceremony by hand, and bad input in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cli.__main__ import main
from gristmill.directory_store import DirectoryStore
from gristmill.trust import Channel
from registry import passphrase
from registry.keys import create_keys, load_keys
from registry.metadata_writer import LIFETIMES
from registry.publication import publish
from tasks.settings import from_environment
from tests.registry.world import make_artifact, take

SECRET = "correct horse battery"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("MILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILL_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("MILL_KEYS_PASSPHRASE_FILE", str(tmp_path / "secret"))
    monkeypatch.setattr(passphrase, "_taken", [])
    return tmp_path / "home"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    return {fact["name"]: fact for fact in json.loads(said(capsys, "keys", "show", "--json"))}


def test_a_ceremony_by_hand(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = said(capsys, "keys", "init")
    assert str(home / "keys" / "root.json") in made and SECRET not in made
    first = shown(capsys)
    assert all(fact["trusted"] for fact in first.values())
    assert first["root-1"]["private"] == "here, encrypted" and first["canary"]["private"] == "here"
    assert said(capsys, "keys", "init", "--json") == json.dumps(list(first.values()), indent=2) + "\n"

    rotated = said(capsys, "keys", "rotate", "root-1")
    assert first["root-1"]["key_id"][:12] in rotated and "root 2" in rotated  # type: ignore[index]
    revoked = json.loads(said(capsys, "keys", "revoke", "judge", "--json"))
    second = shown(capsys)
    assert revoked["new"] == {"judge": second["judge"]["key_id"]}
    assert {name for name in first if first[name]["key_id"] != second[name]["key_id"]} == {"root-1", "judge"}
    assert all(fact["trusted"] for fact in second.values())


def test_a_person_approves_and_releases(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "keys", "init")
    settings = from_environment()
    made, files = make_artifact("rms_norm", b"code")
    artifact = replace(made, table=replace(made.table, hardware=settings.hardware))
    channel = Channel("canary", settings.fleet, settings.model, settings.hardware)
    store = DirectoryStore(home.parent / "store")
    publish(store, load_keys(home / "keys"), channel, [artifact], files, take)
    assert main(["promote", "--release"]) == 2
    assert "./mill approve rms_norm.float32" in capsys.readouterr().err, "its key is closed: no policy approves"
    assert "promote --release" in said(capsys, "approve", "rms_norm.float32")
    answer = json.loads(said(capsys, "approve", "canary", "--release", "--json"))
    assert [one["table"] for one in answer["approved"]] == ["rms_norm.float32"] and answer["stable"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rotate"], "expected one of root, targets"),
        (["revoke", "nobody"], "expected one of root, targets"),
        (["rotate", "canary"], "./mill keys init"),
        (["init", "canary"], "only with --signer"),
        (["show", "canary"], "give no name"),
        (["rotate", "canary", "--signer", "awskms:x"], "--public belong together"),
        (["rotate", "root", "--signer", "awskms:x", "--public", "x"], "is for one key"),
        (["init", "canary", "--signer", "nokms:x", "--public", "x"], "expected one of awskms:"),
        (["show"], "is missing"),
        (["renew", "canary"], "expected root or targets"),
        (["renew", "root"], "./mill keys init"),
        (["export", "canary"], "--to DIR belongs to export"),
        (["rotate", "canary", "--to", "x"], "--to DIR belongs to export"),
        (["export", "nobody", "--to", "x"], "expected names of keys"),
        (["rotate", "canary", "judge"], "found 2 names"),
        (["export", "canary", "--to", "x"], "./mill keys init"),
    ],
)
def test_bad_input_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["keys", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and expected in lines[0]


def test_too_short_a_passphrase_makes_no_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home.parent / "secret").write_text("short")
    assert main(["keys", "init"]) == 2
    assert "expected 12 or more" in capsys.readouterr().err
    assert not list((home / "keys").glob("*.pem"))


@pytest.mark.parametrize(
    "command",
    ["registry log", "registry show", "registry gc", "registry mirror", "canary", "rollback", "promote --release"],
)
def test_whoever_looks_makes_no_keys(home: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "./mill keys init" in line
    assert not (home / "keys").exists()
    assert not list((home.parent / "store").iterdir()), "and no registry"


def test_keys_that_lie_open_are_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a demo in the same home leaves them: a registry must not be founded on them without a word."""
    create_keys(home / "keys")
    assert main(["keys", "init"]) == 0
    assert "NOT encrypted: root-1, root-2, root-3, targets, approver" in capsys.readouterr().err
    for name in ("root", "targets", "approver"):
        said(capsys, "keys", "rotate", name)
    assert main(["keys", "init"]) == 0
    assert capsys.readouterr().err == ""


def test_what_expires_is_shown_and_renewed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for role in ("root", "targets"):
            patched.setitem(LIFETIMES, role, timedelta(days=9))
        said(capsys, "keys", "init")
    for command in (["keys", "show"], ["renew"]):
        assert main(command) == 0
        lines = capsys.readouterr().err.splitlines()
        assert [line.split()[:2] for line in lines] == [["WARNING:", "root"], ["WARNING:", "targets"]]
        assert "./mill keys renew root, where two of its keys are" in lines[0]
    assert main(["registry", "doctor"]) == 0, "hosts follow still"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("expiry")]
    assert "advice" in line and "root expires on" in line
    before = shown(capsys)

    assert "root: counts until" in said(capsys, "keys", "renew", "root")
    assert json.loads(said(capsys, "keys", "renew", "targets", "--json")).keys() == {"targets"}
    assert main(["keys", "renew"]) == 0 and main(["keys", "show"]) == 0
    assert capsys.readouterr().err == ""
    after = shown(capsys)
    assert {name: fact["key_id"] for name, fact in after.items()} == {n: fact["key_id"] for n, fact in before.items()}
    assert all(after[name]["expires"] > before[name]["expires"] for name in ("root-1", "targets"))  # type: ignore[operator]
    assert after["judge"]["expires"] is None


def test_a_worker_is_given_its_keys(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "keys", "init")
    worker = home.parent / "worker"
    assert "3 private keys" in said(capsys, "keys", "export", "canary", "snapshot", "timestamp", "--to", str(worker))
    answer = json.loads(said(capsys, "keys", "export", "--json", "--to", str(home.parent / "looks")))
    assert answer["private"] == []
    assert {path.stem for path in worker.glob("*.pem")} == {"canary", "snapshot", "timestamp"}
