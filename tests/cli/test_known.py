"""`./mill memory` shows what was learned, and forgets what it is told to and nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from cli import known
from cli.errors import MemoryArgumentsError
from gristmill.directory_store import DirectoryStore
from gristmill.errors import GristmillError
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


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--operator", "nope"], "of 'nope'"),
        (["--operator", "softmax"], "of 'softmax'"),
        (["--hardware", "gpu-x"], "on 'gpu-x'"),
        (["--operator", "rms_norm", "--hardware", "gpu-x"], "of 'rms_norm' on 'gpu-x'"),
    ],
)
def test_what_memory_does_not_hold_cannot_be_forgotten_and_it_says_what_it_holds(
    memory: MemoryShelves, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    with pytest.raises(MemoryArgumentsError) as refused:
        mill_memory("forget", *words)
    told = str(refused.value)
    assert f"{named}; memory holds rms_norm on {world.HARDWARE}, silu_and_mul on {world.HARDWARE}" in told
    assert refused.value.exit_code == 2 and "\n" not in told
    assert capsys.readouterr().out == ""
    assert memory.read("row_reduction").contents.size == 4


def test_an_empty_memory_says_how_it_is_filled_and_may_be_emptied(
    memory: MemoryShelves, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mill_memory("forget", "--all") == mill_memory("forget", "--all", "--json") == 0
    assert capsys.readouterr().out.splitlines()[-1] == '{"forgotten": 0}'
    with pytest.raises(MemoryArgumentsError, match="nothing to forget of 'rms_norm'; memory is empty"):
        mill_memory("forget", "--operator", "rms_norm")


def test_what_was_not_learned_is_shown_as_that_and_what_is_no_operator_is_not(
    memory: MemoryShelves, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mill_memory("--operator", "softmax") == 0
    assert capsys.readouterr().out.startswith("nothing was learned yet")
    with pytest.raises(GristmillError, match="'nope' is unknown: choose one of rms_norm"):
        mill_memory("--operator", "nope")
