"""A proposal is on disk from the moment it came, until a verdict is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tasks.journal import Journal
from tasks.proposal_record import ProposalRecord
from tests.tasks.world import candidate, rms_norm, silu_and_mul, verdict

WORKLOADS = (rms_norm(1), rms_norm(4))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "verdicts.jsonl")


def test_what_came_in_is_found_by_another_process_until_it_is_judged(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "proposals.jsonl"
    record = ProposalRecord(path)
    for number in range(3):
        record.add(candidate(number), WORKLOADS)
    record.leave(candidate(1), WORKLOADS, "the search has ended")
    again = ProposalRecord(path)
    told = [(one.candidate, one.unjudged) for one in again.unjudged(journal, WORKLOADS)]
    assert told == [(candidate(0), ""), (candidate(1), "the search has ended"), (candidate(2), "")]
    journal.append(candidate(0), verdict(candidate(0)), WORKLOADS)
    assert [one.candidate for one in again.unjudged(journal, WORKLOADS)] == [candidate(1), candidate(2)]


def test_other_workloads_and_operators_are_other_searches(tmp_path: Path, journal: Journal) -> None:
    record = ProposalRecord(tmp_path / "proposals.jsonl")
    record.add(candidate(0), WORKLOADS)
    record.add(candidate(1, operator="silu_and_mul"), (silu_and_mul(4),))
    assert [one.candidate for one in record.unjudged(journal, WORKLOADS[::-1])] == [candidate(0)]
    assert record.unjudged(journal, WORKLOADS[:1]) == ()


def test_telling_it_twice_writes_it_once(tmp_path: Path) -> None:
    path = tmp_path / "proposals.jsonl"
    record = ProposalRecord(path)
    record.add(candidate(0), WORKLOADS)
    once = path.read_bytes()
    record.add(candidate(0), WORKLOADS)
    ProposalRecord(path).add(candidate(0), WORKLOADS)
    assert path.read_bytes() == once


@pytest.mark.parametrize("cut", [2, 20, 400])
def test_a_torn_write_loses_that_line_alone(tmp_path: Path, journal: Journal, cut: int) -> None:
    path = tmp_path / "proposals.jsonl"
    record = ProposalRecord(path)
    record.add(candidate(0), WORKLOADS)
    record.add(candidate(1), WORKLOADS)
    path.write_bytes(path.read_bytes()[:-cut])
    again = ProposalRecord(path)
    assert [one.candidate for one in again.unjudged(journal, WORKLOADS)] == [candidate(0)]
    again.add(candidate(1), WORKLOADS)
    assert len(ProposalRecord(path).unjudged(journal, WORKLOADS)) == 2


def test_a_damaged_line_loses_that_proposal_alone(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "proposals.jsonl"
    record = ProposalRecord(path)
    for number in range(3):
        record.add(candidate(number), WORKLOADS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][20:] + lines[2])
    again = ProposalRecord(path)
    assert [one.candidate for one in again.unjudged(journal, WORKLOADS)] == [candidate(0), candidate(2)]
    assert path.with_name("proposals.jsonl.damaged").read_bytes() == lines[1][20:]


def test_many_threads_lose_no_line(tmp_path: Path, journal: Journal) -> None:
    record = ProposalRecord(tmp_path / "proposals.jsonl")

    def add(number: int) -> None:
        for one in range(5):
            record.add(candidate(number * 5 + one), WORKLOADS)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ProposalRecord(tmp_path / "proposals.jsonl").unjudged(journal, WORKLOADS)) == 80
