from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import limits, records
from gristmill.directory_store import DirectoryStore
from gristmill.errors import StoreUnreachableError
from gristmill.status_report import (
    READERS,
    Refused,
    StatusReport,
    TableCounts,
    Work,
    parse_report,
    read_reports,
    report,
    report_key,
)
from gristmill.store import MAX_OBJECT_BYTES, NotModified, StoredObject
from gristmill.trust import Channel

CHANNEL = Channel("canary", "chat", "llama", "hw")
COUNTS = st.builds(TableCounts, *[st.integers(0, 1 << 40)] * 8)
WORK = st.builds(Work, st.dictionaries(st.sampled_from("abc"), COUNTS), st.integers(0, 99), st.integers(0, 99))


def status(host: str, generation: int, worker: str = "") -> StatusReport:
    return StatusReport(
        host=host,
        worker=worker,
        process="p1",
        follows="auto",
        channel="canary",
        generation=generation,
        work=Work({"rms_norm.float32": TableCounts(hits=7, timed_calls=1, timed_ns=900)}, 40, 10**9),
        refusals=(Refused(3, "softmax", "c" * 64, "elements differ"),),
        problem="",
        kill="",
        closing=False,
        swapped_utc="2026-12-02T00:00:00+00:00",
        created_utc="2026-12-02T00:01:00+00:00",
    )


@given(WORK, WORK)
def test_work_adds_up(one: Work, other: Work) -> None:
    assert (one + other - other).tables.items() >= one.tables.items()
    assert (one + other).decode_ns == one.decode_ns + other.decode_ns
    assert not (one + other - one).has_negative
    assert (one - dataclasses.replace(one, decode_tokens=one.decode_tokens + 1)).has_negative


class BusyStore(DirectoryStore):
    """Holds each reader until as many are there as may be; counts how many there were at once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.full, self.lock = threading.Barrier(READERS), threading.Lock()
        self.now = self.most = 0
        self.reads: list[str] = []

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        with self.lock:
            self.reads.append(key)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self.full.wait(60)
            return super().get(key, etag, max_bytes)
        finally:
            with self.lock:
                self.now -= 1


def test_reports_are_read_side_by_side_each_once_in_order_and_never_too_many(tmp_path: Path) -> None:
    """A thousand of them one by one would take the watch longer than its interval. The barrier would break if fewer
    were read at a time."""
    store = BusyStore(tmp_path)
    names = [f"{number:03}" for number in range(4 * READERS)]
    for name in names:
        report(store, CHANNEL, status(name, 1))
    assert [one.name for one in read_reports(store, CHANNEL)] == names
    assert store.most == READERS and sorted(store.reads) == [report_key(CHANNEL, name) for name in names]


def test_a_store_that_fails_in_the_middle_ends_the_reading(tmp_path: Path) -> None:
    class Failing(DirectoryStore):
        def get(self, key: str, etag: str | None = None, max_bytes: int = 0) -> StoredObject | NotModified:
            if "007" in key:
                raise StoreUnreachableError("gone")
            return super().get(key, etag, max_bytes)

    store = Failing(tmp_path)
    for number in range(20):
        report(store, CHANNEL, status(f"{number:03}", 1))
    with pytest.raises(StoreUnreachableError):
        list(read_reports(store, CHANNEL))


def test_a_single_table_that_fell_is_negative() -> None:
    assert (Work() - Work({"a": TableCounts(timed_ns=1)})).has_negative
    assert not Work().has_negative


def test_the_latest_of_each_process(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for host, generation in (("a" * 64, 1), ("b" * 64, 1), ("a" * 64, 2)):
        report(store, CHANNEL, status(host, generation))
    report(store, CHANNEL, status("a" * 64, 3, worker="rank1"))
    report(store, dataclasses.replace(CHANNEL, fleet="other"), status("c" * 64, 9))
    found = list(read_reports(store, CHANNEL))
    assert [one.report for one in found] == [status("a" * 64, 2), status("a" * 64, 3, "rank1"), status("b" * 64, 1)]
    assert [one.flaw for one in found] == ["", "", ""]
    assert [one.report for one in read_reports(store, dataclasses.replace(CHANNEL, name="stable"))] == [
        one.report for one in found
    ]


def test_old_ones_are_not_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for host in ("a", "b"):
        report(store, CHANNEL, status(host, 1))
    os.utime(tmp_path / report_key(CHANNEL, "a"), (1000.0, 1000.0))
    assert next((one.name, one.written_s) for one in read_reports(store, CHANNEL)) == ("a", 1000.0)
    assert [one.name for one in read_reports(store, CHANNEL, since_s=2000.0)] == ["b"]


@pytest.mark.parametrize(
    ("content", "flaw"),
    [
        (b"", "not JSON"),
        (b"{}", "version None, expected 2"),
        (b"[]", "version None, expected 2"),
        (b'{"schema_version":1,"host":"x"}', "version 1, expected 2; give hosts and pipeline the same release"),
        (b'{"schema_version":2}', "field 'host' is missing"),
        (b"[" * 200_000, "not JSON"),
        (b" " * (limits.MAX_REPORT_BYTES + 1), "longer than"),
        (records.canonical_json(status("other", 1)), "claims to be of 'other'"),
        (records.canonical_json(status("x", 1)).replace(b"900", b"NaN"), "found nan, expected an integer"),
        (records.canonical_json(status("x", 1)).replace(b"900", b"1e3"), "found 1000.0, expected an integer"),
    ],
)
def test_what_is_no_report_is_told_in_one_line_beside_the_others(tmp_path: Path, content: bytes, flaw: str) -> None:
    store = DirectoryStore(tmp_path)
    store.put(report_key(CHANNEL, "x"), content)
    report(store, CHANNEL, status("y", 1))
    bad, good = read_reports(store, CHANNEL)
    assert bad.name == "x" and bad.report is None and flaw in bad.flaw and "\n" not in bad.flaw
    assert good.report == status("y", 1)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_no_json_breaks_the_reader(value: object) -> None:
    from gristmill.errors import MalformedRecordError

    with pytest.raises(MalformedRecordError):
        parse_report(json.dumps(value).encode())
