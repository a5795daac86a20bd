"""`./mill capture`: what it says of a spool, losses included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.hardware import local_cpu
from gristmill.sampler import Sample, Sampler, Window
from gristmill.sequence import StepTimes
from gristmill.spool import Identity, Spool
from gristmill.workload import dense
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.tasks.world import PEAKS

LAYOUTS = (dense((4, 8), "float32"), dense((8,), "float32"))
SAMPLE = Sample("rms_norm", "float32", {"tokens": 4, "hidden": 8}, LAYOUTS, 170, 10, 50_000, 17)


class Windows:
    """A sampler that saw this window, and then the same again."""

    def flush(self) -> Window:
        return Window((SAMPLE,), 0, steps=StepTimes(1, 10, 1000, 250))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "peaks.json").write_bytes(records.canonical_json(PEAKS))
    (tmp_path / "store").mkdir()
    identity = Identity("chat", "tiny", local_cpu().key)
    store = DirectoryStore(tmp_path / "store")
    return Spool(store, identity, cast(Sampler, Windows()), tmp_path / "waiting", max_waiting_bytes=1)


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_process.mill(monkeypatch, capsys, ["capture"], **in_process.fleet(tmp_path))


def test_what_was_seen_and_what_was_lost(spool: Spool, mill: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.rename(tmp_path / "gone")
    store.write_text("a file where the store was")
    spool.add_request(10, 2, 1)
    assert spool.flush().lost
    store.unlink()
    (tmp_path / "gone").rename(store)
    spool.add_request(20, 4, 1, cached_tokens=5, drafts=3, accepted=(2,))
    spool.flush()
    code, text, _ = mill()
    assert code == 0
    assert "170 calls of 1 workloads in 1 requests" in text
    assert "25% of the engine's steps" in text
    assert "lost 170 calls and 1 requests" in text
    told = json.loads(mill("--json")[1])
    assert (told["dropped_calls"], told["requests"]["dropped"], told["requests"]["cached_tokens_total"]) == (170, 1, 5)
    assert (told["operator_share"], told["requests"]["accepted"]) == (0.25, [2])


def test_without_losses_nothing_is_said_of_them(spool: Spool, mill: Run) -> None:
    spool.flush()
    assert "lost" not in mill()[1]
