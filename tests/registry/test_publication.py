"""Publication: crashes between writes, promoters at once, stores that break their word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gristmill import errors, records, store, trust
from gristmill.kernel_table import Artifact
from gristmill.s3_store import Endpoint, S3Store
from registry.embedded_store import EmbeddedStore
from registry.errors import KeyFileError, PublicationError, RegistryStateError, RollbackTargetError, SupersededError
from registry.keys import load_keys
from registry.metadata_reader import TIMESTAMP_KEY
from registry.promotion import Decision
from registry.publication import Published, move, publish
from registry.repository import Repository
from registry.rollback import history, roll_back
from tests.registry.world import (
    CANARY,
    STABLE,
    DelegatingStore,
    DyingStore,
    ForgetfulStore,
    Killed,
    World,
    cut_promotions,
    make_artifact,
    take,
)

PROMOTERS, PROMOTIONS = 4, 3


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def served(world: World) -> set[str]:
    entry = world.repository.current(CANARY)
    return set(entry.index.tables) if entry else set()


class TestGate:
    def test_is_asked_with_what_is_current(self, world: World) -> None:
        asked: list[Artifact | None] = []

        def decide(new: Artifact, current: Artifact | None) -> Decision:
            asked.append(current)
            return Decision(current is None, "only the first")

        first, files = make_artifact("rms_norm", b"code 1")
        publish(world.store, world.keyring, CANARY, [first], files, decide)
        second, files = make_artifact("rms_norm", b"code 2")
        result = publish(world.store, world.keyring, CANARY, [second], files, decide)
        assert asked == [None, first]
        assert result.declined == {"rms_norm.float32": "only the first"}
        assert result.manifests == {"rms_norm.float32": records.digest(first)}
        assert len(history(world.store, world.keyring, CANARY)) == 1

    def test_is_asked_again_on_the_new_base(self, world: World) -> None:
        """Two promoters have the same table: the slower is judged against the faster one's, not against the past."""
        asked: list[Artifact | None] = []
        rival, rival_files = make_artifact("rms_norm", b"rival")

        def decide(new: Artifact, current: Artifact | None) -> Decision:
            if not asked:
                publish(world.store, world.keyring, CANARY, [rival], rival_files, take)
            asked.append(current)
            return Decision(current is None, "the rival is better")

        mine, files = make_artifact("rms_norm", b"mine")
        result = publish(world.store, world.keyring, CANARY, [mine], files, decide)
        assert asked == [None, rival]
        assert result.manifests == {"rms_norm.float32": records.digest(rival)}
        assert result.declined == {"rms_norm.float32": "the rival is better"}

    def test_publishing_twice_changes_nothing(self, world: World) -> None:
        assert world.publish("rms_norm", b"code") == world.publish("rms_norm", b"code")

    def test_channels_are_apart(self, world: World) -> None:
        world.publish("rms_norm", b"code")
        other = trust.Channel("canary", "other", "llama", CANARY.hardware)
        assert Repository(world.store, world.keyring).current(other) is None
        assert Repository(world.store, world.keyring).current(STABLE) is None


class TestRefusals:
    def test_files_are_checked_before_anything_is_written(self, world: World) -> None:
        artifact, files = make_artifact("rms_norm", b"code")
        for wrong in ({}, {**files, records.sha256_hex(b"code"): b"evil"}):
            with pytest.raises(PublicationError):
                publish(world.store, world.keyring, CANARY, [artifact], wrong, take)
        with pytest.raises(PublicationError, match="one per table"):
            publish(world.store, world.keyring, CANARY, [artifact, artifact], files, take)
        assert not world.path("").exists()

    def test_other_hardware(self, world: World) -> None:
        artifact, files = make_artifact("rms_norm", b"code")
        with pytest.raises(errors.TrustError, match="x86_64-test"):
            publish(world.store, world.keyring, trust.Channel("canary", "f", "m", "other"), [artifact], files, take)

    def test_a_store_that_ignores_conditions(self, world: World) -> None:
        artifact, files = make_artifact("rms_norm", b"code")
        with pytest.raises(errors.UnconditionalStoreError, match="overwrite each other"):
            publish(ForgetfulStore(world.store), world.keyring, CANARY, [artifact], files, take)
        assert list(world.store.list("")) == []

    def test_keys_of_another_registry(self, world: World, tmp_path: Path) -> None:
        world.publish("rms_norm", b"code")
        with pytest.raises(RegistryStateError, match="other keys"):
            World(tmp_path / "other", world.store, own_keys=True).publish("softmax", b"code")

    def test_metadata_that_our_keys_did_not_sign_is_not_built_upon(self, world: World) -> None:
        world.publish("rms_norm", b"code")
        *_, path = sorted(world.path("tuf").glob("*.canary.json"))
        path.write_bytes(path.read_bytes().replace(b"rms_norm", b"mrs_norm").replace(b"canary/chat", b"canary/chap"))
        with pytest.raises(RegistryStateError, match="not what our keys signed"):
            world.publish("softmax", b"code")

    def test_a_missing_key_is_named(self, world: World) -> None:
        world.repository.initialise()
        (world.keyring.folder / "canary.pem").unlink()
        with pytest.raises(KeyFileError, match=r"canary\.pem is missing"):
            world.publish("rms_norm", b"code")


