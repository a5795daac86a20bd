"""What is in the journal survives a crash at any byte; what is not is judged again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tasks.journal import Journal, read, task_key
from tests.tasks.world import candidate, rms_norm, timing, verdict

WORKLOADS = (rms_norm(1), rms_norm(4))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "search" / "verdicts.jsonl"


def fill(path: Path, count: int) -> Journal:
    journal = Journal(path)
    for number in range(count):
        one = candidate(number)
        journal.append(one, verdict(one, timing(WORKLOADS[0], 1.5 + number)), WORKLOADS)
    return journal


def test_another_life_finds_what_was_judged_in_order(path: Path) -> None:
    first = fill(path, 3)
    again = Journal(path)
    assert again.entries() == first.entries()
    assert [entry.candidate for entry in again.entries()] == [candidate(0), candidate(1), candidate(2)]
    found = again.find(candidate(1), WORKLOADS)
    assert found is not None and found.timings[0].ratio == 2.5
    assert again.find(candidate(3), WORKLOADS) is None


def test_the_same_candidate_on_other_workloads_is_another_task(path: Path) -> None:
    journal = fill(path, 1)
    assert journal.find(candidate(0), WORKLOADS[:1]) is None
    assert journal.find(candidate(0), (*WORKLOADS, rms_norm(8))) is None
    assert journal.find(candidate(0), WORKLOADS[::-1]) is not None
    assert task_key(candidate(0), WORKLOADS) != task_key(candidate(1), WORKLOADS)


def test_counts_of_a_workload_do_not_make_another_task(path: Path) -> None:
    assert fill(path, 1).find(candidate(0), (rms_norm(1, calls=99), rms_norm(4, time_ns=7))) is not None


@pytest.fixture(scope="module")
def two_entries(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("journal") / "verdicts.jsonl"
    fill(path, 2)
    return path.read_bytes()


@hypothesis_settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_write_torn_at_any_byte_loses_that_entry_alone(path: Path, two_entries: bytes, data: st.DataObject) -> None:
    second = two_entries.index(b"\n") + 1
    cut = data.draw(st.integers(second, len(two_entries) - 2))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(two_entries[:cut])
    assert [entry.candidate for entry in read(path)] == [candidate(0)]
    assert path.read_bytes() == two_entries[:cut], "reading changes nothing: a search may be writing"
    assert len(Journal(path)) == 1
    assert path.read_bytes() == two_entries[:second]


def test_what_was_torn_is_judged_and_kept_again(path: Path, two_entries: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(two_entries[:-7])
    one = candidate(1)
    Journal(path).append(one, verdict(one), WORKLOADS)
    assert [entry.candidate for entry in Journal(path).entries()] == [candidate(0), one]


def test_an_entry_that_lacks_its_end_of_line_alone_is_whole(path: Path, two_entries: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(two_entries[:-1])
    assert len(read(path)) == len(Journal(path)) == 2
    assert path.read_bytes() == two_entries


def test_a_damaged_entry_is_judged_again_and_no_other(path: Path) -> None:
    fill(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"task"', b'"tusk"') + lines[2])
    journal = Journal(path)
    found = [journal.find(candidate(number), WORKLOADS) is not None for number in range(3)]
    assert found == [True, False, True]
    journal.append(candidate(1), verdict(candidate(1)), WORKLOADS)
    assert len(Journal(path)) == 3
