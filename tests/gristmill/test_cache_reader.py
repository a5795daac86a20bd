"""Engines that follow a sidecar's cache: they verify it again, write nothing, and see when the sidecar is gone."""

from __future__ import annotations

import os
import shutil
import socket
import time
import timeit
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gristmill import durable_file, errors, follower, generation, records, sidecar_status, store
from gristmill.cache_reader import CacheReader
from gristmill.cohort import AUTO
from gristmill.generation import Generation
from gristmill.pull import Puller
from gristmill.sidecar_status import SidecarStatus
from registry.publication import move
from registry.repository import Repository
from registry.rollback import roll_back
from registry.share import set_share
from tests.registry.attacks.attacker import codes
from tests.registry.world import CANARY, STABLE, World, make_artifact

NOW = records.utc_now()


class Followed:
    """A sidecar's cache and what fills it, and an engine that reads it."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.world.publish("rms_norm", b"code 1")
        self.puller = self.world.puller()
        self.reader = self.restarted()
        self.status_path = sidecar_status.status_path(self.puller.cache.folder, CANARY)

    def restarted(self, **changes: Any) -> CacheReader:
        at = changes.pop("channel", CANARY)
        root = changes.pop("root", self.puller._root)
        return CacheReader(root, at.fleet, at.model, at.hardware, at.name, self.puller.cache.folder, **changes)

    def pull(self) -> Generation | None:
        """What a sidecar does at each poll."""
        found = self.puller.poll()
        self.say()
        return found

    def say(self, problem: str = "", running: bool = True) -> None:
        sidecar_status.write(self.status_path, SidecarStatus(str(CANARY), 1, 1, problem, running, NOW, NOW))


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    monkeypatch.setattr(sidecar_status, "SILENT_S", 3600.0)  # a busy machine is no dead sidecar
    return Followed(tmp_path)


def state(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Differs once a file was made, written, or given away."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns) for path, one in found.items()}


class TestFollowing:
    def test_it_hands_out_what_the_sidecar_took_and_that_once(self, followed: Followed) -> None:
        taken = followed.pull()
        assert followed.reader.poll() == taken
        assert followed.reader.poll() is None
        followed.world.publish("softmax", b"code 2")
        assert followed.reader.poll() is None
        followed.pull()
        assert codes(followed.reader.poll()) == [b"code 1", b"code 2"]
        roll_back(followed.world.store, followed.world.keyring, CANARY)
        followed.pull()
        assert codes(followed.reader.poll()) == [b"code 1"]
        assert followed.reader.poll() is None

    def test_it_starts_from_the_cache(self, followed: Followed) -> None:
        assert followed.reader.last_good() is None
        taken = followed.pull()
        shutil.rmtree(followed.world.path(""))
        assert followed.restarted().last_good() == taken
        assert followed.reader.last_good() == taken
        assert followed.reader.poll() is None

    def test_it_waits_at_its_start_for_a_sidecar_that_starts_as_well(
        self, followed: Followed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        followed.pull()
        followed.say(running=False)
        followed.world.publish("softmax", b"code 2")
        pauses: list[float] = []

        def meanwhile(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 2:
                starting = SidecarStatus(str(CANARY), 1, 0, "", True, NOW, NOW)
                sidecar_status.write(followed.status_path, starting)
            if len(pauses) == 3:
                followed.pull()

        monkeypatch.setattr(time, "sleep", meanwhile)
        reader = followed.restarted()
        reader.start_s = 3600.0
        assert codes(reader.poll()) == [b"code 1", b"code 2"]
        assert len(pauses) == 3
        followed.say(running=False)
        with pytest.raises(errors.SidecarError, match="was ended"):
            reader.poll()  # waits no second time
        late = followed.restarted()
        late.start_s = 0.0
        assert codes(late.poll()) == [b"code 1", b"code 2"]
        followed.say(problem="the store is away")
        assert codes(followed.restarted().poll()) == [b"code 1", b"code 2"]
        assert len(pauses) == 3

    def test_a_record_that_was_read_just_before_another_took_its_place(
        self, followed: Followed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        followed.pull()
        cache = followed.reader.cache
        found = [cache.load_generation(CANARY)]
        followed.world.publish("softmax", b"code 2")
        followed.pull()
        load = cache.load_generation
        monkeypatch.setattr(cache, "load_generation", lambda channel: found.pop() if found else load(channel))
        assert codes(followed.reader.poll()) == [b"code 1", b"code 2"]

    def test_a_renewal_is_no_news(self, followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
        followed.pull()
        followed.reader.poll()
        before = followed.reader._expires
        Repository(followed.world.store, followed.world.keyring).renew()
        followed.pull()
        assert followed.reader.poll() is None
        assert followed.reader._expires >= before

    def test_only_the_tables_that_it_names(self, followed: Followed) -> None:
        followed.world.publish("softmax", b"code 2")
        followed.pull()
        names = ["softmax.float32"]
        reader = followed.restarted(tables=lambda: names)
        assert codes(reader.poll()) == [b"code 2"]
        names.append("rms_norm.float32")
        assert codes(reader.poll()) == [b"code 1", b"code 2"]
        assert reader.poll() is None

    def test_it_needs_no_network_no_lock_and_writes_nothing(
        self, followed: Followed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = followed.pull()

        def refuse(*arguments: object, **options: object) -> None:
            raise AssertionError("an engine that only reads did something else")

        before = state(followed.puller.cache.folder)
        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr(durable_file, "write", refuse)
        monkeypatch.setattr(store, "open_store", refuse)
        with followed.puller.cache.locked():
            assert followed.reader.last_good() == taken
            assert followed.restarted().poll() == taken
        assert state(followed.puller.cache.folder) == before

    def test_without_news_it_only_looks_at_stats(self, followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
        """Thirty times as dear as one stat at most, which is far from reading and verifying anything."""
        followed.pull()
        followed.reader.poll()
        followed.reader.poll()
        opened: list[object] = []
        monkeypatch.setattr(os, "open", lambda *arguments, **options: opened.append(arguments))
        one_stat_s = min(timeit.repeat(followed.status_path.stat, number=200, repeat=5)) / 200
        one_poll_s = min(timeit.repeat(followed.reader.poll, number=200, repeat=5)) / 200
        assert opened == []
        assert one_poll_s < 30 * one_stat_s


class TestTrust:
    """It believes a sidecar no more than a store."""

    def test_an_object_that_was_changed(self, followed: Followed) -> None:
        taken = followed.pull()
        assert taken is not None
        (path,) = taken.objects.values()
        path.write_bytes(b"evil 1")
        with pytest.raises(errors.TrustError, match="damaged"):
            followed.reader.poll()
        with pytest.raises(errors.TrustError, match="damaged"):
            followed.reader.last_good()
        path.write_bytes(b"code 1")
        assert codes(followed.reader.poll()) == [b"code 1"]

    def test_another_root(self, followed: Followed, tmp_path: Path) -> None:
        followed.pull()
        stranger = World(tmp_path / "stranger", own_keys=True)
        with pytest.raises(errors.TrustError):
            followed.restarted(root=stranger.repository.initialise()).poll()

    def test_another_channel(self, followed: Followed) -> None:
        followed.pull()
        reader = followed.restarted(channel=STABLE)
        assert reader.last_good() is None
        with pytest.raises(errors.SidecarError, match="no sidecar"):
            reader.poll()

    def test_the_whole_folder_put_back_to_what_it_was(self, followed: Followed, tmp_path: Path) -> None:
        """Its own high-water mark lies in the folder, but not the engine's memory."""
        followed.pull()
        cache = followed.puller.cache.folder
        shutil.copytree(cache, tmp_path / "old", symlinks=True)
        followed.world.publish("softmax", b"code 2")
        followed.pull()
        assert codes(followed.reader.poll()) == [b"code 1", b"code 2"]
        shutil.rmtree(cache)
        shutil.copytree(tmp_path / "old", cache, symlinks=True)
        followed.puller = followed.world.puller()
        with pytest.raises(errors.RollbackError, match="replays"):
            followed.reader.poll()
        followed.pull()
        assert followed.reader.poll() is None

    def test_a_timestamp_that_is_not_the_registrys(self, followed: Followed) -> None:
        """Without it nobody knows until when this is current: nothing new is taken, what was good still is."""
        taken = followed.pull()
        (followed.puller.cache.tuf / "timestamp.json").write_bytes(b"{}")
        with pytest.raises(errors.TrustError):
            followed.reader.poll()
        assert followed.reader.last_good() == taken

    def test_expiry(self, followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
        followed.pull()
        followed.reader.poll()
        later = datetime.now(UTC) + timedelta(days=8)

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return later

        monkeypatch.setattr(follower, "datetime", Clock)
        with pytest.raises(errors.StaleRegistryError, match="not renewed"):
            followed.reader.poll()


class TestCohort:
    """An engine set to `auto` goes where the sidecar's host goes."""

    @pytest.fixture
    def auto(self, followed: Followed) -> Followed:
        channel = replace(CANARY, name=AUTO)
        followed.puller = followed.world.puller(channel=channel)
        followed.reader = followed.restarted(channel=channel)
        followed.status_path = sidecar_status.status_path(followed.puller.cache.folder, channel)
        set_share(followed.world.store, followed.world.keyring, CANARY.fleet, 1000)
        return followed

    def test_from_canary_to_stable_and_back(self, auto: Followed) -> None:
        for step in range(3):
            taken = auto.pull()
            assert taken is not None
            assert auto.reader.poll() == taken
            assert auto.reader.poll() is None
            assert taken.channel == ("canary", "stable", "canary")[step]
            if step == 0:
                move(auto.world.store, auto.world.keyring, CANARY)
            else:
                auto.world.publish("softmax", b"code 2")
        assert auto.restarted(channel=replace(CANARY, name=AUTO)).last_good() == taken

    def test_a_canary_that_ends_leaves_no_kernel_behind(self, auto: Followed) -> None:
        taken = auto.pull()
        assert auto.reader.last_good() == taken
        roll_back(auto.world.store, auto.world.keyring, CANARY)
        nothing = auto.pull()
        assert nothing == generation.empty("stable", CANARY.hardware)
        assert auto.reader.poll() == nothing
        assert auto.reader.poll() is None


class TestSidecarGone:
    """The engine serves on, and says what is wrong."""

    def check(self, followed: Followed, says: str) -> None:
        with pytest.raises(errors.SidecarError, match=says):
            followed.reader.poll()

    def test_each_way(self, followed: Followed) -> None:
        taken = followed.puller.poll()
        assert followed.reader.poll() == taken
        self.check(followed, "no sidecar has filled")
        followed.say()
        assert followed.reader.poll() is None
        long_ago_s = followed.status_path.stat().st_mtime - sidecar_status.SILENT_S - 5
        os.utime(followed.status_path, (long_ago_s, long_ago_s))
        self.check(followed, "silent for")
        os.utime(followed.status_path)
        assert followed.reader.poll() is None
        followed.say(problem="store s3://x: nothing answers there")
        self.check(followed, "nothing answers there")
        followed.say(running=False)
        self.check(followed, "was ended")
        followed.status_path.write_bytes(b"{")
        self.check(followed, "no sidecar has filled")
        followed.say()
        assert followed.reader.poll() is None

    def test_news_come_before_complaints(self, followed: Followed) -> None:
        followed.puller.poll()
        followed.say(problem="away")
        assert codes(followed.reader.poll()) == [b"code 1"]
        self.check(followed, "away")


def test_a_cache_that_was_emptied_is_filled_again(followed: Followed) -> None:
    taken = followed.pull()
    shutil.rmtree(followed.puller.cache.folder)
    assert followed.pull() == taken
    assert followed.reader.poll() == taken
    assert followed.pull() is None


def test_it_names_the_objects_of_the_shared_folder(followed: Followed) -> None:
    followed.pull()
    taken = followed.reader.poll()
    assert taken is not None
    artifact, _ = make_artifact("rms_norm", b"code 1")
    (path,) = taken.objects.values()
    assert path == followed.puller.cache.blob_path(artifact.table.entries[0].object.sha256)


def test_a_puller_takes_over_the_cache_of_a_sidecar(followed: Followed) -> None:
    taken = followed.pull()
    assert isinstance(followed.world.puller(), Puller)
    assert followed.world.puller().last_good() == taken
