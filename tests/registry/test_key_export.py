"""Handing out keys: a machine gets its own private halves and all public ones, and signs with them as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from registry.errors import KeyFileError, RegistryStateError
from registry.key_export import export
from registry.keys import KEY_NAMES, LATE, Keyring, create_keys, is_encrypted, key_names, load_keys
from registry.repository import Repository
from registry.rollback import roll_back
from tests.registry.world import CANARY, World, shared_keys

WORKER = ("canary", "snapshot", "timestamp")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.publish("rms_norm", b"code")
    return world


class TestExport:
    def test_a_worker_signs_with_what_it_was_given_and_has_nothing_else(self, world: World, tmp_path: Path) -> None:
        private = export(world.keyring, WORKER, tmp_path / "worker")
        assert sorted(path.stem for path in private) == sorted(WORKER)
        assert {path.stem for path in (tmp_path / "worker").glob("*.pem")} == set(WORKER)
        assert {path.stat().st_mode & 0o077 for path in private} == {0}
        worker = load_keys(tmp_path / "worker")
        assert worker.public == world.keyring.public
        assert roll_back(world.store, worker, CANARY).manifests == {}
        assert {path.stem for path in (tmp_path / "worker").glob("*.pub")} == set(key_names()), "keys init adds none"
        assert create_keys(tmp_path / "worker").public == worker.public
        assert {path.stem for path in (tmp_path / "worker").glob("*.pem")} == set(WORKER)

    def test_without_names_for_a_machine_that_only_looks(self, world: World, tmp_path: Path) -> None:
        assert export(world.keyring, (), tmp_path / "looks") == []
        assert Repository(world.store, load_keys(tmp_path / "looks")).current(CANARY) is not None

    def test_again_it_finishes_what_was_cut_off(self, world: World, tmp_path: Path) -> None:
        export(world.keyring, WORKER, tmp_path / "worker")
        (tmp_path / "worker" / "canary.pem").unlink()
        export(world.keyring, WORKER, tmp_path / "worker")
        assert load_keys(tmp_path / "worker").is_here("canary")

    @pytest.mark.parametrize("foreign", ["root.json", "canary.pub", "notes"])
    def test_other_files_are_never_mixed_with_it(self, world: World, tmp_path: Path, foreign: str) -> None:
        (tmp_path / "worker").mkdir()
        (tmp_path / "worker" / foreign).write_text("another's")
        with pytest.raises(KeyFileError, match=f"holds {foreign}"):
            export(world.keyring, WORKER, tmp_path / "worker")
        assert [path.name for path in (tmp_path / "worker").iterdir()] == [foreign]

    def test_what_is_elsewhere_is_exported_there(self, world: World, tmp_path: Path) -> None:
        (world.keyring.folder / "canary.pem").unlink()
        with pytest.raises(KeyFileError, match="canary is elsewhere"):
            export(world.keyring, WORKER, tmp_path / "worker")
        assert not (tmp_path / "worker").exists()

    def test_nothing_is_handed_out_before_there_is_a_registry(self, tmp_path: Path) -> None:
        with pytest.raises(RegistryStateError, match="keys init"):
            export(World(tmp_path).keyring, WORKER, tmp_path / "worker")

    def test_encrypted_keys_stay_so(self, world: World, tmp_path: Path) -> None:
        closed = create_keys(tmp_path / "closed", lambda name: "correct horse battery")
        shutil.copy(world.keyring.root_path, closed.root_path)
        (path,) = export(closed, ["approver"], tmp_path / "person")
        assert is_encrypted(path)


class TestPartsOfAnotherSet:
    """Nobody's foreign root may appear beside a worker's keys: the folder would be spoilt from then on."""

    def copied(self, folder: Path, *names: str) -> Path:
        folder.mkdir()
        for name in names:
            shutil.copy(shared_keys() / name, folder)
        return folder

    @pytest.mark.parametrize(
        "names", [("canary.pem", "snapshot.pem", "judge.pem"), ("judge.pem",), ("root-2.pem",), ("root.json",)]
    )
    def test_are_not_filled_up_with_new_keys(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        folder = tmp_path / "keys"
        if names == ("root.json",):
            folder.mkdir()
            (folder / "root.json").write_text("{}")
        else:
            self.copied(folder, *names)
        with pytest.raises(KeyFileError, match=r"part of a key set that was made elsewhere.*keys export"):
            create_keys(folder)
        assert {path.name for path in folder.iterdir()} - {"lock"} == set(names)
        with pytest.raises(KeyFileError, match="keys export"):
            load_keys(folder)

    @pytest.mark.parametrize("made", range(len(key_names())))
    def test_a_set_that_was_cut_off_is_finished(self, tmp_path: Path, made: int) -> None:
        """After any key's private half was written, and not yet its public one."""
        whole = shared_keys()
        names = [f"{name}.{kind}" for name in key_names()[:made] for kind in ("pem", "pub")]
        folder = self.copied(tmp_path / "keys", *names, f"{key_names()[made]}.pem")
        create_keys(folder)
        for name in key_names()[: made + 1]:
            assert (folder / f"{name}.pub").read_bytes() == (whole / f"{name}.pub").read_bytes()

    def test_a_set_from_before_some_roles_gets_them(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        world.publish("rms_norm", b"code")
        for name in LATE:
            for kind in ("pem", "pub"):
                (world.keyring.folder / f"{name}.{kind}").unlink()
        assert all(create_keys(world.keyring.folder).public[role] for role in KEY_NAMES)


class TestDamage:
    @pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\x00garbage", json.dumps({"signed": 1}).encode()])
    def test_a_damaged_root_is_one_line(self, world: World, content: bytes) -> None:
        world.keyring.root_path.write_bytes(content)
        for use in (world.repository.read, world.repository.initialise):
            with pytest.raises(KeyFileError, match=r"root\.json: is damaged.*copy it again"):
                use()

    @pytest.mark.parametrize(
        "content", [b"", b"garbage", b"-----BEGIN PRI" + b"VATE KEY-----\nAAAA\n-----END PRI" + b"VATE KEY-----"]
    )
    def test_a_damaged_private_key_is_one_line(self, tmp_path: Path, content: bytes) -> None:
        folder = shutil.copytree(shared_keys(), tmp_path / "keys")
        (folder / "canary.pem").write_bytes(content)
        with pytest.raises(KeyFileError, match=r"canary\.pem"):
            load_keys(folder).signers("canary")
        (folder / "canary.pub").unlink()
        with pytest.raises(KeyFileError, match=r"canary\.pem.*expected a private key"):
            create_keys(folder)


def test_keys_that_nobody_can_write_beside_are_enough(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is mounted read-only: only signing is asked of it."""

    def locked(keyring: Keyring) -> None:
        raise AssertionError("reads take no lock")

    monkeypatch.setattr(Keyring, "locked", locked)
    before = {path: path.stat().st_mtime_ns for path in world.keyring.folder.iterdir()}
    keyring = load_keys(world.keyring.folder)
    assert roll_back(world.store, keyring, CANARY).manifests == {}
    assert {path: path.stat().st_mtime_ns for path in world.keyring.folder.iterdir()} == before
