"""The spool holds every whole line, whatever byte its writer died at."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.errors import MalformedRecordError
from tasks.mlflow_spool import SearchEnd, SearchStart, Spool, SpoolLine

LINES = (
    SpoolLine(start=SearchStart("s1", "gristmill", 1, {"operator": "rms_norm"})),
    SpoolLine(end=SearchEnd(2, {"first": "end"})),
    SpoolLine(end=SearchEnd(3, {"second": "end"})),
)


def write(path: Path) -> Spool:
    spool = Spool(path)
    assert spool.open()
    for line in LINES:
        spool.append(line)
    return spool


def test_lines_come_back_with_the_offset_behind_them(tmp_path: Path) -> None:
    spool = write(tmp_path / "s1.jsonl")
    lines = list(spool.lines())
    assert tuple(line for line, _ in lines) == LINES
    assert [line for line, _ in spool.lines(lines[0][1])] == list(LINES[1:])
    assert lines[-1][1] == spool.path.stat().st_size


def test_a_death_at_any_byte_costs_the_line_being_written_and_no_other(tmp_path: Path) -> None:
    spool = write(tmp_path / "s1.jsonl")
    spool.close()
    content = spool.path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for size in range(ends[1], len(content)):
        spool.path.write_bytes(content[:size])
        again = Spool(spool.path)
        assert again.open()
        again.append(LINES[2])
        assert tuple(line for line, _ in again.lines()) == LINES, size
        again.close()


def test_what_was_sent_from_a_lost_tail_is_forgotten(tmp_path: Path) -> None:
    spool = write(tmp_path / "s1.jsonl")
    spool.mark_drained(spool.path.stat().st_size)
    spool.close()
    spool.path.write_bytes(spool.path.read_bytes()[:-1])
    assert spool.open()
    assert spool.drained() == 0
    spool.close()


def test_one_owner_at_a_time_and_none_of_what_is_gone(tmp_path: Path) -> None:
    spool = write(tmp_path / "s1.jsonl")
    other = Spool(spool.path)
    assert not other.open()
    spool.remove()
    spool.close()
    assert not other.open(create=False)
    assert other.open()
    other.close()


def test_a_line_of_another_version_is_named(tmp_path: Path) -> None:
    spool = write(tmp_path / "s1.jsonl")
    spool.close()
    spool.path.write_text('{"start":null,"trial":null,"end":null,"extra":1}\n')
    with pytest.raises(MalformedRecordError, match=r"s1.jsonl line 1: unknown field 'extra'"):
        list(spool.lines())
