"""A cache forgets what no generation needs, a day after it was needed last, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gristmill import cache_collection
from gristmill.cache import Cache
from gristmill.cache_collection import EVERY_S, KEPT_S, TRIALS_KEPT_S, collect_if_due
from gristmill.cache_reader import CacheReader
from gristmill.generation import Generation
from gristmill.pull import Puller
from registry.publication import move
from registry.rollback import roll_back
from tests.registry.attacks.attacker import codes
from tests.registry.world import CANARY, STABLE, World


class Host:
    """One that has taken three generations: code 1, code 2, code 3."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.puller = self.world.puller()
        self.cache = self.puller.cache
        self.generations: list[Generation] = []
        for number in (1, 2, 3):
            self.world.publish("rms_norm", b"code %d" % number)
            found = self.puller.poll()
            assert found is not None
            self.generations.append(found)

    def age(self, seconds: float) -> None:
        """Time goes by."""
        for path in self.cache.folder.rglob("*"):
            written_s = path.lstat().st_mtime - seconds
            os.utime(path, (written_s, written_s), follow_symlinks=False)

    def collect(self) -> int:
        with self.cache.locked():
            return collect_if_due(self.cache)

    def days(self, count: int) -> int:
        """So many days, with a collection in each."""
        removed = 0
        for _ in range(count):
            self.age(EVERY_S + 60)
            removed += self.collect()
        return removed

    def has(self, number: int) -> bool:
        (path,) = self.generations[number - 1].objects.values()
        return path.exists()

    def restarted(self) -> Puller:
        return self.world.puller()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def test_what_serves_and_what_served_before_it_stays_and_the_rest_goes(host: Host) -> None:
    assert host.days(1) == 0, "it was needed yesterday"
    assert host.days(2) > 0
    assert [host.has(number) for number in (1, 2, 3)] == [False, True, True]
    assert host.days(5) == 0
    offline, store, away = host.restarted(), host.world.path(""), host.world.folder / "away"
    store.rename(away)
    assert codes(offline.last_good()) == [b"code 3"]
    away.rename(store)
    roll_back(host.world.store, host.world.keyring, CANARY, to=host.generations[0].number)
    assert codes(host.restarted().poll()) == [b"code 1"], "what is gone is fetched again"


def test_what_another_channel_of_the_folder_serves_stays(host: Host) -> None:
    roll_back(host.world.store, host.world.keyring, CANARY, to=host.generations[0].number)
    move(host.world.store, host.world.keyring, CANARY)
    stable = host.world.puller(channel=STABLE)
    assert codes(stable.poll()) == [b"code 1"]
    for number in (4, 5, 6):
        host.world.publish("rms_norm", b"code %d" % number)
        host.puller.poll()
    host.days(5)
    assert [host.has(number) for number in (1, 2, 3)] == [True, False, False]
    assert codes(host.world.puller(channel=STABLE).last_good()) == [b"code 1"]


def test_what_was_needed_until_now_stays_for_who_is_still_loading_it(host: Host) -> None:
    host.days(5)
    root = host.puller._root
    reader = CacheReader(root, CANARY.fleet, CANARY.model, CANARY.hardware, CANARY.name, host.cache.folder)
    behind = reader.last_good()
    for number in (4, 5, 6):
        host.world.publish("rms_norm", b"code %d" % number)
        host.puller.poll()
    host.days(1)
    assert behind is not None and codes(behind) == [b"code 3"]
    host.days(2)
    assert not host.has(3)


def test_a_poll_collects_once_a_day(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[float] = []

    def collect(cache: Cache, now_s: float) -> int:
        collected.append(now_s)
        return 0

    monkeypatch.setattr(cache_collection, "_collect", collect)
    host.restarted().poll()
    assert collected == []
    host.age(EVERY_S + 60)
    for _ in range(3):
        host.restarted().poll()
    assert len(collected) == 1
    stamp = host.cache.folder / "collected"
    os.utime(stamp, (time.time() + 10 * EVERY_S,) * 2)  # the clock was wrong
    host.restarted().poll()
    assert len(collected) == 2


@pytest.mark.parametrize("damaged", ["generations", "index", "manifest"])
def test_nothing_goes_while_it_cannot_be_told_what_is_needed(host: Host, damaged: str) -> None:
    record = host.cache.load_generation(CANARY)
    assert record is not None
    if damaged == "generations":
        for path in files(host.cache.folder / damaged):
            path.write_bytes(b"{")
    else:
        index = host.cache.find(record.index_sha256)
        assert index is not None
        manifest = cache_collection._parsed(cache_collection.Index, index).tables["rms_norm.float32"]
        host.cache.blob_path(record.index_sha256 if damaged == "index" else manifest).write_bytes(b"{")
    assert host.days(5) == 0
    assert [host.has(number) for number in (1, 2, 3)] == [True, True, True]


def test_notes_of_kernels_that_are_not_needed_go_after_a_quarter(host: Host) -> None:
    folder = host.cache.folder / "trials"
    folder.mkdir()
    gone, serving = ("f" * 64), next(iter(host.generations[2].objects))
    for sha256 in (gone, serving):
        (folder / f"{sha256}.1").write_bytes(b"{}")
    host.days(5)
    assert len(files(folder)) == 2
    host.age(TRIALS_KEPT_S)
    host.collect()
    assert [path.name for path in files(folder)] == [f"{serving}.1"]


def test_what_killed_writers_left_behind_goes_too(host: Host) -> None:
    left = [host.cache.folder / "blobs" / ".aside-x", host.cache.folder / "generations" / ".aside-y"]
    for path in left:
        path.write_bytes(b"half a f")
    host.age(KEPT_S)
    host.days(2)
    assert not any(path.exists() for path in left)


def test_no_link_leads_out_of_the_cache(host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("e" * 64)).write_bytes(b"mine")
    (host.cache.folder / "blobs" / "link").symlink_to(outside)
    host.age(KEPT_S)
    os.utime(outside / ("e" * 64), (0, 0))
    host.days(3)
    assert (outside / ("e" * 64)).read_bytes() == b"mine"
    assert (outside / ("e" * 64)).stat().st_mtime == 0
