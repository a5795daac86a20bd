"""The host's side against a registry that changes, breaks and lies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, Timestamp

from gristmill import durable_file, errors, records, trust
from gristmill.generation import Generation
from gristmill.kernel_table import Artifact
from gristmill.pull import Puller
from gristmill.s3_store import Endpoint, S3Store
from gristmill.store import ObjectStore
from registry import genesis
from registry.embedded_store import EmbeddedStore
from registry.entry import Entry
from registry.publication import move
from registry.repository import Repository
from registry.rollback import roll_back
from tests.registry.endpoint import Honest, endpoint
from tests.registry.world import CANARY, STABLE, DelegatingStore, World, make_artifact, ref


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def codes(generation: Generation | None) -> list[bytes]:
    assert generation is not None
    return sorted(path.read_bytes() for path in generation.objects.values())


def refused(puller: Puller, kind: type[errors.GristmillError], match: str | None = None) -> None:
    """The poll fails, says why in one line, and the last good generation stays usable."""
    before = Puller(puller._store, puller._root, "chat", "llama", CANARY.hardware, "canary", puller.cache.folder)
    good = before.last_good()
    with pytest.raises(kind, match=match) as raised:
        puller.poll()
    assert "\n" not in str(raised.value)
    assert before.last_good() == good


class TestRoundTrip:
    @pytest.fixture(params=["directory", "seaweedfs"])
    def any_world(self, request: pytest.FixtureRequest, tmp_path: Path) -> World:
        if request.param == "directory":
            return World(tmp_path)
        embedded: EmbeddedStore = request.getfixturevalue("embedded_store")
        key = embedded.credentials
        at = Endpoint("gristmill", uuid.uuid4().hex, embedded.endpoint, "us-east-1", key.access_key, key.secret_key)
        return World(tmp_path, S3Store(at))

    def test_publish_pull_move_roll_back(self, any_world: World) -> None:
        world, puller = any_world, any_world.puller()
        stable = world.puller("stable-cache", STABLE)
        assert puller.poll() is None

        first = world.publish("rms_norm", b"code 1")
        got = puller.poll()
        assert got is not None
        assert (got.number, got.channel, got.hardware) == (first.number, "canary", CANARY.hardware)
        assert got.tables == (make_artifact("rms_norm", b"code 1")[0].table,)
        assert codes(got) == [b"code 1"]
        assert puller.poll() is None
        assert stable.poll() is None

        second = world.publish("softmax", b"code 2")
        assert second.number > first.number
        assert codes(puller.poll()) == [b"code 1", b"code 2"]

        move(world.store, world.keyring, CANARY)
        assert codes(stable.poll()) == [b"code 1", b"code 2"]

        third = roll_back(world.store, world.keyring, CANARY)
        assert third.number > second.number
        back = puller.poll()
        assert codes(back) == [b"code 1"]
        assert back is not None and back.number == third.number
        assert stable.poll() is None

    def test_offline_start(self, any_world: World) -> None:
        any_world.publish("rms_norm", b"code 1")
        taken = any_world.puller().poll()
        again = any_world.puller()
        assert again.last_good() == taken
        assert again.poll() is None


class TestRequests:
    def test_a_poll_without_news_is_one_request(self, world: World) -> None:
        world.publish("rms_norm", b"code")
        store = DelegatingStore(world.store)
        puller = world.puller(store=store)
        assert puller.poll() is not None
        for _ in range(3):
            store.reads.clear()
            assert puller.poll() is None
            assert store.reads == ["tuf/timestamp.json"]

    def test_over_http_it_is_a_conditional_one(self, world: World) -> None:
        world.publish("rms_norm", b"code")
        honest = Honest(world.path(""))
        with endpoint(honest) as store:
            puller = world.puller(store=store)
            assert puller.poll() is not None
            honest.asked.clear()
            assert puller.poll() is None
        etag = f'"{records.sha256_hex(world.path("tuf/timestamp.json").read_bytes())}"'
        assert honest.asked == [("tuf/timestamp.json", etag)]

    def test_a_host_takes_only_the_tables_that_it_names(self, world: World) -> None:
        for operator in ("rms_norm", "softmax", "silu_and_mul"):
            world.publish(operator, operator.encode())
        store, names = DelegatingStore(world.store), ["softmax.float32"]
        puller = world.puller(store=store, tables=lambda: names)
        assert codes(puller.poll()) == [b"softmax"]
        assert codes(world.puller(tables=lambda: names).last_good()) == [b"softmax"]
        others = [make_artifact(operator, operator.encode())[0] for operator in ("rms_norm", "silu_and_mul")]
        digests = [
            digest for other in others for digest in (records.digest(other), other.table.entries[0].object.sha256)
        ]
        assert not [key for key in store.reads if any(digest in key for digest in digests)]

        assert puller.poll() is None
        names.append("rms_norm.float32")
        assert codes(puller.poll()) == [b"rms_norm", b"softmax"]
        store.reads.clear()
        assert puller.poll() is None
        assert store.reads == ["tuf/timestamp.json"]

    def test_a_host_that_names_none_of_an_unpublished_channel_asks_once(self, world: World) -> None:
        world.publish("rms_norm", b"code")
        store = DelegatingStore(world.store)
        puller = world.puller("stable-cache", STABLE, store, tables=lambda: ["softmax.float32"])
        assert puller.poll() is None
        store.reads.clear()
        assert puller.poll() is None
        assert store.reads == ["tuf/timestamp.json"]

    def test_much_that_is_missing_is_fetched_several_at_a_time(self, world: World) -> None:
        for number in range(6):
            world.publish(f"operator_{number}", f"code {number}".encode())
        store = MeetingStore(world.store, parties=3)
        assert codes(world.puller(store=store).poll()) == [f"code {number}".encode() for number in range(6)]
        assert store.met

    def test_news_of_others_are_no_news(self, world: World) -> None:
        world.publish("rms_norm", b"code")
        puller = world.puller()
        puller.poll()
        Repository(world.store, world.keyring).renew()
        store = DelegatingStore(world.store)
        puller._store = store
        assert puller.poll() is None
        assert not [key for key in store.reads if key.startswith(("blobs/", "attestations/", "targets/"))]

    def test_known_content_is_not_fetched_again(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        store = DelegatingStore(world.store)
        puller = world.puller(store=store)
        puller.poll()
        world.publish("softmax", b"code 2")
        store.reads.clear()
        puller.poll()
        artifact, _ = make_artifact("softmax", b"code 2")
        blobs = {key for key in store.reads if key.startswith("blobs/")}
        assert blobs == {
            trust.blob_key(records.digest(artifact)),
            trust.blob_key(artifact.table.entries[0].object.sha256),
        }


class TestAttacks:
    """Each changes the store behind the registry's back, with or without some of its keys."""

    def test_tampered_blob(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        puller.poll()
        world.publish("softmax", b"code 2")
        path = world.path(trust.blob_key(records.sha256_hex(b"code 2")))
        path.write_bytes(b"evil 2")
        refused(puller, errors.TrustError, "tampered")
        path.write_bytes(b"code 2")
        assert codes(puller.poll()) == [b"code 1", b"code 2"]

    def test_tampered_manifest(self, world: World) -> None:
        artifact, _ = make_artifact("rms_norm", b"code 1")
        world.publish("rms_norm", b"code 1")
        path = world.path(trust.blob_key(records.digest(artifact)))
        path.write_bytes(path.read_bytes().replace(b'"high":8', b'"high":9'))
        refused(world.puller(), errors.TrustError, "tampered")

    def test_tampered_index(self, world: World) -> None:
        published = world.publish("rms_norm", b"code 1")
        path = world.path(trust.target_key(CANARY.index_path, published.index_sha256))
        path.write_bytes(path.read_bytes().replace(b"promotion", b"deception"))
        refused(world.puller(), errors.TrustError)

    @pytest.mark.parametrize("name", ["timestamp", "snapshot", "canary", "targets"])
    def test_tampered_metadata(self, world: World, name: str) -> None:
        puller = world.puller()
        world.publish("rms_norm", b"code 1")
        *_, path = sorted(world.path("tuf").glob(f"*{name}.json"))
        content = json.loads(path.read_bytes())
        content["signed"]["version"] += 1
        path.write_text(json.dumps(content))
        refused(puller, errors.TrustError)

    def test_an_older_timestamp(self, world: World) -> None:
        puller = world.puller()
        world.publish("rms_norm", b"code 1")
        old = world.path("tuf/timestamp.json").read_bytes()
        world.publish("softmax", b"code 2")
        puller.poll()
        world.path("tuf/timestamp.json").write_bytes(old)
        refused(puller, errors.RollbackError)

    def test_an_older_timestamp_after_the_metadata_cache_was_lost(self, world: World) -> None:
        puller = world.puller()
        world.publish("rms_norm", b"code 1")
        old = world.path("tuf/timestamp.json").read_bytes()
        world.publish("softmax", b"code 2")
        puller.poll()
        shutil.rmtree(puller.cache.tuf)
        world.path("tuf/timestamp.json").write_bytes(old)
        with pytest.raises(errors.RollbackError, match="this host has seen"):
            puller.poll()

    def test_freeze(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        puller.poll()
        puller._expires = datetime.now(UTC) - timedelta(seconds=1)
        refused(puller, errors.StaleRegistryError, "renew")

    def test_expired_timestamp(self, world: World) -> None:
        puller = world.puller()
        world.publish("rms_norm", b"code 1")
        self._resign_timestamp(world, lambda signed: setattr(signed, "expires", datetime(2020, 1, 1, tzinfo=UTC)))
        refused(puller, errors.StaleRegistryError)

    def test_mix_and_match(self, world: World) -> None:
        """A stolen timestamp key alone can't pair old snapshots with new roles."""
        puller = world.puller()
        world.publish("rms_norm", b"code 1")
        old = Metadata[Timestamp].from_bytes(world.path("tuf/timestamp.json").read_bytes()).signed.snapshot_meta
        world.publish("softmax", b"code 2")
        puller.poll()
        self._resign_timestamp(world, lambda signed: setattr(signed, "snapshot_meta", old))
        refused(puller, errors.RollbackError)

    def test_other_keys(self, world: World, tmp_path: Path) -> None:
        world.publish("rms_norm", b"code 1")
        stranger = World(tmp_path / "stranger", own_keys=True)
        stranger.publish("rms_norm", b"evil")
        puller = world.puller()
        puller._store = stranger.store
        refused(puller, errors.TrustError)

    def test_a_canary_key_can_not_sign_stable(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        puller = world.puller("stable-cache", STABLE)
        thief = Repository(world.store, world.keyring)
        object.__setattr__(world.keyring, "public", {**world.keyring.public, "stable": world.keyring.public["canary"]})
        (world.keyring.folder / "stable.pem").write_bytes((world.keyring.folder / "canary.pem").read_bytes())
        (world.keyring.folder / "stable.pem").chmod(0o600)
        entry = thief.current(CANARY)
        assert entry is not None
        state = thief.read()
        role = thief._reader.role(state, "stable")
        index = dataclasses.replace(entry.index, channel="stable")
        thief._writer.publish_index(state, role, STABLE, Entry(index, records.digest(index)))
        with pytest.raises(errors.TrustError):
            puller.poll()

    @pytest.mark.parametrize("damage", ["missing", "other key", "other manifest", "failed", "garbage", "empty"])
    def test_unattested_code(self, world: World, damage: str, tmp_path: Path) -> None:
        """Keys that move channels are not enough: the judge must have signed this very manifest."""
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        puller.poll()
        artifact, _ = make_artifact("softmax", b"code 2")
        world.publish("softmax", b"code 2")
        path = world.path(trust.attestation_key(records.digest(artifact), "judge"))
        other = World(tmp_path / "other", own_keys=True)
        other.publish("softmax", b"code 2")
        content = {
            "other key": other.path(trust.attestation_key(records.digest(artifact), "judge")).read_bytes,
            "other manifest": lambda: next(p for p in path.parent.iterdir() if p != path).read_bytes(),
            "failed": lambda: path.read_bytes().replace(b"signatures", b"signature"),
            "garbage": lambda: b"\x00[[[[",
            "empty": lambda: b"{}",
        }
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(content[damage]())
        refused(puller, errors.TrustError, "attest")

    def test_endless_data(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        puller.poll()
        world.publish("softmax", b"code 2")
        world.path(trust.blob_key(records.sha256_hex(b"code 2"))).write_bytes(b"x" * 10_000)
        refused(puller, errors.ObjectTooLargeError)
        with world.path("tuf/timestamp.json").open("ab") as file:
            file.truncate(1 << 20)
        refused(puller, errors.ObjectTooLargeError)

    @pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a\\b", ""])
    def test_paths_that_leave_the_artifact(self, path: str) -> None:
        artifact, _ = make_artifact("rms_norm", b"code")
        entry = artifact.table.entries[0]
        escaped = records.encode(artifact)
        escaped["table"]["entries"][0]["object"]["path"] = path
        assert entry.object.path == "kernel.so"
        with pytest.raises(errors.TrustError, match="leaves the artifact"):
            trust.parse_manifest(records.canonical_json(escaped), "rms_norm.float32", CANARY.hardware)

    @pytest.mark.parametrize("digest", ["../../etc/passwd", "", "A" * 64, "g" * 64, "a" * 63])
    def test_digests_that_are_paths(self, digest: str) -> None:
        for build in (
            trust.blob_key,
            lambda d: trust.attestation_key(d, "judge"),
            lambda d: trust.target_key("a/b", d),
        ):
            with pytest.raises(errors.TrustError):
                build(digest)

    def test_code_for_other_hardware(self) -> None:
        artifact, _ = make_artifact("rms_norm", b"code")
        with pytest.raises(errors.TrustError, match="x86_64-test"):
            trust.parse_manifest(records.canonical_json(artifact), "rms_norm.float32", "other")

    @staticmethod
    def _resign_timestamp(world: World, change: Callable[[Timestamp], None]) -> None:
        path = world.path("tuf/timestamp.json")
        timestamp = Metadata[Timestamp].from_bytes(path.read_bytes())
        timestamp.signed.version += 1
        change(timestamp.signed)
        timestamp.sign(world.keyring.signers("timestamp")[0])
        path.write_bytes(timestamp.to_bytes())


class TestCache:
    @pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
    def test_every_file_damaged_in_turn(self, world: World, damage: str) -> None:
        """Recovers from the registry, or refuses with a reason; never hands out what was not verified."""
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        taken = puller.poll()
        files = [path for path in puller.cache.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert len(files) >= 12
        for path in files:
            if path.name == "lock":
                continue
            whole = path.read_bytes()
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"\xff" * len(whole))
            self._check(world, taken)
            if not path.exists() or path.read_bytes() != whole:
                durable_file.write(path, whole)

    @staticmethod
    def _check(world: World, taken: Generation | None) -> None:
        puller = world.puller()
        try:
            offline = puller.last_good()
        except errors.GristmillError as error:
            assert str(error)
            offline = None
        assert offline in (None, taken)
        try:
            found = puller.poll()
        except errors.CacheError as error:
            assert "delete it" in str(error)
            return
        assert (found or offline) == taken
        assert codes(found or offline) == [b"code 1"]

    def test_two_pullers_share_a_folder(self, world: World) -> None:
        pullers = [world.puller() for _ in range(4)]
        start = threading.Barrier(4)
        for turn in range(4):
            world.publish("rms_norm", f"code {turn}".encode())

            def poll(puller: Puller) -> Generation | None:
                start.wait()
                return puller.poll()

            with ThreadPoolExecutor(4) as pool:
                for found in pool.map(poll, pullers):
                    assert codes(found) == [f"code {turn}".encode()]

    def test_overtaken_by_another_process_on_the_same_folder(self, world: World) -> None:
        """What it read of the store is old by the time that it has the lock, which is nobody's attack."""
        world.publish("rms_norm", b"code 1")
        other = world.puller()

        class Overtaking(DelegatingStore):
            def get(self, key: str, etag: str | None = None, max_bytes: int = 1 << 28):  # type: ignore[no-untyped-def]
                found = super().get(key, etag, max_bytes)
                if len(self.reads) == 1:
                    world.publish("softmax", b"code 2")
                    other.poll()
                return found

        assert codes(world.puller(store=Overtaking(world.store)).poll()) == [b"code 1", b"code 2"]

    def test_a_cache_that_can_not_be_made(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        (world.folder / "file").write_text("")
        with pytest.raises(errors.CacheError, match="name a folder"):
            world.puller("file").poll()

    def test_a_full_disk_keeps_the_last_good(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        puller.poll()
        world.publish("softmax", b"code 2")

        def full(path: Path, content: bytes, mode: int = 0) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(durable_file, "write", full)
            refused(puller, errors.CacheError, "free some space")
        assert codes(puller.poll()) == [b"code 1", b"code 2"]

    def test_the_store_goes_away(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        puller = world.puller()
        taken = puller.poll()
        shutil.rmtree(world.path(""))
        refused(puller, errors.StoreError)
        assert puller.last_good() == taken

    def test_the_first_poll_waits_for_a_store_only_as_long_as_a_cache_may_be_used_without(self, world: World) -> None:
        world.publish("rms_norm", b"code 1")
        slow = SlowReads(world.store, {"timestamp"})
        puller = world.puller(store=slow)
        puller.start_s = 0.0
        slow.released.set()
        taken = puller.poll()
        assert codes(taken) == [b"code 1"], "nothing else can serve, so it takes what it takes"
        for held in ("timestamp", "snapshot"):
            world.publish("rms_norm", held.encode())
            slow = SlowReads(world.store, {held})
            again = world.puller(store=slow)
            again.start_s = 0.05
            with pytest.raises(errors.StoreUnreachableError, match=r"not read in time|not reached within"):
                again.poll()
            assert again.last_good() == taken
            slow.released.set()
            taken = again.poll()  # takes its time
            assert codes(taken) == [held.encode()]

    def test_host_id_is_made_once(self, world: World) -> None:
        cache = world.puller().cache
        with cache.locked():
            assert cache.host_id() == cache.host_id()


class MeetingStore(DelegatingStore):
    """Holds reads of blobs until some of them have met."""

    def __init__(self, inner: ObjectStore, parties: int) -> None:
        super().__init__(inner)
        self.barrier = threading.Barrier(parties)
        self.met = False

    def get(self, key: str, etag: str | None = None, max_bytes: int = 1 << 28):  # type: ignore[no-untyped-def]
        if key.startswith("blobs/") and not self.met:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.barrier.wait(60)
                self.met = True
        return self.inner.get(key, etag, max_bytes)


class SlowReads(DelegatingStore):
    """Holds reads of what is named so until it is told to let them go."""

    def __init__(self, inner: ObjectStore, held: set[str]) -> None:
        super().__init__(inner)
        self.held = held
        self.released = threading.Event()

    def get(self, key: str, etag: str | None = None, max_bytes: int = 1 << 28):  # type: ignore[no-untyped-def]
        if any(name in key for name in self.held):
            self.released.wait(60)
        return self.inner.get(key, etag, max_bytes)


class DyingReads(DelegatingStore):
    """Goes away at the n-th read."""

    def __init__(self, inner: ObjectStore, left: int) -> None:
        super().__init__(inner)
        self.left = left
        self.lock = threading.Lock()

    def get(self, key: str, etag: str | None = None, max_bytes: int = 1 << 28):  # type: ignore[no-untyped-def]
        with self.lock:
            if self.left == 0:
                raise errors.StoreUnreachableError("gone")
            self.left -= 1
        return self.inner.get(key, etag, max_bytes)


def test_cut_off_at_every_read(world: World) -> None:
    world.publish("rms_norm", b"code 1")
    world.puller().poll()
    world.publish("softmax", b"code 2")
    for left in range(100):
        shutil.copytree(world.folder / "cache", world.folder / f"cache {left}", symlinks=True)
        puller = world.puller(f"cache {left}")
        puller._store = DyingReads(world.store, left)
        try:
            found = puller.poll()
        except errors.StoreUnreachableError:
            assert codes(puller.last_good()) == [b"code 1"]
            continue
        assert codes(found) == [b"code 1", b"code 2"]
        break
    assert left >= 6


def test_policy_names_every_channel(world: World) -> None:
    world.publish("rms_norm", b"code 1")
    policy = genesis.first_policy(world.keyring)
    assert set(policy.required) == set(trust.CHANNELS)
    assert all(attestor in policy.keys for required in policy.required.values() for attestor in required)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("tuf", "boto3", "securesystemslib", "torch")
    code = f"import sys, gristmill, gristmill.trust, gristmill.store; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_artifact_is_what_it_was(world: World) -> None:
    artifact, _ = make_artifact("rms_norm", b"code")
    assert records.parse(Artifact, records.canonical_json(artifact)) == artifact
    assert ref("x", b"").size_bytes == 0
