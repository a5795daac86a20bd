"""`./mill drift`: what moved, since it was compiled for or between two profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill import records
from gristmill.directory_store import DirectoryStore
from kernels.profile import TrafficProfile
from tasks import traffic
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.tasks.world import profile, rms_norm, settings, silu_and_mul

NORM, SILU = rms_norm(1, time_ns=1_000_000), silu_and_mul(4, time_ns=3_000_000)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "store").mkdir()
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_process.mill(monkeypatch, capsys, ["drift"], **in_process.fleet(tmp_path))


def kept(store: DirectoryStore, tmp_path: Path, one: TrafficProfile, *, compiled: bool = False) -> str:
    chosen = settings(tmp_path / "home", tmp_path / "store")
    if compiled:
        traffic.mark_compiled(store, chosen, one)
    return traffic.keep_profile(store, chosen, one)


def test_what_moved_since_it_was_compiled_for(store: DirectoryStore, mill: Run, tmp_path: Path) -> None:
    kept(store, tmp_path, profile(NORM, SILU), compiled=True)
    assert "nothing has moved" in mill()[1]
    kept(store, tmp_path, profile(rms_norm(64), SILU, end="2026-12-01T02:00:00+00:00"))
    code, out, _ = mill()
    assert code == 0 and out.splitlines()[-1] == "rms_norm float32: tokens from 1 to 64, 25% of the time"
    told = json.loads(mill("--json")[1])
    assert told["drifted"] is True
    assert [(m["subject"], m["axis"], m["moved"]) for m in told["moves"]] == [
        ("rms_norm", "tokens", True),
        ("silu_and_mul", "tokens", False),
    ]


def test_two_profiles_by_digest_and_by_file(store: DirectoryStore, mill: Run, tmp_path: Path) -> None:
    first = kept(store, tmp_path, profile(NORM))
    kept(store, tmp_path, profile(NORM, SILU, end="2026-12-01T02:00:00+00:00"))
    assert "silu_and_mul float32 is new, 75% of the time" in mill(first[:12])[1]
    other = tmp_path / "other.json"
    other.write_bytes(records.canonical_json(profile(rms_norm(1024))))
    assert mill(first[:8], str(other))[1].splitlines()[-1] == (
        "rms_norm float32: tokens from 1 to 1024, 100% of the time"
    )


def test_nothing_compiled_yet_is_said(store: DirectoryStore, mill: Run, tmp_path: Path) -> None:
    kept(store, tmp_path, profile(NORM))
    assert "nothing was compiled" in mill()[1]
    assert json.loads(mill("--json")[1])["compared"] is False


def test_bad_names_are_one_line(store: DirectoryStore, mill: Run, tmp_path: Path) -> None:
    kept(store, tmp_path, profile(NORM))
    newer = tmp_path / "newer.json"
    newer.write_bytes(records.canonical_json(replace(profile(NORM), schema_version=9)))
    for arguments, told in ((("ffff",), "'ffff'"), (("a", "b", "c"), "3 profiles"), ((str(newer),), "version 9")):
        code, _, err = mill(*arguments)
        assert code == 2 and told in err and len(err.strip().splitlines()) == 1
