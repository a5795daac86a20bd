"""Key ceremonies: hosts follow every one of them, thieves of the old keys do not, and none is lost when it dies."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, Timestamp

from gristmill import trust
from gristmill.errors import GristmillError, TrustError
from gristmill.generation import Generation
from registry.approval import approve
from registry.ceremony import Make, Replaced, revoke, rotate
from registry.errors import CeremonyError, KeyFileError
from registry.keys import KEY_NAMES, create_keys, load_keys, make_key, role_of
from registry.metadata_reader import TIMESTAMP_KEY
from registry.publication import move, publish
from registry.repository import Repository
from registry.root_chain import read_chain
from tests.registry.world import CANARY, STABLE, DyingStore, Killed, World, make_artifact, take

SINGLE = [names[0] for names in KEY_NAMES.values() if len(names) == 1]
Step = Callable[..., Replaced]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.publish("rms_norm", b"code 1")
    move(world.store, world.keyring, CANARY)
    return world


def plainly(world: World) -> Make:
    return lambda name, stem: make_key(world.keyring.folder, stem)


def reload(world: World) -> None:
    world.keyring = load_keys(world.keyring.folder)


def serves(generation: Generation | None) -> list[bytes]:
    assert generation is not None
    return sorted(path.read_bytes() for path in generation.objects.values())


class TestHostsFollow:
    @pytest.mark.parametrize("step", [rotate, revoke])
    @pytest.mark.parametrize("name", ["root-2", *SINGLE])
    def test_and_take_what_comes_next(self, world: World, name: str, step: Step) -> None:
        """Hosts that were there before, and one that knows the first root only."""
        canary, stable = world.puller("canary"), world.puller("stable", STABLE)
        assert serves(canary.poll()) == serves(stable.poll()) == [b"code 1"]
        replaced = step(world.store, world.keyring, [name], plainly(world))
        assert replaced.new[name] != replaced.former[name]
        canary.poll()
        stable.poll()
        reload(world)
        assert replaced.new[name] in {key.keyid for key in world.keyring.public[role_of(name)]}
        for code in (b"code 2", b"code 3"):
            world.publish("rms_norm", code)
            move(world.store, world.keyring, CANARY)
            assert serves(canary.poll()) == serves(stable.poll()) == [code]
        assert serves(world.puller("fresh", STABLE).poll()) == [b"code 3"]
        assert not list(world.keyring.folder.glob("*.next.*"))

    @pytest.mark.parametrize("name", ["root-1", *SINGLE])
    def test_and_start_offline_with_what_they_have(self, world: World, name: str) -> None:
        puller = world.puller("stable", STABLE)
        puller.poll()
        rotate(world.store, world.keyring, [name], plainly(world))
        puller.poll()
        assert serves(world.puller("stable", STABLE).last_good()) == [b"code 1"]

    def test_through_a_long_chain(self, world: World) -> None:
        puller = world.puller()
        puller.poll()
        for names in (["root-1"], ["root-2"], ["root-3"], list(KEY_NAMES["root"]), ["timestamp"], ["snapshot"]):
            rotate(world.store, world.keyring, names, plainly(world))
            reload(world)
        world.publish("rms_norm", b"code 2")
        assert serves(puller.poll()) == [b"code 2"]
        assert len(read_chain(world.store, world.keyring.root_path.read_bytes())) == 7


class TestRevoked:
    @pytest.mark.parametrize("name", ["timestamp", "snapshot", "canary"])
    def test_keys_sign_nothing_any_more(self, world: World, name: str, tmp_path: Path) -> None:
        """The thief has a copy of the whole folder from before, but for the other roles' keys he is lucky."""
        shutil.copytree(world.keyring.folder, tmp_path / "stolen")
        revoke(world.store, world.keyring, [name], plainly(world))
        thief = Repository(world.store, load_keys(tmp_path / "stolen"))
        with pytest.raises(KeyFileError, match="trusts now"):
            thief.renew()

    @pytest.mark.parametrize("attestor", ["judge", "approver"])
    def test_attestors_are_told_before_they_sign_in_vain(self, world: World, attestor: str, tmp_path: Path) -> None:
        shutil.copytree(world.keyring.folder, tmp_path / "copy")
        revoke(world.store, world.keyring, [attestor], plainly(world))
        stale = load_keys(tmp_path / "copy")
        artifact, files = make_artifact("softmax", b"code 2")
        before = dict.fromkeys(world.store.list("attestations/"))
        with pytest.raises(KeyFileError, match=f"{attestor} key is not one"):
            if attestor == "approver":
                approve(world.store, stale, CANARY)
            publish(world.store, stale, CANARY, [artifact], files, take)
        assert dict.fromkeys(world.store.list("attestations/")) == before

    def test_a_stolen_timestamp_key_is_refused_by_hosts(self, world: World) -> None:
        puller = world.puller()
        puller.poll()
        stolen = world.keyring.signers("timestamp")[0]
        revoke(world.store, world.keyring, ["timestamp"], plainly(world))
        puller.poll()
        forged = Metadata[Timestamp].from_bytes(world.path(TIMESTAMP_KEY).read_bytes())
        forged.signed.version += 1
        forged.signatures.clear()
        forged.sign(stolen)
        world.path(TIMESTAMP_KEY).write_bytes(forged.to_bytes())
        with pytest.raises(TrustError):
            puller.poll()

    @pytest.mark.parametrize(("attestor", "left"), [("judge", 0), ("approver", 1)])
    def test_attestors_take_their_tables_along(self, world: World, attestor: str, left: int) -> None:
        """Hosts drop at once what only the thief may have vouched for; attested anew it comes back."""
        canary, stable = world.puller("canary"), world.puller("stable", STABLE)
        canary.poll()
        stable.poll()
        replaced = revoke(world.store, world.keyring, [attestor], plainly(world))
        assert replaced.dropped[STABLE.index_path] == ("rms_norm.float32",)
        assert (CANARY.index_path in replaced.dropped) == (left == 0)
        dropped = stable.poll()
        assert dropped is not None and dropped.tables == ()
        after = canary.poll()
        assert after is None if left else after is not None and after.tables == ()
        reload(world)
        world.publish("rms_norm", b"code 1")
        move(world.store, world.keyring, CANARY)
        assert serves(stable.poll()) == [b"code 1"]

    def test_a_lost_root_key_is_not_needed(self, world: World) -> None:
        (world.keyring.folder / "root-2.pem").unlink()
        assert revoke(world.store, world.keyring, ["root-2"], plainly(world)).root_version == 2
        assert (world.keyring.folder / "root-2.pem").exists()

    def test_one_root_key_is_not_enough(self, world: World) -> None:
        (world.keyring.folder / "root-1.pem").unlink()
        before = dict.fromkeys(world.store.list(""))
        with pytest.raises(CeremonyError, match="too few root keys"):
            revoke(world.store, world.keyring, ["root-2"], plainly(world))
        assert dict.fromkeys(world.store.list("")) == before


