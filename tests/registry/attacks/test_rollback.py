"""Older states, states that never were, and absurdly new ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tuf.api.metadata import MetaFile, Root

from gristmill.errors import RollbackError, TrustError
from tests.registry.attacks.attacker import Attacker, Victim, codes, replace_keys, stranger
from tests.registry.world import CANARY

Steal = Callable[..., Attacker]
ABSURD = 10**9


class TestRollback:
    """What a host has seen, it does not unsee."""

    def test_timestamp_replayed(self, victim: Victim) -> None:
        victim.world.store.put("tuf/timestamp.json", victim.old_timestamp)
        victim.refuses(RollbackError, victim.world.store.url, "older")

    @pytest.mark.parametrize(
        ("lost", "says"),
        [("tuf", "this host has seen"), ("tuf/timestamp.json", "older"), ("tuf/snapshot.json", "older")],
    )
    def test_timestamp_replayed_after_the_client_lost_its_own(self, victim: Victim, lost: str, says: str) -> None:
        path = victim.puller.cache.folder / lost
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        victim.world.store.put("tuf/timestamp.json", victim.old_timestamp)
        victim.refuses(RollbackError, says)

    def test_two_timestamps_of_one_version(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp")
        thief.signed("timestamp").snapshot_meta.version += 7
        thief.sign("timestamp", bump=False)
        victim.refuses(RollbackError, victim.world.store.url, "two timestamps")

    @pytest.mark.parametrize("hashes", [True, False])
    def test_older_snapshot(self, victim: Victim, steal: Steal, hashes: bool) -> None:
        thief = steal("timestamp")
        meta = thief.signed("timestamp").snapshot_meta
        meta.version -= 1
        if not hashes:
            meta.hashes = meta.length = None
        thief.sign("timestamp")
        victim.refuses(RollbackError, victim.world.store.url, "napshot version")

    @pytest.mark.parametrize("role", ["targets", "canary"])
    @pytest.mark.parametrize("hashes", [True, False])
    def test_older_role(self, victim: Victim, steal: Steal, role: str, hashes: bool) -> None:
        thief = steal("timestamp", "snapshot", role)
        thief.publish(role)
        victim.puller.poll()
        meta = thief.signed("snapshot").meta[f"{role}.json"]
        meta.version -= 1
        if not hashes:
            meta.hashes = meta.length = None
        thief.publish_snapshot()
        victim.refuses(RollbackError, victim.world.store.url, f"{role}.json")

    @pytest.mark.parametrize("role", ["targets", "canary", "stable"])
    def test_role_removed_from_the_snapshot(self, victim: Victim, steal: Steal, role: str) -> None:
        thief = steal("timestamp", "snapshot")
        del thief.signed("snapshot").meta[f"{role}.json"]
        thief.publish_snapshot()
        victim.refuses(TrustError, victim.world.store.url, f"{role}.json")

    def test_older_index(self, victim: Victim, steal: Steal) -> None:
        """All keys that move the channel are stolen: the number inside the index still may not fall."""
        thief = steal("timestamp", "snapshot", "canary")
        index = thief.index()
        thief.promote(index.tables, number=index.number - 1)
        victim.refuses(RollbackError, CANARY.index_path, f"seen {index.number}")

    def test_index_newer_than_its_signature(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        thief.promote(thief.index().tables, number=ABSURD)
        victim.refuses(TrustError, str(CANARY), "newer than its signature")

    def test_index_taken_away(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        thief.signed("canary").targets.clear()
        thief.publish("canary")
        victim.refuses(RollbackError, str(CANARY), "gone")

    def test_generation_file_replaced_by_an_older_one(self, victim: Victim, tmp_path: Path) -> None:
        """A backup of the cache, put back in part, does not bring back what was rolled back since."""
        path = victim.puller.cache.folder / "generations" / CANARY.index_path
        old = path.read_bytes()
        victim.world.publish("softmax", b"code 3")
        victim.follows(b"code 1", b"code 3")
        path.write_bytes(old)
        with pytest.raises(RollbackError, match="this host has seen"):
            victim.fresh().last_good()
        assert codes(victim.fresh().poll()) == [b"code 1", b"code 3"]
        assert codes(victim.fresh().last_good()) == [b"code 1", b"code 3"]


class TestMixAndMatch:
    """Parts of different states do not make a state."""

    @pytest.mark.parametrize("role", ["targets", "canary"])
    def test_role_of_another_snapshot(self, victim: Victim, steal: Steal, role: str) -> None:
        """The store serves another signed version of a role under the name that the snapshot asks for."""
        thief = steal(role)
        other = thief.sign(role)
        victim.world.publish("softmax", b"code 3")
        now = steal()
        if role == "targets":
            Attacker(victim.world, "targets", "snapshot", "timestamp").publish("targets")
            now = steal()
        thief.put(f"tuf/{now.signed(role).version}.{role}.json", other + b" ")
        victim.refuses(TrustError, victim.world.store.url, "signed metadata does not hold")

    def test_snapshot_of_another_timestamp(self, victim: Victim, steal: Steal) -> None:
        old = steal().metadata["snapshot"].to_bytes()
        victim.world.publish("softmax", b"code 3")
        now = steal()
        now.put(f"tuf/{now.signed('snapshot').version}.snapshot.json", old)
        victim.refuses(TrustError, victim.world.store.url, "signed metadata does not hold")

    @pytest.mark.parametrize("role", ["snapshot", "targets", "canary"])
    def test_another_version_inside_than_outside(self, victim: Victim, steal: Steal, role: str) -> None:
        """What names a file says one version, the file itself another: with hashes that match."""
        thief = steal("timestamp", "snapshot", "targets", "canary")
        content = thief.sign(role)
        version = thief.signed(role).version + 5
        if role == "snapshot":
            thief.signed("timestamp").snapshot_meta = MetaFile.from_data(version, content, ["sha256"])
            thief.sign("timestamp")
        else:
            thief.signed("snapshot").meta[f"{role}.json"] = MetaFile.from_data(version, content, ["sha256"])
            thief.publish_snapshot()
        thief.put(f"tuf/{version}.{role}.json", content)
        victim.refuses(RollbackError, victim.world.store.url, role)

    def test_index_of_another_channel(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        thief.promote(thief.index().tables, channel=CANARY, model="other")
        victim.refuses(TrustError, str(CANARY), "made for canary/chat/other")

    def test_a_role_in_place_of_another(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot")
        content = thief.metadata["timestamp"].to_bytes()
        version = thief.signed("snapshot").version + 1
        thief.put(f"tuf/{version}.snapshot.json", content)
        thief.signed("timestamp").snapshot_meta = MetaFile.from_data(version, content, ["sha256"])
        thief.sign("timestamp")
        victim.refuses(TrustError, victim.world.store.url, "snapshot")

    def test_manifest_under_the_name_of_another_table(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        tables = thief.index().tables
        first, second = sorted(tables)
        thief.promote({first: tables[second], second: tables[first]})
        victim.refuses(TrustError, "manifest of", first, second)


class TestFastForward:
    """A stolen key signs an absurdly high version, so that nothing newer can follow; a new root recovers."""

    @pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "canary"])
    def test_recovery(self, victim: Victim, steal: Steal, role: str) -> None:
        stolen = {"timestamp": (), "snapshot": ("snapshot",), "targets": ("snapshot", "targets")}
        thief = steal("timestamp", *stolen.get(role, ("snapshot", role)))
        thief.signed(role).version = ABSURD
        if role == "timestamp":
            thief.sign("timestamp")
        elif role == "snapshot":
            thief.publish_snapshot()
        else:
            thief.publish(role)
        assert victim.puller.poll() is None
        honest = self._recovered(steal, role, thief)
        honest.publish()
        assert victim.puller.poll() is None
        index = honest.index()
        honest.promote({"rms_norm.float32": index.tables["rms_norm.float32"]})
        victim.follows(b"code 1")

    def test_without_a_new_root_nothing_older_is_taken(self, victim: Victim, steal: Steal) -> None:
        honest = steal("timestamp", "snapshot")
        thief = steal("timestamp")
        thief.signed("timestamp").version = ABSURD
        thief.sign("timestamp", bump=False)
        victim.puller.poll()
        honest.publish_snapshot()
        victim.refuses(RollbackError, victim.world.store.url, str(ABSURD))

    def test_the_same_number_after_recovery_is_a_new_state(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        index = thief.index()
        thief.promote({"rms_norm.float32": index.tables["rms_norm.float32"]})
        victim.follows(b"code 1")
        honest = self._recovered(steal, "canary", thief, back_to=index.number)
        assert codes(victim.fresh().last_good()) == [b"code 1"]
        honest.promote(index.tables)
        victim.follows(b"code 1", b"code 2")

    @staticmethod
    def _recovered(steal: Steal, role: str, thief: Attacker, back_to: int | None = None) -> Attacker:
        """The owners give timestamp and snapshot new keys, and sign the versions that should be."""
        honest = steal("targets", "canary")
        honest.keys.update(timestamp=(stranger("timestamp"),), snapshot=(stranger("snapshot"),))

        def change(root: Root) -> None:
            replace_keys(root, "timestamp", stranger("timestamp"))
            replace_keys(root, "snapshot", stranger("snapshot"))

        honest.rotate(change, thief.world.keyring.signers("root")[:2])
        honest.signed(role).version = back_to or 9
        if role in ("targets", "canary"):
            honest.publish(role)
        return honest
