"""`./mill memory` shows what was learned, and forgets what it is told to and nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from cli import known
from cli.errors import MemoryArgumentsError
from gristmill.directory_store import DirectoryStore
from tasks.memory_shelves import MemoryShelves
from tests.tasks import world
from tests.tasks.memory_world import judged, segment


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryShelves:
    """One that knows of three candidates of two operators."""
    monkeypatch.setenv("MILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILL_STORE", f"file://{tmp_path}/store")
    shelves = MemoryShelves(DirectoryStore(tmp_path / "store"))
    shelves.add(*segment(0, judged(1, 2.5), judged(2, None)))
    shelves.add(*segment(0, judged(3, 1.5, operator="silu_and_mul")))
    return shelves


def mill_memory(*words: str) -> int:
    parser = argparse.ArgumentParser()
    known.configure(parser)
    return known.run(parser.parse_args(words))


def test_it_lists_patterns_and_lessons(memory: MemoryShelves, capsys: pytest.CaptureFixture[str]) -> None:
    assert mill_memory() == 0
    said = capsys.readouterr().out
    assert "row_reduction: 1 candidate kept" in said and "elementwise: 1 candidate kept" in said
    (row,) = [line.split() for line in said.splitlines() if line.startswith("rms_norm ")]
    assert row[1:8] == [world.HARDWARE, "rows", "2", "1", "1", "1", "2.50x"]
    assert "  rms_norm: rows: 2.50x (at least 2.45)" in said and "does not build" in said


def test_json_holds_everything(memory: MemoryShelves, capsys: pytest.CaptureFixture[str]) -> None:
    assert mill_memory("--operator", "rms_norm", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(found["row_reduction"][kind]) for kind in ("records", "lessons", "candidates")] == [1, 2, 1]
    assert found["elementwise"] == {"records": [], "lessons": [], "candidates": []}


def test_it_forgets_one_operator(memory: MemoryShelves, capsys: pytest.CaptureFixture[str]) -> None:
    assert mill_memory("forget", "--operator", "rms_norm", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": 4}
    assert memory.read("row_reduction").contents.size == 0
    assert memory.read("elementwise").contents.size == 3
    assert mill_memory("forget", "--all") == 0
    assert mill_memory() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing was learned yet")


@pytest.mark.parametrize("words", [["forget"], ["forget", "--all", "--operator", "rms_norm"]])
def test_to_forget_one_has_to_say_what(memory: MemoryShelves, words: list[str]) -> None:
    with pytest.raises(MemoryArgumentsError, match="name an --operator"):
        mill_memory(*words)
    assert memory.read("row_reduction").contents.size == 4
