"""The mirror in MLflow's model registry: right after any death and any damage, and nothing that a promotion needs."""

from __future__ import annotations

import json
import logging
import os
import socket
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli import __main__ as command_line
from gristmill import records
from registry.approval import PERSON, approve
from registry.publication import move, publish
from registry.revocation import revoke
from registry.rollback import roll_back
from tasks import mlflow_mirror, mlflow_store
from tasks.channel_view import SET_TAG
from tasks.errors import MirrorError
from tasks.mlflow_mirror import Mirrored, keep_mirror, mirror
from tasks.settings import Settings
from tests.registry.world import CANARY, STABLE, Killed, World, make_artifact, take

MODEL = "gristmill chat llama on x86_64-test"


@pytest.fixture
def world(home: Path) -> World:
    """Stable serves rms_norm, and canary tries softmax beside it."""
    world = World(home)
    world.publish("rms_norm", b"code 1")
    move(world.store, world.keyring, CANARY)
    world.publish("softmax", b"code 2")
    return world


def settings_of(world: World, uri: str = "") -> Settings:
    return Settings(world.folder, world.store.url, CANARY.fleet, CANARY.model, CANARY.hardware, uri)


def mirrored(world: World, uri: str = "") -> Mirrored:
    (one,) = mirror(settings_of(world, uri))
    return one


def client(world: World, uri: str = "") -> Any:
    return mlflow_store.open_store(world.folder, uri)


def copied_store(source: Path, to: Path) -> str:
    """The address of a copy; open connections to either see nothing of it."""
    with sqlite3.connect(source) as old, sqlite3.connect(to) as new:
        old.backup(new)
    return f"sqlite:///{to}"


def shown(world: World, uri: str = "") -> dict[str, Any]:
    """All that MLflow shows but for its own numbers and times: versions by what they hold."""
    mlflow = client(world, uri)
    model = mlflow.get_registered_model(MODEL)
    versions = {str(one.version): one for one in mlflow.search_model_versions(f"name = '{MODEL}'")}
    return {
        "model": (model.tags, model.description),
        "aliases": {name: versions[str(number)].tags[SET_TAG] for name, number in model.aliases.items()},
        "versions": sorted((one.tags[SET_TAG], one.tags, one.description, one.source) for one in versions.values()),
    }


def status(world: World) -> dict[str, str]:
    """Operators of each version to its status."""
    return {tags["operators"]: tags["status"] for _, tags, _, _ in shown(world)["versions"]}


