"""The host's cache on its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gristmill import machine
from gristmill.cache import Cache, GenerationRecord
from gristmill.errors import CacheError, GristmillError, RollbackError, TrustError
from gristmill.records import sha256_hex
from gristmill.trust import Channel

CHANNEL = Channel("canary", "chat", "llama", "hw")
RECORD = GenerationRecord("a" * 64, "b" * 64, "c" * 64, "d" * 64)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path / "cache")
    with cache.locked():
        return cache


def test_content_is_hashed_when_it_is_taken_out(cache: Cache) -> None:
    digest = cache.add(b"code")
    assert cache.find(digest) == b"code"
    cache.blob_path(digest).write_bytes(b"evil")
    assert cache.find(digest) is None
    assert cache.add(b"code") == digest
    assert cache.find(digest) == b"code"
    assert cache.find(sha256_hex(b"other")) is None


def test_no_name_leaves_the_folder(cache: Cache) -> None:
    for name in ("../x", "/etc/passwd", ""):
        with pytest.raises(TrustError):
            cache.find(name)
        with pytest.raises(TrustError):
            cache.find_attestation(name, "judge")


def test_generations_are_kept_per_channel(cache: Cache) -> None:
    assert cache.load_generation(CHANNEL) is None
    cache.save_generation(CHANNEL, RECORD)
    assert cache.load_generation(CHANNEL) == RECORD
    assert cache.load_generation(Channel("stable", "chat", "llama", "hw")) is None


def test_high_water_never_falls(cache: Cache) -> None:
    cache.raise_high_water({"root": 1, "timestamp": 5, "canary/x": 3})
    cache.raise_high_water({"root": 1, "timestamp": 5})
    for lower in ({"root": 1, "timestamp": 4}, {"root": 1, "canary/x": 2}, {"root": 0, "timestamp": 9}):
        with pytest.raises(RollbackError):
            Cache(cache.folder).raise_high_water(lower)
    cache.raise_high_water({"root": 1, "timestamp": 6})
    with pytest.raises(RollbackError, match="version 5 of timestamp, but this host has seen 6"):
        cache.raise_high_water({"root": 1, "timestamp": 5})


def test_a_new_root_recovers_from_a_fast_forward(cache: Cache) -> None:
    cache.raise_high_water({"root": 1, "timestamp": 10**9})
    cache.raise_high_water({"root": 2, "timestamp": 6})
    with pytest.raises(RollbackError):
        cache.raise_high_water({"root": 1, "timestamp": 7})


def test_damaged_records_are_refused(cache: Cache) -> None:
    cache.save_generation(CHANNEL, RECORD)
    (cache.folder / "generations" / CHANNEL.index_path).write_text("{")
    with pytest.raises(CacheError, match="delete it"):
        cache.load_generation(CHANNEL)


@pytest.mark.parametrize("content", ["", "[]", '{"versions": {"root": "1"}}', "\0" * 60])
def test_a_damaged_high_water_mark_says_what_where_and_what_to_do(cache: Cache, content: str) -> None:
    cache.raise_high_water({"root": 1, "timestamp": 5})
    path = cache.folder / "high_water.json"
    path.write_text(content)
    for use in (
        cache.high_water,
        lambda: cache.raise_high_water({"root": 1}),
        lambda: cache.check_high_water({"root": 1}),
    ):
        with pytest.raises(CacheError) as raised:
            use()
        told = str(raised.value)
        assert str(path) in told and "seen" in told and "delete it" in told and "\n" not in told
    path.unlink()
    cache.raise_high_water({"root": 1, "timestamp": 4})
    assert cache.high_water() == {"root": 1, "timestamp": 4}


@pytest.mark.parametrize("parts", [("canary", "a/b", "m", "h"), ("canary", "..", "m", "h"), ("", "f", "m", "h")])
def test_channels_have_safe_names(parts: tuple[str, str, str, str]) -> None:
    with pytest.raises(GristmillError, match=r"slash|relative path"):
        Channel(*parts)


class TestMachines:
    @pytest.fixture
    def names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
        """Files that say which machine this is."""
        found = {"product_uuid": tmp_path / "product_uuid", "machine_id": tmp_path / "machine-id"}
        monkeypatch.setattr(machine, "SOURCES", found)
        return found

    @staticmethod
    def bound(cache: Cache) -> str:
        with cache.locked():
            cache.bind_host()
        return cache.host_id()

    @pytest.mark.parametrize("copied", ["product_uuid", "machine_id", ""])
    def test_a_copy_on_another_machine_is_another_host(
        self, cache: Cache, tmp_path: Path, names: dict[str, Path], copied: str
    ) -> None:
        for path in names.values():
            path.write_text("1" * 32)
        first = self.bound(cache)
        assert self.bound(cache) == first
        shutil.copytree(cache.folder, tmp_path / "copy")
        for name in names.keys() - {copied}:
            names[name].write_text("2" * 32)
        copy = Cache(tmp_path / "copy")
        second = self.bound(copy)
        assert second != first and len(second) == 64
        assert self.bound(copy) == second
        for path in names.values():
            path.write_text("1" * 32)
        assert self.bound(cache) == first, "the other stays what it was"

    def test_what_a_process_may_not_read_says_nothing(self, cache: Cache, names: dict[str, Path]) -> None:
        first = self.bound(cache)
        names["machine_id"].write_text("1" * 32)
        assert self.bound(cache) == first
        names["product_uuid"].write_text("3" * 32)  # by a process of root's
        assert self.bound(cache) == first
        names["product_uuid"].unlink()
        assert self.bound(cache) == first
        names["product_uuid"].write_text("4" * 32)
        assert self.bound(cache) != first, "it was remembered meanwhile"

    @pytest.mark.parametrize("content", ["", "uninitialized\n", "\xff" * 32])
    def test_what_names_no_machine_is_not_taken_for_a_name(
        self, cache: Cache, names: dict[str, Path], content: str
    ) -> None:
        names["machine_id"].write_text("1" * 32)
        first = self.bound(cache)
        names["machine_id"].write_bytes(content.encode("latin-1"))
        assert self.bound(cache) == first

    def test_nothing_that_is_kept_tells_which_machine_it_is(self, cache: Cache, names: dict[str, Path]) -> None:
        other = Cache(cache.folder.parent / "other")
        with other.locked():
            pass
        names["machine_id"].write_text("0123456789abcdef" * 2)
        hosts = {self.bound(cache), self.bound(other)}
        kept = [path.read_text() for one in (cache, other) for path in one.folder.glob("host_*")]
        assert len(hosts) == 2 and len(kept) == 4
        plain = sha256_hex(b"0123456789abcdef" * 2)
        assert not any(name in text for text in kept for name in ("0123456789abcdef", plain))
        assert len(set(kept)) == 4, "two folders of one machine have nothing in common"

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]"])
    def test_a_damaged_binding_is_made_anew(self, cache: Cache, names: dict[str, Path], damage: bytes) -> None:
        names["machine_id"].write_text("1" * 32)
        first = self.bound(cache)
        (cache.folder / "host_machine.json").write_bytes(damage)
        assert self.bound(cache) == first
        names["machine_id"].write_text("2" * 32)
        assert self.bound(cache) != first


@pytest.mark.parametrize("exposed", ["", "generations", "trials"])
def test_a_folder_that_every_user_may_write_to_is_told_once(cache: Cache, exposed: str) -> None:
    cache.save_generation(CHANNEL, RECORD)
    for name in ("trials", "outbox"):
        (cache.folder / name).mkdir()
    (cache.folder / "outbox").chmod(0o777)
    (cache.folder / "generations").chmod(0o770)
    assert cache.take_warnings() == []
    (cache.folder / exposed).chmod(0o1777)
    (warning,) = cache.take_warnings()
    assert f"may write to {cache.folder / exposed}: " in warning and "chmod o-w" in warning
    assert cache.take_warnings() == []
