"""What is in the journal survives a crash at any byte; what is not is judged again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gristmill.errors import MalformedRecordError
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
    cut = data.draw(st.integers(second, len(two_entries) - 1))
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


@pytest.mark.parametrize("damage", [b"{}", b"not json", b'{"task":1}', b"\xff\xfe", b"[" * 5000])
def test_a_damaged_line_before_the_last_is_one_clear_error(path: Path, damage: bytes) -> None:
    fill(path, 2)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damage, lines[1], b""]))
    before = path.read_bytes()
    with pytest.raises(MalformedRecordError, match=r"verdicts\.jsonl line 2.*delete verdicts\.jsonl") as raised:
        Journal(path)
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before
