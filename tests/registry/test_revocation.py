"""Revocation: what is revoked leaves every host within one poll, stays away offline, and does not come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gristmill import records, trust
from gristmill.errors import GristmillError, StoreUnreachableError
from gristmill.generation import Generation
from gristmill.store import MAX_OBJECT_BYTES, NotModified, StoredObject
from registry.ceremony import rotate
from registry.errors import KeyFileError, RegistryStateError, RevocationError
from registry.keys import create_keys, load_keys, make_key
from registry.publication import move, publish
from registry.repository import Repository
from registry.revocation import revoke
from registry.rollback import roll_back
from tests.registry.world import CANARY, STABLE, DelegatingStore, DyingStore, Killed, World, make_artifact, ref, take

BAD, GOOD = b"code bad", b"code good"
KINDS = ["manifest", "object", "candidate"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.publish("rms_norm", GOOD)
    world.publish("softmax", BAD)
    return world


def digest_of(kind: str) -> str:
    artifact, _ = make_artifact("softmax", BAD)
    entry = artifact.table.entries[0]
    return {"manifest": records.digest(artifact), "object": entry.object.sha256, "candidate": entry.candidate}[kind]


def codes(generation: Generation | None) -> list[bytes]:
    assert generation is not None
    return sorted(path.read_bytes() for path in generation.objects.values())


class Offline(DelegatingStore):
    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        raise StoreUnreachableError("nobody answers")


@pytest.mark.parametrize("kind", KINDS)
class TestHosts:
    def test_drop_it_within_one_poll_and_stay_without_it_offline(self, world: World, kind: str) -> None:
        puller = world.puller()
        assert codes(puller.poll()) == [BAD, GOOD]
        found = revoke(world.store, world.keyring, digest_of(kind)[:12], "it is wrong at 7 tokens")
        assert found.kind == kind and found.digest == digest_of(kind)
        assert found.tables == {str(CANARY): ("softmax.float32",)}
        assert codes(puller.poll()) == [GOOD]
        assert puller.poll() is None
        offline = world.puller(store=Offline(world.store))
        assert codes(offline.last_good()) == [GOOD]
        with pytest.raises(StoreUnreachableError):
            offline.poll()
        assert codes(world.puller("fresh").poll()) == [GOOD]

    def test_do_not_get_it_back(self, world: World, kind: str) -> None:
        puller = world.puller()
        puller.poll()
        revoke(world.store, world.keyring, digest_of(kind), "wrong")
        puller.poll()
        artifact, files = make_artifact("softmax", BAD, "1.5" if kind == "manifest" else "1.7")
        declined = publish(world.store, world.keyring, CANARY, [artifact], files, take).declined
        assert declined == {"softmax.float32": "revoked: wrong"}
        roll_back(world.store, world.keyring, CANARY, 0)
        puller.poll()
        roll_back(world.store, world.keyring, CANARY, 2)
        assert codes(puller.poll()) == [GOOD]

    def test_take_what_replaces_it_whatever_it_has_gained(self, world: World, kind: str) -> None:
        revoke(world.store, world.keyring, digest_of(kind), "wrong")
        asked = []
        artifact, files = make_artifact("softmax", b"code next")

        def decide(new, current):
            asked.append(current)
            return take(new, current)

        publish(world.store, world.keyring, CANARY, [artifact], files, decide)
        assert not any(one.table.entries for one in asked if one is not None), "the gate compares with what hosts run"
        assert codes(world.puller().poll()) == [b"code good", b"code next"]

    def test_that_missed_it_hear_of_it_from_their_record(self, world: World, kind: str) -> None:
        """The signed list counts even if the file in which the host remembers it is lost."""
        puller = world.puller()
        puller.poll()
        revoke(world.store, world.keyring, digest_of(kind), "wrong")
        puller.poll()
        (puller.cache.folder / "revoked.json").unlink()
        assert codes(world.puller(store=Offline(world.store)).last_good()) == [GOOD]


def test_a_state_that_can_not_be_taken_takes_back_what_it_revokes(world: World) -> None:
    """One blob of it is missing: what is not revoked goes on, and the reason is told by the polls after it."""
    puller = world.puller()
    before = puller.poll()
    assert before is not None and codes(before) == [BAD, GOOD]
    published = world.publish("silu_and_mul", b"code lost")
    lost = world.path(trust.blob_key(published.manifests["silu_and_mul.float32"]))
    content = lost.read_bytes()
    lost.unlink()
    revoke(world.store, world.keyring, digest_of("object"), "wrong")
    less = puller.poll()
    assert less is not None and less.number == before.number
    assert [table.name for table in less.tables if table.entries] == ["rms_norm.float32"]
    for _ in range(2):
        with pytest.raises(GristmillError, match="no object"):
            puller.poll()
    lost.write_bytes(content)
    assert codes(puller.poll()) == [b"code good", b"code lost"]
    assert puller.poll() is None


def test_a_host_remembers_what_a_thief_takes_off_the_list(world: World) -> None:
    puller = world.puller()
    revoke(world.store, world.keyring, digest_of("object"), "wrong")
    assert codes(puller.poll()) == [GOOD]
    thief = Repository(world.store, world.keyring)
    state = thief.read()
    role = thief._reader.role(state, "revocation")
    role.signed.targets.clear()
    thief._writer.put_role(state, role, "revocation")
    thief._writer.publish_snapshot(state)
    world.publish("rms_norm", b"code later")
    assert codes(puller.poll()) == [b"code later"]


def test_moves_leave_it_behind(world: World) -> None:
    world.puller()
    revoke(world.store, world.keyring, digest_of("manifest"), "wrong")
    moved = move(world.store, world.keyring, CANARY)
    assert set(moved.manifests) == {"rms_norm.float32"} and moved.declined == {"softmax.float32": "revoked: wrong"}
    assert codes(world.puller("stable", STABLE).poll()) == [GOOD]


def test_killed_before_any_write_it_is_revoked_wholly_or_not_at_all(world: World, tmp_path: Path) -> None:
    whole = 0
    for write in range(6):
        shutil.copytree(world.folder / "store", tmp_path / f"{write}" / "store")
        shutil.copytree(world.folder / "keys", tmp_path / f"{write}" / "keys")
        one = World(tmp_path / f"{write}")
        try:
            revoke(DyingStore(one.store, write), one.keyring, digest_of("object"), "wrong")
            whole += 1
        except Killed:
            assert codes(one.puller().poll()) == [BAD, GOOD]
        revoke(one.store, one.keyring, digest_of("object"), "wrong")
        assert codes(one.puller("after").poll()) == [GOOD]
    assert 0 < whole < 6


def test_two_at_once_lose_nothing(world: World) -> None:
    class Late(DelegatingStore):
        def replace_if(self, key: str, content: bytes, etag: str) -> str:
            if not self.reads.count("revoked"):
                self.reads.append("revoked")
                revoke(world.store, world.keyring, digest_of("candidate"), "the other's")
            return self.inner.replace_if(key, content, etag)

    revoke(Late(world.store), world.keyring, digest_of("object"), "mine")
    assert world.repository.revoked().reasons == {digest_of("candidate"): "the other's", digest_of("object"): "mine"}


def test_renewing_keeps_it_and_needs_no_key_of_it(world: World) -> None:
    puller = world.puller()
    revoke(world.store, world.keyring, digest_of("object"), "wrong")
    world.repository.renew()
    (world.keyring.folder / "revocation.pem").unlink()
    world.repository.renew()
    assert codes(puller.poll()) == [GOOD]
    with pytest.raises(KeyFileError, match=r"revocation\.pem"):
        revoke(world.store, world.keyring, digest_of("candidate"), "wrong")


def test_a_registry_from_before_gets_the_role_by_a_ceremony(tmp_path: Path) -> None:
    world = World(tmp_path)
    for path in world.keyring.folder.glob("revocation.*"):
        path.unlink()
    world.keyring = load_keys(world.keyring.folder)
    world.publish("softmax", BAD)
    puller = world.puller()
    assert codes(puller.poll()) == [BAD]
    world.keyring = create_keys(world.keyring.folder)
    with pytest.raises(RegistryStateError, match="keys rotate revocation"):
        revoke(world.store, world.keyring, digest_of("object"), "wrong")
    rotate(world.store, world.keyring, ["revocation"], lambda name, stem: make_key(world.keyring.folder, stem))
    world.keyring = load_keys(world.keyring.folder)
    revoke(world.store, world.keyring, digest_of("object"), "wrong")
    assert codes(puller.poll()) == []


@pytest.mark.parametrize(
    ("digest", "reason"),
    [("softmax", "x"), ("abc", "x"), ("0" * 12, "x"), ("../" * 22, "x"), ("a" * 65, "x"), ("a" * 64, " \n")],
)
def test_what_is_no_digest_or_has_no_reason(world: World, digest: str, reason: str) -> None:
    with pytest.raises((RevocationError, GristmillError)):
        revoke(world.store, world.keyring, digest, reason)
    assert world.repository.revoked().reasons == {}


def test_a_digest_that_nothing_refers_to(world: World) -> None:
    found = revoke(world.store, world.keyring, ref("x", b"elsewhere").sha256, "seen elsewhere")
    assert found.kind == "unknown" and found.tables == {}
