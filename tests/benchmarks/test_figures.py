"""Figures are merged by name, written by rename, and rendered as they stand."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import figures
from benchmarks.figures import Figure, Outcome
from gristmill.errors import MalformedRecordError
from gristmill.hardware import local_cpu

ROW = Figure("decode", 2, "at least 1.5", "x", "./mill demo", 1.62, (1.57, 1.68), Outcome.MET)


def test_a_measured_row_gets_host_commit_and_date(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    recorded = figures.record(ROW, path)
    assert recorded.host == f"{local_cpu().description}, {local_cpu().cores} cores"
    assert os.uname().nodename not in recorded.host
    assert recorded.date and figures.load(path) == (recorded,)
    rows = json.loads(path.read_text())
    assert rows[0]["verdict"] == "met" and rows[0]["interval"] == [1.57, 1.68]


def test_a_row_replaces_the_one_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figures.record(ROW, path)
    figures.record(replace(ROW, name="other"), path)
    figures.record(replace(ROW, measured=1.4, verdict=Outcome.MISSED), path)
    assert [(row.name, row.measured) for row in figures.load(path)] == [("decode", 1.4), ("other", 1.62)]


def test_what_was_not_measured_claims_no_place_and_time(tmp_path: Path) -> None:
    row = Figure("gpu", 7, "at least 2", "x", "./mill gpu-check")
    assert figures.record(row, tmp_path / "figures.json") == row


def test_the_page_shows_every_row(tmp_path: Path) -> None:
    figures.record(replace(ROW, note="a | b", host="CPU", commit="abc", date="2026-12-01"), tmp_path / "figures.json")
    page = (tmp_path / "figures.md").read_text()
    assert "## Issue 2" in page
    assert (
        "| decode | at least 1.5 | 1.62 x [1.57, 1.68] | met | `./mill demo` | CPU | abc, 2026-12-01 | a \\| b |"
        in page
    )


def test_a_malformed_file_is_named_with_the_row(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figures.record(ROW, path)
    rows = json.loads(path.read_text())
    rows[0]["verdict"] = "great"
    path.write_text(json.dumps(rows))
    with pytest.raises(MalformedRecordError, match=r"figures.json\[0\].verdict"):
        figures.load(path)


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.json"
    figures.record(ROW, path)
    before = path.read_text()

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        figures.record(replace(ROW, measured=9.0), path)
    assert path.read_text() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["figures.json", "figures.md"]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 4)), max_size=12))
def test_merging_keeps_the_last_of_each_name_in_order_of_issues(given_rows: list[tuple[str, int]]) -> None:
    rows: tuple[Figure, ...] = ()
    for name, issue in given_rows:
        rows = figures.merge(rows, replace(ROW, name=name, issue=issue))
    assert {row.name: row.issue for row in rows} == dict(given_rows)
    assert [row.issue for row in rows] == sorted(row.issue for row in rows)
