"""A serving process follows a real, signed channel while it serves: promotion, a bad kernel, rollback."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.hardware import local_cpu
from gristmill.sidecar import main as sidecar
from gristmill.status_report import StatusReport, read_reports
from gristmill.trust import Channel
from registry.rollback import roll_back
from tests.gristmill.publisher import Publisher

ROOT = Path(__file__).resolve().parents[3]
CHANNEL = Channel("canary", "demo", "reference", local_cpu().key)
SHAPE = "--layers=2 --hidden=64 --intermediate=96 --query-heads=4 --key-heads=2 --head-dim=16 --vocabulary=128"
FLAGS = ("--threads=1", "--channel=canary", "--poll-s=0.1")
LIMIT_S = 90


class Follower:
    """A serving process in the middle of an endless replay, and the registry that it follows."""

    def __init__(self, folder: Path, sidecar: bool = False) -> None:
        publisher = Publisher(folder, CHANNEL)
        self.store, self.keyring, self.promote = publisher.store, publisher.keyring, publisher.promote
        self.where = [f"--root-file={publisher.root_file}", f"--cache-dir={folder}/cache"]
        if not sidecar:
            self.where.append(f"--store={self.store.url}")
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "gristmill.serving", *SHAPE.split(), *self.where, *FLAGS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._watchdog = threading.Timer(LIMIT_S, self.popen.kill)
        self._watchdog.start()

    def send(self, **command: Any) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(command) + "\n")
        self.popen.stdin.flush()

    def until(self, *events: str) -> dict[str, Any]:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] in events:
                return found
        raise AssertionError(f"the process ended before any of {events}")

    def hits(self) -> dict[str, int]:
        self.send(command="status", id="s")
        return {entry["candidate"]: entry["hits"] for entry in self.until("result")["result"]["entries"]}

    def latest_report(self) -> StatusReport:
        (received,) = read_reports(self.store, CHANNEL)
        assert received.report is not None, received.flaw
        return received.report

    def end(self) -> None:
        self._watchdog.cancel()
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    made = Follower(tmp_path)
    yield made
    made.end()


def test_promotion_refusal_and_rollback_while_serving(follower: Follower, compile_kernel: Callable[..., Path]) -> None:
    assert follower.until("ready")["generation"] == 0
    requests = [{"arrival_s": 0.0, "prompt_tokens": 5, "generated_tokens": 100}] * 3000
    follower.send(command="replay", id="endless", requests=requests, concurrency=2)

    first, good = follower.promote(compile_kernel("rms_norm").read_bytes())
    assert follower.until("swap", "refusal") == {"event": "swap", "generation": good, "previous": 0, "entries": 1}
    follower.until("progress")
    assert follower.hits()[first] > 0

    bad, number = follower.promote(compile_kernel("rms_norm", "WRONG_AFTER=0").read_bytes())
    refusal = follower.until("swap", "refusal")
    assert (refusal["event"], refusal["candidate"], refusal["generation"]) == ("refusal", bad, number)
    assert follower.until("swap") == {"event": "swap", "generation": number, "previous": good, "entries": 0}
    assert follower.hits() == {}, "what the bad entry covered is the engine's"

    second, number = follower.promote(compile_kernel("rms_norm", "REFUSE_AFTER=1000000000").read_bytes())
    assert follower.until("swap", "refusal")["generation"] == number
    follower.until("progress")
    assert follower.hits()[second] > 0

    roll_back(follower.store, follower.keyring, CHANNEL, to=good)
    assert (rolled := follower.until("swap", "rollback", "refusal"))["event"] == "rollback", rolled
    follower.until("progress")
    assert follower.hits()[first] > 0

    while (latest := follower.latest_report()).work.decode_tokens == 0:  # made at the very moment of the swap
        follower.until("progress")
    assert latest.channel == latest.follows == "canary"
    assert [refused.candidate for refused in latest.refusals] == [bad]
    assert latest.work.of("rms_norm.float32").mismatches == 0

    roll_back(follower.store, follower.keyring, CHANNEL, to=0)
    assert follower.until("swap", "rollback")["event"] == "rollback"
    assert follower.hits() == {}
    assert follower.popen.stdin is not None
    follower.popen.stdin.close()
    assert follower.popen.wait(LIMIT_S) == 0
    (last,) = [received.report for received in read_reports(follower.store, CHANNEL)]
    assert last is not None and last.closing and last.process == latest.process


def test_behind_a_sidecar(tmp_path: Path, compile_kernel: Callable[..., Path]) -> None:
    """A process without a store swaps in what the sidecar took, and its reports go out with the sidecar's next poll."""
    follower = Follower(tmp_path, sidecar=True)
    once = [*follower.where, f"--store={follower.store.url}", "--once"]
    once += ["--fleet=demo", "--model=reference", "--channel=canary"]
    try:
        assert follower.until("ready")["generation"] == 0
        candidate, number = follower.promote(compile_kernel("rms_norm").read_bytes())
        assert sidecar(once) == 0
        assert follower.until("swap", "refusal") == {"event": "swap", "generation": number, "previous": 0, "entries": 1}
        assert set(follower.hits()) == {candidate}
        assert follower.popen.stdin is not None
        follower.popen.stdin.close()
        assert follower.popen.wait(LIMIT_S) == 0
        assert sidecar(once) == 0
        (received,) = read_reports(follower.store, CHANNEL)
        assert received.report is not None and received.report.generation == number and received.report.closing
    finally:
        follower.end()