class TestCrashes:
    def test_between_any_two_writes(self, tmp_path: Path) -> None:
        """Hosts see the old state until the last write, and the next promoter succeeds wherever the last one died."""
        base = World(tmp_path / "base")
        base.publish("rms_norm", b"code 1")
        base.puller().poll()
        for write, world in cut_promotions(base, tmp_path):
            assert served(world) == {"rms_norm.float32"}, f"killed before write {write}"
            puller = world.puller()
            assert puller.last_good() is not None and puller.poll() is None
            world.publish("silu_and_mul", b"code 3")
            after = puller.poll()
            assert after is not None
            assert {table.name for table in after.tables} == {"rms_norm.float32", "silu_and_mul.float32"}
        assert write > 8

    def test_after_the_last_write(self, world: World) -> None:
        with pytest.raises(Killed):
            world.publish("rms_norm", b"code 1", store=DyingStore(world.store, -1, landed=True))
        assert served(world) == {"rms_norm.float32"}
        assert world.publish("rms_norm", b"code 1").manifests.keys() == served(world)
        assert len(history(world.store, world.keyring, CANARY)) == 1

    def test_during_the_first_publication(self, tmp_path: Path) -> None:
        for write in range(100):
            world = World(tmp_path / f"{write}")
            try:
                world.publish("rms_norm", b"code 1", store=DyingStore(world.store, write))
            except Killed:
                pass
            else:
                break
            world.publish("softmax", b"code 2")
            found = world.puller().poll()
            assert found is not None
            assert {table.name for table in found.tables} == {"softmax.float32"}
        assert write > 12

    def test_killed_promoters(self, world: World) -> None:
        """Whole processes, killed at any moment."""
        world.publish("rms_norm", b"code 0")
        code = (
            "import sys; from pathlib import Path; from tests.registry.world import World\n"
            "world = World(Path(sys.argv[1]))\n"
            "print('ready', flush=True)\n"
            "for turn in range(1000): world.publish('rms_norm', f'code {turn}'.encode())"
        )
        for delay in range(3):
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(world.folder)], stdout=subprocess.PIPE, cwd=Path.cwd()
            )
            assert process.stdout is not None
            process.stdout.readline()
            before = len(history(world.store, world.keyring, CANARY))
            while len(history(world.store, world.keyring, CANARY)) <= before + delay:
                assert process.poll() is None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert world.puller(f"cache {delay}").poll() is not None
            world.publish("softmax", f"{delay}".encode())


class LostAnswers(DelegatingStore):
    """Each compare-and-swap lands, but its user is told that somebody else was first; then that even happens."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.world, self.lost = world, False

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        new = self.inner.replace_if(key, content, etag)
        if not self.lost:
            self.lost = True
            self.world.publish("silu_and_mul", b"of another promoter")
            raise errors.PreconditionFailedError("lost")
        return new


class TestConcurrency:
    @pytest.mark.parametrize("kind", ["directory", "seaweedfs"])
    def test_promoters_lose_nothing(self, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        world = World(tmp_path)
        if kind == "seaweedfs":
            embedded: EmbeddedStore = request.getfixturevalue("embedded_store")
            key = embedded.credentials
            at = Endpoint("gristmill", uuid.uuid4().hex, embedded.endpoint, "us-east-1", key.access_key, key.secret_key)
            world = World(tmp_path, S3Store(at))

        def promote(promoter: int) -> list[Published]:
            return [world.publish(f"operator-{promoter}-{turn}", b"code") for turn in range(PROMOTIONS)]

        with ThreadPoolExecutor(PROMOTERS) as pool:
            results = [one for found in pool.map(promote, range(PROMOTERS)) for one in found]
        assert len(served(world)) == PROMOTERS * PROMOTIONS
        numbers = [entry.index.number for entry in history(world.store, world.keyring, CANARY)]
        assert numbers == sorted(set(numbers), reverse=True)
        assert sorted({one.number for one in results}, reverse=True) == numbers
        found = world.puller().poll()
        assert found is not None and found.number == numbers[0]

    def test_a_commit_that_landed_unnoticed_is_not_done_twice(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        world.publish("softmax", b"code 2")
        back = roll_back(LostAnswers(world), world.keyring, CANARY)
        reasons = [entry.index.reason for entry in history(world.store, world.keyring, CANARY)]
        assert reasons == ["promotion", "rollback to 2", "promotion", "promotion"]
        assert back.manifests.keys() == {"rms_norm.float32"}
        assert served(world) == {"rms_norm.float32", "silu_and_mul.float32"}


class TestRollback:
    def test_each_goes_one_state_further_back(self, world: World) -> None:
        for turn in range(3):
            world.publish("rms_norm", f"code {turn}".encode())
        digests = [records.digest(make_artifact("rms_norm", f"code {turn}".encode())[0]) for turn in range(3)]
        found = [roll_back(world.store, world.keyring, CANARY).manifests.get("rms_norm.float32") for _ in range(3)]
        assert found == [digests[1], digests[0], None]
        with pytest.raises(RollbackTargetError, match="before the first"):
            roll_back(world.store, world.keyring, CANARY)
        world.publish("softmax", b"code")
        assert roll_back(world.store, world.keyring, CANARY).manifests == {}

    def test_to_a_state(self, world: World) -> None:
        first = world.publish("rms_norm", b"code 1")
        last = [world.publish("rms_norm", f"code {turn}".encode()) for turn in (2, 3)][-1]
        back = roll_back(world.store, world.keyring, CANARY, to=first.number)
        assert back.manifests == first.manifests
        assert back.number > last.number
        with pytest.raises(RollbackTargetError, match="no state 99"):
            roll_back(world.store, world.keyring, CANARY, to=99)

    def test_nothing_to_roll_back(self, world: World) -> None:
        world.repository.initialise()
        with pytest.raises(RollbackTargetError, match="nothing was published"):
            roll_back(world.store, world.keyring, CANARY)
        with pytest.raises(PublicationError, match="nothing was published"):
            move(world.store, world.keyring, CANARY)

    def test_what_others_publish_meanwhile_is_undone_too(self, world: World) -> None:
        world.publish("rms_norm", b"good")
        world.publish("rms_norm", b"bad")
        back = roll_back(LosingFirst(world), world.keyring, CANARY)
        assert back.manifests == {"rms_norm.float32": records.digest(make_artifact("rms_norm", b"good")[0])}


class LosingFirst(DelegatingStore):
    """Somebody else is faster, once."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.world, self.lost = world, False

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        if not self.lost:
            self.lost = True
            self.world.publish("silu_and_mul", b"of another promoter")
        return self.inner.replace_if(key, content, etag)