class TestRotated:
    def test_what_old_attestors_signed_goes_on_counting(self, world: World) -> None:
        for attestor in trust.ATTESTORS:
            assert rotate(world.store, world.keyring, [attestor], plainly(world)).dropped == {}
            reload(world)
        assert serves(world.puller("fresh", STABLE).poll()) == [b"code 1"]
        assert {name: len(found) for name, found in world.repository.policy().keys.items()} == dict.fromkeys(
            trust.ATTESTORS, 2
        )

    def test_a_folder_from_before_is_told_so(self, world: World, tmp_path: Path) -> None:
        shutil.copytree(world.keyring.folder, tmp_path / "copy")
        rotate(world.store, world.keyring, ["canary"], plainly(world))
        stale = load_keys(tmp_path / "copy")
        with pytest.raises(CeremonyError, match="not the one"):
            rotate(world.store, stale, ["canary"], lambda name, stem: make_key(stale.folder, stem))

    def test_an_old_registry_gets_its_approver_once_stable_is_approved(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        for path in world.keyring.folder.glob("approver.*"):
            path.unlink()
        world.keyring = load_keys(world.keyring.folder)
        artifact, files = make_artifact("rms_norm", b"code")
        publish(world.store, world.keyring, CANARY, [artifact], files, take)
        move(world.store, world.keyring, CANARY)
        world.keyring = create_keys(world.keyring.folder)
        with pytest.raises(CeremonyError, match=r"\./mill approve stable"):
            rotate(world.store, world.keyring, ["approver"], plainly(world))
        approve(world.store, world.keyring, STABLE)
        rotate(world.store, world.keyring, ["approver"], plainly(world))
        assert world.repository.policy().required["stable"] == trust.ATTESTORS
        assert serves(world.puller("fresh", STABLE).poll()) == [b"code"]


class TestCutOff:
    @pytest.mark.parametrize("name", ["root-1", "timestamp", "stable", "judge"])
    def test_before_any_write(self, world: World, tmp_path: Path, name: str) -> None:
        """Wherever it died, hosts serve on, and the same command finishes it."""
        for write in range(20):
            copy = tmp_path / f"{write}"
            shutil.copytree(world.folder, copy, ignore=lambda folder, names: [n for n in names if n.isdigit()])
            dying = World(copy)
            puller = dying.puller("stable", STABLE)
            assert serves(puller.poll()) == [b"code 1"]
            try:
                revoke(DyingStore(dying.store, write), dying.keyring, [name], plainly(dying))
                break
            except Killed:
                pass
            try:
                puller.poll()
            except GristmillError:
                assert serves(dying.puller("stable", STABLE).last_good()) == [b"code 1"]
            revoke(dying.store, load_keys(dying.keyring.folder), [name], plainly(dying))
            reload(dying)
            puller.poll()
            dying.publish("rms_norm", b"code 2")
            move(dying.store, dying.keyring, CANARY)
            assert serves(puller.poll()) == [b"code 2"]
        assert write >= 3

    @pytest.mark.parametrize("step", range(3))
    def test_while_the_files_are_put_in_place(self, world: World, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        left = [step]
        real = Path.replace

        def dies(path: Path, target: Path) -> Path:
            if ".next" in path.name and "aside" not in path.name:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
            return real(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dies)
            with contextlib.suppress(Killed):
                rotate(world.store, world.keyring, ["canary"], plainly(world))
        again = rotate(world.store, load_keys(world.keyring.folder), ["canary"], plainly(world))
        reload(world)
        assert again.new["canary"] == world.keyring.public["canary"][0].keyid
        world.publish("rms_norm", b"code 2")
        assert serves(world.puller("fresh").poll()) == [b"code 2"]

    def test_another_ceremony_waits_for_it(self, world: World) -> None:
        with pytest.raises(Killed):
            rotate(DyingStore(world.store, 1), world.keyring, ["timestamp"], plainly(world))
        with pytest.raises(CeremonyError, match="timestamp was not finished"):
            rotate(world.store, world.keyring, ["snapshot"], plainly(world))

    @pytest.mark.parametrize("step", [rotate, revoke])
    @pytest.mark.parametrize(
        ("name", "missing"),
        [
            ("canary", "targets"),
            ("judge", "targets"),
            ("revocation", "snapshot"),
            ("snapshot", "timestamp"),
            ("root-1", "root-[23]"),
            ("targets", "root-[12]"),
        ],
    )
    def test_where_others_would_have_to_sign_nothing_is_begun(
        self, world: World, step: Step, name: str, missing: str
    ) -> None:
        """Else that folder would wait for ever for what was never to come."""
        away = world.folder / "away"
        away.mkdir()
        for path in world.keyring.folder.glob(f"{missing}.pem"):
            shutil.move(path, away)
        with pytest.raises((KeyFileError, CeremonyError)):
            step(world.store, load_keys(world.keyring.folder), [name], plainly(world))
        assert not list(world.keyring.folder.glob("*.next.*"))
        for path in away.iterdir():
            shutil.move(path, world.keyring.folder)
        reload(world)
        assert rotate(world.store, world.keyring, ["stable"], plainly(world)).new

    def test_without_a_registry(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        with pytest.raises(CeremonyError, match="keys init"):
            rotate(world.store, world.keyring, ["canary"], plainly(world))


@pytest.mark.parametrize("name", ["canary", "judge"])
def test_promotions_meanwhile_are_not_lost(world: World, name: str) -> None:
    """A promoter publishes between a ceremony's reading and its swap."""

    class Crossed(DyingStore):
        crossed = False

        def replace_if(self, key: str, content: bytes, etag: str) -> str:
            if not self.crossed:
                self.crossed = True
                world.publish("softmax", b"code 2")
            return super().replace_if(key, content, etag)

    rotate(Crossed(world.store, 1000), world.keyring, [name], plainly(world))
    reload(world)
    entry = world.repository.current(CANARY)
    assert entry is not None and set(entry.index.tables) == {"rms_norm.float32", "softmax.float32"}
    assert serves(world.puller("fresh").poll()) == [b"code 1", b"code 2"]
