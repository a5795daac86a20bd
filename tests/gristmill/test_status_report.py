from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gristmill.directory_store import DirectoryStore
from gristmill.errors import MalformedRecordError
from gristmill.status_report import StatusReport, read_reports, report, report_key
from gristmill.trust import Channel

CHANNEL = Channel("canary", "chat", "llama", "hw")


def status(host: str, generation: int) -> StatusReport:
    return StatusReport(host, "canary", generation, {"rms_norm.float32": 7}, {}, {}, (), "2026-12-01T00:00:00+00:00")


def test_the_latest_of_each_host(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for host, generation in (("a" * 64, 1), ("b" * 64, 1), ("a" * 64, 2)):
        report(store, CHANNEL, status(host, generation))
    report(store, dataclasses.replace(CHANNEL, fleet="other"), status("c" * 64, 9))
    assert read_reports(store, CHANNEL) == [status("a" * 64, 2), status("b" * 64, 1)]
    assert read_reports(store, dataclasses.replace(CHANNEL, name="stable")) == read_reports(store, CHANNEL)


def test_a_malformed_report_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put(report_key(CHANNEL, "x"), b"{}")
    with pytest.raises(MalformedRecordError, match=r"reports/chat/llama/hw/x\.json"):
        read_reports(store, CHANNEL)