class DyingClient:
    """Kills its user before the n-th write, counted from 0."""

    READS = ("search_", "get_")

    def __init__(self, inner: Any, left: int) -> None:
        self.inner, self.left = inner, left

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.inner, name)
        if name.startswith(self.READS):
            return method

        def write(*arguments: Any, **keywords: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return method(*arguments, **keywords)

        return write


def killed_before(world: World, uri: str, write: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a mirror came to that write."""
    dying = DyingClient(client(world, uri), write)
    with monkeypatch.context() as patched:
        patched.setattr(mlflow_store, "open_store", lambda home, uri: dying)
        try:
            mirrored(world)
        except Killed:
            return True
    return False


def test_it_follows_promotion_release_rollback_and_revocation(world: World) -> None:
    one = mirrored(world)
    assert (one.model, one.aliases, one.versions) == (MODEL, {"canary": 2, "stable": 1}, 2)
    assert status(world) == {"rms_norm": "served", "rms_norm softmax": "served"}
    assert mirrored(world).writes == 0, "again, it changes nothing"
    move(world.store, world.keyring, CANARY)
    assert mirrored(world).aliases == {"canary": 2, "stable": 2}
    roll_back(world.store, world.keyring, STABLE)
    roll_back(world.store, world.keyring, CANARY, reason="too slow")
    assert mirrored(world).aliases == {"canary": 1, "stable": 1}
    assert status(world) == {"rms_norm": "served", "rms_norm softmax": "rolled back"}
    revoke(world.store, world.keyring, records.digest(make_artifact("rms_norm", b"code 1")[0]), "wrong under load")
    mirrored(world)
    assert status(world) == {"rms_norm": "revoked", "rms_norm softmax": "revoked"}


def test_the_approver_s_word_is_shown(home: Path) -> None:
    world = World(home)
    artifact, files = make_artifact("rms_norm", b"code 1")
    publish(world.store, world.keyring, CANARY, [artifact], files, take)
    mirrored(world)
    ((_, tags, _, _),) = shown(world)["versions"]
    assert tags["approved"] == "not yet: rms_norm.float32"
    approve(world.store, world.keyring, CANARY)
    assert mirrored(world).writes == 1
    assert shown(world)["versions"][0][1]["approved"] == "yes" and PERSON not in tags


def test_killed_before_each_write_the_next_one_ends_in_the_same(
    world: World, template_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First into an empty MLflow; then over one that has missed a release and a rollback."""
    mirrored(world)
    first = shown(world)
    copied_store(world.folder / "mlflow.db", world.folder / "first.db")
    move(world.store, world.keyring, CANARY)
    roll_back(world.store, world.keyring, STABLE)
    mirrored(world)
    last = shown(world)
    assert first["aliases"] == last["aliases"] and first != last
    writes = []
    for begun in (template_home / "mlflow.db", world.folder / "first.db"):
        for write in count():
            uri = copied_store(begun, world.folder / f"{begun.stem}-{write}.db")
            if not killed_before(world, uri, write, monkeypatch):
                break
            mirrored(world, uri)
            assert shown(world, uri) == last
        writes.append(write)
    assert writes[0] >= 5 and writes[1] >= 4


DAMAGES: dict[str, Callable[[Any], object]] = {
    "an alias moved": lambda mlflow: mlflow.set_registered_model_alias(MODEL, "stable", "2"),
    "an alias gone": lambda mlflow: mlflow.delete_registered_model_alias(MODEL, "canary"),
    "a tag that lies": lambda mlflow: mlflow.set_model_version_tag(MODEL, "2", "approved", "yes, really"),
    "tags gone": lambda mlflow: [
        mlflow.delete_model_version_tag(MODEL, "1", key) for key in (SET_TAG, "gain/rms_norm.float32")
    ],
    "a description that lies": lambda mlflow: mlflow.update_model_version(MODEL, "1", "harmless"),
    "a version gone": lambda mlflow: mlflow.delete_model_version(MODEL, "1"),
    "the model gone": lambda mlflow: mlflow.delete_registered_model(MODEL),
    "two of one": lambda mlflow: mlflow.create_model_version(
        MODEL, "x:y", tags=dict(mlflow.get_model_version(MODEL, "1").tags), await_creation_for=0
    ),
}


def test_damage_is_put_right(world: World) -> None:
    """A version whose tags are gone is nobody's, and is left alone."""
    mirrored(world)
    whole = shown(world)
    for number, (name, damage) in enumerate(DAMAGES.items()):
        uri = copied_store(world.folder / "mlflow.db", world.folder / f"{number}.db")
        mlflow = client(world, uri)
        damage(mlflow)
        assert mirrored(world, uri).writes > 0, name
        for one in mlflow.search_model_versions(f"name = '{MODEL}'"):
            if SET_TAG not in one.tags:
                mlflow.delete_model_version(MODEL, str(one.version))
        assert shown(world, uri) == whole, name
        assert mirrored(world, uri).writes == 0, name


def test_what_people_add_stays(world: World) -> None:
    mirrored(world)
    mlflow = client(world)
    mlflow.set_model_version_tag(MODEL, "1", "looked_at", "on Tuesday")
    mlflow.set_registered_model_alias(MODEL, "favourite", "1")
    mlflow.create_model_version(MODEL, "x:y", tags={"mine": "yes"}, await_creation_for=0)
    move(world.store, world.keyring, CANARY)
    assert mirrored(world).aliases == {"canary": 2, "stable": 2}
    assert mlflow.get_model_version(MODEL, "1").tags["looked_at"] == "on Tuesday"
    assert {"favourite", "canary", "stable"} == set(mlflow.get_registered_model(MODEL).aliases)
    assert len(mlflow.search_model_versions(f"name = '{MODEL}'")) == 3


def garbled(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def without_the_registry(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE model_versions")


@pytest.mark.parametrize("damage", [garbled, without_the_registry])
def test_a_promotion_does_not_care_and_mlflow_catches_up(
    world: World, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    mirrored(world)
    before = copied_store(world.folder / "mlflow.db", world.folder / "before.db")
    damaged = copied_store(world.folder / "mlflow.db", world.folder / "damaged.db")
    damage(world.folder / "damaged.db")
    with caplog.at_level(logging.WARNING):
        world.publish("rms_norm", b"code 3")
        assert keep_mirror(settings_of(world, damaged)) == []
        move(world.store, world.keyring, CANARY)
        assert keep_mirror(settings_of(world, damaged)) == []
    told = [one.getMessage() for one in caplog.records if one.name == mlflow_mirror.LOGGER.name]
    assert len(told) == 2 and all("the channels are not touched" in one and "\n" not in one for one in told)
    assert set(world.repository.current(STABLE).index.tables) == {"rms_norm.float32", "softmax.float32"}  # type: ignore[union-attr]
    (one,) = keep_mirror(settings_of(world, before))
    assert (one.aliases, one.versions) == ({"canary": 3, "stable": 3}, 3)


def test_a_server_that_is_not_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(MirrorError, match="MLflow's model registry: ") as raised:
        mirror(settings_of(world, uri))
    assert "\n" not in str(raised.value)
    assert keep_mirror(settings_of(world, uri)) == []


def test_it_stops_at_its_deadline_and_the_next_one_goes_on(world: World) -> None:
    with pytest.raises(MirrorError, match="the next mirror goes on"):
        mirror(settings_of(world), deadline_s=0.0)
    assert client(world).get_registered_model(MODEL).aliases == {}
    assert mirrored(world).aliases == {"canary": 2, "stable": 1}


def test_where_nobody_uses_mlflow_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    world = World(tmp_path)
    world.publish("rms_norm", b"code 1")
    assert keep_mirror(settings_of(world)) == []
    assert not (tmp_path / "mlflow.db").exists()


def test_what_is_published_while_it_writes_has_the_last_word(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = mlflow_mirror._Sender.send
    raced: list[bool] = []

    def raced_send(sender: Any) -> Mirrored:
        if not raced:
            raced.append(True)
            move(world.store, world.keyring, CANARY)
        return sent(sender)

    monkeypatch.setattr(mlflow_mirror._Sender, "send", raced_send)
    one = mirrored(world)
    assert raced and one.aliases == {"canary": 2, "stable": 2} and one.writes > 0


def test_no_host_path_reaches_mlflow_and_a_server_takes_all_of_it(world: World) -> None:
    """SQLite would take any source."""
    from mlflow.server.handlers import _validate_source_model, _validate_source_run

    mirrored(world)
    held = shown(world)
    assert str(world.folder) not in json.dumps(held)
    for _, _, _, source in held["versions"]:
        _validate_source_run(source, "")
        _validate_source_model(source, "")


def test_a_locked_store_is_one_line(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    def locked(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("database is locked"))

    monkeypatch.setattr("mlflow.MlflowClient.search_registered_models", locked)
    with caplog.at_level(logging.WARNING):
        assert keep_mirror(settings_of(world)) == []
    (told,) = [one.getMessage() for one in caplog.records if one.name == mlflow_mirror.LOGGER.name]
    assert "database is locked" in told and "\n" not in told


def test_the_commands_keep_it(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith(("MILL_", "AWS_", "PREFECT_API"))]:
        monkeypatch.delenv(name)
    for name, value in (("HOME", str(world.folder)), ("STORE", world.store.url), ("FLEET", "chat"), ("MODEL", "llama")):
        monkeypatch.setenv(f"MILL_{name}", value)
    assert command_line.main(["registry", "mirror", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["model"], one["aliases"]) == (MODEL, {"canary": 2, "stable": 1}) and one["writes"] > 0
    assert command_line.main(["registry", "mirror"]) == 0
    heads, _, row = capsys.readouterr().out.splitlines()
    assert heads.split()[:2] == ["registered", "model"] and row.split()[-4:] == ["2", "1", "2", "0"]
    digest = world.repository.current(CANARY).index.tables["softmax.float32"]  # type: ignore[union-attr]
    assert command_line.main(["revoke", digest, "--reason", "wrong"]) == 0
    assert status(world)["rms_norm softmax"] == "revoked"
