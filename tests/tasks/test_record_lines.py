"""Whatever bytes come into a file of records or go missing, the lines that were not touched count, and are kept."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gristmill import durable_file, records
from tasks.proposal_record import Proposal
from tasks.record_lines import RecordLines, read
from tests.tasks.world import candidate

COUNT = 4
RECORDS = tuple(Proposal(f"task {number}", candidate(number)) for number in range(COUNT))
LINES = [records.canonical_json(record) + b"\n" for record in RECORDS]
CONTENT = b"".join(LINES)
JUNK = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\n", b"\n\n", b"\0" * 30, b"}{", b"null\n", b"[" * 5000, b"\\ud800", b"\xed\xa0\x80", b'"']),
)
EDITS = st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 300), JUNK), min_size=1, max_size=4)


def damaged(edits: list[tuple[int, int, bytes]]) -> tuple[bytes, list[Proposal]]:
    """What is left after bytes were removed and put in at places of the whole file, and the records not touched.

    A record is touched with any byte of its line, its end included, or with the end of the line before.
    """
    content, touched, low = CONTENT, set[int](), len(CONTENT)
    for place, removed, put_in in sorted(edits, key=lambda edit: -edit[0]):
        end = min(place + removed, low)
        content = content[:place] + put_in + content[end:]
        touched |= {number for number in range(COUNT) if place <= _end(number) and end >= _end(number - 1)}
        low = place
    return content, [record for number, record in enumerate(RECORDS) if number not in touched]


def _end(number: int) -> int:
    """Where a line's end is, in the whole file."""
    return sum(map(len, LINES[: number + 1])) - 1


@hypothesis_settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=EDITS)
def test_all_that_was_not_touched_is_found_and_the_rest_is_set_aside_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, edits: list[tuple[int, int, bytes]]
) -> None:
    path, aside = tmp_path / "lines.jsonl", tmp_path / "lines.jsonl.damaged"
    aside.unlink(missing_ok=True)
    content, untouched = damaged(edits)
    path.write_bytes(content)
    caplog.clear()
    without_change = read(path, Proposal)
    assert path.read_bytes() == content
    first = RecordLines(path, Proposal)
    assert list(first.found) == without_change
    assert [record for record in first.found if record in untouched] == untouched
    set_aside = aside.read_bytes().splitlines(keepends=True) if aside.exists() else []
    whole = path.read_bytes().split(b"\n")[:-1]
    others = [line + b"\n" for line in content.split(b"\n")[:-1] if line not in whole]
    assert b"".join(set_aside) == b"".join(others)
    assert len(caplog.records) == (2 if others else 0), "one line from the reader, one from the search"

    caplog.clear()
    again = RecordLines(path, Proposal)
    again.append(RECORDS[0])
    assert not caplog.records and again.found == first.found
    assert RecordLines(path, Proposal).found == (*first.found, RECORDS[0])
    assert b"".join(set_aside) == (aside.read_bytes() if aside.exists() else b"")


def test_the_warning_says_how_many_where_and_what_became_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s1" / "lines.jsonl"
    path.parent.mkdir()
    path.write_bytes(LINES[0] + b"junk\n" + LINES[1])
    RecordLines(path, Proposal)
    path.write_bytes(LINES[0] + b"junk\n" + LINES[1] + b"more\n")
    RecordLines(path, Proposal)
    assert [record.getMessage() for record in caplog.records] == [
        "s1/lines.jsonl: line 2 is damaged and set aside in lines.jsonl.damaged; 2 are whole",
        "s1/lines.jsonl: 2 lines (the first is line 2) are damaged and set aside in lines.jsonl.damaged; 2 are whole",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert (path.parent / "lines.jsonl.damaged").read_bytes() == b"junk\njunk\nmore\n"


@pytest.mark.parametrize("torn", range(0, len(LINES[1]) - 1, 37))
def test_a_torn_last_line_is_cut_off_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: int
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINES[0] + LINES[1][:torn])
    assert RecordLines(path, Proposal).found == RECORDS[:1]
    assert path.read_bytes() == LINES[0] and [file.name for file in tmp_path.iterdir()] == ["lines.jsonl"]
    assert not caplog.records


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(
    ("module", "name"), [(os, "fsync"), (durable_file, "sync_folder"), (durable_file, "write")], ids=str
)
def test_a_crash_while_lines_are_set_aside_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINES[0] + b"junk\n" + LINES[1])

    def die(*arguments: object) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(module, name, die)
        RecordLines(path, Proposal)
    assert RecordLines(path, Proposal).found == RECORDS[:2]
    assert set((tmp_path / "lines.jsonl.damaged").read_bytes().splitlines()) == {b"junk"}
    assert path.read_bytes() == LINES[0] + LINES[1]


def test_nothing_is_made_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert RecordLines(tmp_path / "s1" / "lines.jsonl", Proposal).found == ()
    assert list(tmp_path.iterdir()) == []
