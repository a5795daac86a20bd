"""The host's cache on its own."""

from __future__ import annotations

from pathlib import Path

import pytest

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
