"""The relay, the clock of a process, and that a second request or a busy store misses the target."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import polling
from benchmarks.figures import Outcome
from benchmarks.polling import POLLS, Course, Request, Window
from gristmill.errors import ObjectNotFoundError
from gristmill.s3_store import Endpoint, S3Store
from gristmill.store import NotModified, StoredObject
from tests.registry.endpoint import BUCKET, Honest, endpoint

CONDITIONAL = Request("GET", "/bucket/tuf/timestamp.json", conditional=True, status=304)
QUIET = Window(cpu_s=1.5, elapsed_s=15.0, polls=1000)
COURSE = Course((CONDITIONAL,) * POLLS, (Window(0.15, 15.0, 0),), (QUIET, replace(QUIET, cpu_s=1.6)), {"late": 2})


def test_a_relay_passes_reads_on_and_notes_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    with endpoint(Honest(tmp_path)) as store:
        target = int(store._at.url.rpartition(":")[2] if store._at.url else 0)
        with polling.relay(target) as (port, requests):
            through = S3Store(Endpoint(BUCKET, "", f"http://127.0.0.1:{port}", "us-east-1", "key", "secret"))
            found = through.get("a")
            assert isinstance(found, StoredObject)
            assert found.content == b"content"
            assert isinstance(through.get("a", found.etag), NotModified)
            with pytest.raises(ObjectNotFoundError):
                through.get("b")
    assert [(request.path, request.conditional, request.status) for request in requests] == [
        ("/bucket/a", False, 200),
        ("/bucket/a", True, 304),
        ("/bucket/b", False, 404),
    ]


def test_processor_time_is_that_of_the_process() -> None:
    before, began = polling.processor_s(os.getpid()), time.process_time()
    while time.process_time() - began < 0.1:
        pass
    assert polling.processor_s(os.getpid()) - before >= 0.08


def test_one_conditional_request_and_an_idle_store() -> None:
    requests, cpu = polling.figures(COURSE)
    assert (requests.measured, requests.verdict) == (1.0, Outcome.MET)
    assert cpu.measured == pytest.approx(100 * 3.1 / 30)
    assert cpu.verdict is Outcome.MET
    assert "polls/s of 1.40 ms" in cpu.note  # (3.1 s - 0.3 s of its own) / 2000 polls
    assert "0 failed; the store" in cpu.note
    assert "2 failed before, while all started at once; 2 x late" in cpu.note


@pytest.mark.parametrize(
    "course",
    [
        replace(COURSE, requests=(CONDITIONAL,) * (POLLS + 1)),
        replace(COURSE, requests=(replace(CONDITIONAL, conditional=False, status=200),) * POLLS),
        replace(COURSE, busy=(QUIET, replace(QUIET, cpu_s=3.2))),
        replace(COURSE, busy=(QUIET, replace(QUIET, failures=1)), failures={"late": 1}),
    ],
)
def test_anything_more_misses(course: Course) -> None:
    assert Outcome.MISSED in [row.verdict for row in polling.figures(course)]
