"""`./mill patterns`: the catalogue, with the record of each pattern as memory has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.memory import SCHEMA, Contents, Evidence, PatternRecord, Segment, family_of
from agents.patterns import catalogue
from cli.__main__ import main
from gristmill.hardware import local_cpu
from gristmill.store import open_store
from tasks.memory_shelves import MemoryShelves
from tasks.pattern_records import standings

DAY_MS = 86_400_000
HERE, THERE = "x86_64-a-1-1-avx2", "sm_90"


def record(pattern: str, operator: str, hardware: str, tried: int, best: float, day: int = 20_000) -> PatternRecord:
    bars = (tried, *[0] * 10)
    return PatternRecord(
        operator, hardware, pattern, tried, tried, tried, tried // 2, bars, best, Evidence(float(tried)), day * DAY_MS
    )


RECORDS = (
    record("split-k", "skinny_linear", HERE, 10, 1.5),
    record("split-k", "skinny_linear", THERE, 4, 2.25, day=20_001),
    record("fused-row-passes", "rms_norm", HERE, 6, 3.0),
    record("producer-consumer-fusion", "softmax", HERE, 2, 1.2, day=20_002),
    record("somebody's own", "softmax", HERE, 2, 1.2),
    record("weight-packing", "skinny_linear", HERE, 3, 0.0),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in a folder, with records of two families."""
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setenv("MILL_STORE", f"file://{folder}")
    monkeypatch.setenv("MILL_HOME", str(tmp_path / "home"))
    shelves = MemoryShelves(open_store(f"file://{folder}", {}))
    for number, one in enumerate(RECORDS):
        shelves.add(Segment(SCHEMA, family_of(one.operator), "w", number, 1 + number, Contents((one,))), ())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["patterns", *arguments]) == 0
    return capsys.readouterr().out


def test_standings_add_up_operators_and_former_names() -> None:
    found = {(s.pattern, s.hardware): s for s in standings(RECORDS)}
    fused = found["producer-consumer-fusion", HERE]
    assert (fused.tried, fused.won, fused.best, fused.best_operator) == (8, 4, 3.0, "rms_norm")
    assert fused.last_ms == 20_002 * DAY_MS
    assert found["split-k", THERE].best == 2.25
    assert found["weight-packing", HERE].best_operator == ""
    assert [s.best for s in standings(RECORDS)] == sorted((s.best for s in standings(RECORDS)), reverse=True)


@pytest.mark.usefixtures("store")
def test_all_are_listed_with_a_row_per_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in run(capsys).splitlines()[2:]]
    assert {line[0] for line in lines} == {p.name for p in catalogue.patterns()}
    assert [line[1:7] for line in lines if line[0] == "split-k"] == [
        ["4", "2", "2.25x", "skinny_linear", "2024-10-05", THERE],
        ["10", "5", "1.50x", "skinny_linear", "2024-10-04", HERE],
    ]
    assert [line[1:4] for line in lines if line[0] == "weight-packing"] == [["3", "1", "-"]]
    assert [line[1:4] for line in lines if line[0] == "online-softmax"] == [["0", "0", "-"]]


@pytest.mark.usefixtures("store")
def test_filters_choose_patterns_and_records(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = json.loads(run(capsys, "--json", "--hardware", "cuda"))
    names = {facts["name"] for facts in gpu}
    assert "tensor-core-tiles" in names
    assert "bf16-dot-products" not in names
    assert [r["hardware"] for facts in gpu for r in facts["records"]] == [THERE]
    linear = json.loads(run(capsys, "--json", "--operator", "skinny_linear", "--hardware", HERE))
    assert {r["best_operator"] for facts in linear for r in facts["records"]} == {"skinny_linear", ""}
    assert "online-softmax" not in {facts["name"] for facts in linear}
    softmax = [facts["name"] for facts in json.loads(run(capsys, "--json", "--operator", "softmax"))]
    assert softmax[0] == "polynomial-exponential"
    assert "register-blocking" not in softmax


@pytest.mark.usefixtures("store")
def test_one_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "split-k")
    for part in catalogue.pattern("split-k").sections.values():
        assert part in text
    assert "2.25x" in text
    assert "never tried" in run(capsys, "online-softmax")
    facts = json.loads(run(capsys, "row-dot-products", "--json"))
    assert (facts["name"], facts["records"]) == ("register-blocking", [])


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["splitk"], "mill: pattern 'splitk' is unknown; did you mean 'split-k'? ./mill patterns lists them all\n"),
        (["--operator", "rms"], "mill: operator 'rms' is unknown: choose one of rms_norm"),
        (["--hardware", "nope"], "mill: hardware 'nope' is unknown: expected cpu, cuda, rocm or a key like sm_90 or "),
        (["--hardware", "CPU", "--json"], "mill: hardware 'CPU' is unknown: "),
    ],
)
def test_bad_input_is_one_line_and_2(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patterns", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(complaint)
    assert error.count("\n") == 1


def test_without_its_store_the_catalogue_is_shown_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MILL_STORE", f"file://{tmp_path}/nowhere/store")
    monkeypatch.setenv("MILL_HOME", str(tmp_path))
    assert main(["patterns", "--hardware", local_cpu().key]) == 0
    shown = capsys.readouterr()
    assert "producer-consumer-fusion" in shown.out
    assert shown.err.startswith("mill: no records are shown: ")
    assert shown.err.count("\n") == 1
