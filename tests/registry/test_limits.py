"""What hosts would refuse to read is not signed, let alone published: the registry goes on as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill import limits
from gristmill.errors import RecordTooLargeError
from gristmill.status_report import report
from registry.ceremony import rotate
from registry.errors import CeremonyError, RevocationError
from registry.keys import make_key
from registry.publication import publish
from registry.revocation import revoke
from registry.rollback import roll_back
from registry.share import set_share
from tests.registry.canary_world import PROMOTED_S, FakeHost
from tests.registry.world import CANARY, World, make_artifact, take


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.publish("rms_norm", b"code 1")
    return world


def rotate_timestamp(world: World) -> object:
    return rotate(world.store, world.keyring, ["timestamp"], lambda name, stem: make_key(world.keyring.folder, stem))


WRITERS: dict[str, tuple[str, Callable[[World], object]]] = {
    "index": ("MAX_TARGET_BYTES", lambda world: world.publish("softmax", b"code 2")),
    "list of revocations": ("MAX_TARGET_BYTES", lambda world: revoke(world.store, world.keyring, "0" * 64, "wrong")),
    "shares": ("MAX_SHARES_BYTES", lambda world: set_share(world.store, world.keyring, "chat", 100)),
    "manifest": ("MAX_MANIFEST_BYTES", lambda world: world.publish("softmax", b"code 2")),
    "attestation": ("MAX_ATTESTATION_BYTES", lambda world: world.publish("softmax", b"code 2")),
    "metadata of a role": ("MAX_METADATA_BYTES", lambda world: world.publish("softmax", b"code 2")),
    "timestamp": ("MAX_TIMESTAMP_BYTES", lambda world: world.publish("softmax", b"code 2")),
    "root": ("MAX_ROOT_BYTES", rotate_timestamp),
}


class TestWhatHostsWouldRefuse:
    @pytest.mark.parametrize("what", WRITERS)
    def test_is_refused_by_its_writer(self, world: World, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        limit, write = WRITERS[what]
        puller = world.puller()
        before = puller.poll()
        with monkeypatch.context() as patched:
            patched.setattr(limits, limit, 10)
            for reader in ("metadata_reader", "root_chain", "repository"):  # what is there already is longer than 10
                patched.setattr(f"registry.{reader}.limits", _AsTheyWere)
            with pytest.raises(RecordTooLargeError, match=r"would be \d+ bytes long") as refused:
                write(world)
        assert refused.value.exit_code == 2 and "\n" not in str(refused.value)
        assert before is not None and puller.poll() is None
        world.publish("softmax", b"code 2")
        after = puller.poll()
        assert after is not None and after.number > before.number

    def test_reason_of_a_revocation(self, world: World) -> None:
        with pytest.raises(RevocationError, match="600 characters, expected 500"):
            revoke(world.store, world.keyring, "0" * 64, "x" * 600)
        assert world.repository.revoked().reasons == {}
        revoke(world.store, world.keyring, "0" * 64, "x" * limits.MAX_REASON_CHARS)

    def test_reasons_that_programs_make_are_cut(self, world: World) -> None:
        roll_back(world.store, world.keyring, CANARY, 0, reason="a host says " + "x" * (9 << 20))
        current = world.repository.current(CANARY)
        assert current is not None and len(current.index.reason) == limits.MAX_REASON_CHARS
        assert current.index.reason.startswith("rollback to 0: a host says")

    def test_manifest_is_refused_before_anything_is_written(self, world: World) -> None:
        artifact, files = make_artifact("softmax", b"code 2")
        artifact = replace(artifact, environment={"torch": "x" * limits.MAX_MANIFEST_BYTES})
        before = set(world.store.list(""))
        with pytest.raises(RecordTooLargeError, match="manifest of softmax"):
            publish(world.store, world.keyring, CANARY, [artifact], files, take)
        assert set(world.store.list("")) == before

    def test_more_roots_than_hosts_follow(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "MAX_ROOT_ROTATIONS", 2)
        rotate_timestamp(world)
        world.puller("follows").poll()
        with pytest.raises(CeremonyError, match="would not follow this one"):
            rotate_timestamp(World(world.folder))
        world.puller("still").poll()

    def test_report_of_a_host(self, world: World) -> None:
        status = replace(FakeHost("h", canary=True).report(PROMOTED_S + 60), kill="x" * limits.MAX_REPORT_BYTES)
        with pytest.raises(RecordTooLargeError, match="status report"):
            report(world.store, CANARY, status)
        assert not list(world.store.list("reports/"))


class _AsTheyWere:
    MAX_TIMESTAMP_BYTES = MAX_METADATA_BYTES = MAX_TARGET_BYTES = MAX_SHARES_BYTES = MAX_ROOT_BYTES = 1 << 20