class TestKeys:
    def test_are_private_and_stay(self, tmp_path: Path) -> None:
        world = World(tmp_path, own_keys=True)
        private = sorted(world.keyring.folder.glob("*.pem"))
        assert len(private) == 11
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in private)
        assert world.keyring.folder.stat().st_mode & 0o777 == 0o700
        before = [path.read_bytes() for path in private]
        again = World(world.folder)
        assert [path.read_bytes() for path in private] == before
        assert again.keyring.public == world.keyring.public
        assert "PRIVATE" not in repr(world.keyring)

    def test_a_key_kept_elsewhere_is_not_made_again(self, world: World) -> None:
        world.repository.initialise()
        for number in (1, 2, 3):
            (world.keyring.folder / f"root-{number}.pem").unlink()
        again = World(world.folder)
        assert not (world.keyring.folder / "root-1.pem").exists()
        assert again.publish("rms_norm", b"code").number == 2

    def test_many_processes_make_one_set(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(4) as pool:
            worlds = list(pool.map(lambda _: World(tmp_path, own_keys=True), range(4)))
            roots = set(pool.map(lambda world: world.repository.initialise(), worlds))
        assert all(world.keyring.public == worlds[0].keyring.public for world in worlds)
        assert len(roots) == 1

    def test_readable_by_others(self, world: World) -> None:
        (world.keyring.folder / "judge.pem").chmod(0o644)
        with pytest.raises(KeyFileError, match="chmod 600"):
            world.publish("rms_norm", b"code")

    def test_swapped(self, world: World) -> None:
        (world.keyring.folder / "judge.pem").write_bytes((world.keyring.folder / "canary.pem").read_bytes())
        with pytest.raises(KeyFileError, match=r"private half of judge\.pub"):
            world.publish("rms_norm", b"code")

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(KeyFileError, match="is missing"):
            load_keys(tmp_path)

    def test_root_needs_two(self, world: World) -> None:
        root = world.repository.initialise()
        for key in ("root-1", "root-2", "root-3"):
            assert (world.keyring.folder / f"{key}.pem").exists()
        from tuf.api.metadata import Metadata, Root

        metadata = Metadata[Root].from_bytes(root)
        assert metadata.signed.roles["root"].threshold == 2
        assert len(metadata.signatures) == 3
        assert store.read(world.store, "tuf/1.root.json") == root


def test_what_is_rolled_back_while_it_moves_does_not_move(tmp_path: Path) -> None:
    """A release loses its race for the timestamp to the rollback of a person: it reads canary again."""
    world = World(tmp_path)
    world.publish("rms_norm", b"code 1")
    bad = world.publish("softmax", b"answers are wrong")

    class RacedStore(DelegatingStore):
        raced = False

        def replace_if(self, key: str, content: bytes, etag: str) -> str:
            if key == TIMESTAMP_KEY and not self.raced:
                self.raced = True
                roll_back(world.store, world.keyring, CANARY)
            return self.inner.replace_if(key, content, etag)

    with pytest.raises(SupersededError, match="what was judged"):
        move(RacedStore(world.store), world.keyring, CANARY, judged=bad.index_sha256)
    assert world.repository.current(STABLE) is None
    raced = RacedStore(world.store)
    world.publish("softmax", b"answers are wrong")
    assert set(move(raced, world.keyring, CANARY).manifests) == {"rms_norm.float32"} and raced.raced
