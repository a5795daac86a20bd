"""A real, tiny engine process: it obeys, its death is told in its own last words, and it never outlives its client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import records
from gristmill.serving.paired import PairedResult
from gristmill.traces import Request
from tasks import serving_client
from tasks.errors import ServingError
from tasks.serving_client import Event, ServingProcess

TINY = ["--layers=2", "--hidden=64", "--intermediate=96", "--query-heads=4", "--key-heads=2", "--head-dim=16"]
TINY += ["--vocabulary=256", "--positions=512", "--threads=1"]
REQUESTS = tuple(Request(0.0, 5 + number, 4) for number in range(4))
PATIENCE_S = 60


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServingProcess, list[Event]]]:
    events: list[Event] = []
    log = tmp_path_factory.mktemp("serving") / "logs" / "serving.log"
    with ServingProcess(TINY, {}, log, events.append) as process:
        status = process.wait_ready()
        assert status["shape"]["layers"] == 2
        yield process, events


def test_status_says_who_it_is(engine) -> None:
    status = engine[0].status()
    assert status["generation"] == 0 and status["dtype"] == "float32"


def test_a_replay_serves_every_request(engine) -> None:
    process, events = engine
    summary = process.replay(REQUESTS, 2, seed=1)
    assert summary["finished"] == summary["requests"] == 4
    assert summary["generated_tokens"] == 16 and summary["tokens_per_s"] > 0
    assert process.replay(REQUESTS, 2, seed=1)["tokens_digest"] == summary["tokens_digest"]
    assert all(event["event"] == "progress" for event in events)


def test_a_paired_run_answers_for_every_concurrency(engine) -> None:
    answer = engine[0].paired(REQUESTS, (1, 2), pairs=2, block_steps=2)
    runs = [records.decode(PairedResult, run) for run in answer["runs"]]
    assert [run.concurrency for run in runs] == [1, 2]
    assert all(len(run.pairs) == 2 and run.differences == () and not any(run.hits.values()) for run in runs)


def test_what_it_cannot_do_is_an_error_and_it_goes_on(engine) -> None:
    process, _ = engine
    with pytest.raises(ServingError, match="flush: this process does not spool"):
        process.flush()
    with pytest.raises(ServingError, match="serving process, replay"):
        process.replay((), 2)
    assert process.status()["generation"] == 0


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        ServingProcess([*TINY, "--store=ftp://x"], {}, tmp_path / "log") as process,
        pytest.raises(ServingError, match=r"ended \(2\) during start: store address 'ftp://x'"),
    ):
        process.wait_ready()


SCRIPT = "import sys, json, time, os\nprint(json.dumps({'event': 'ready'}), flush=True)\n"


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A client whose engine is a script: `(code) -> ServingProcess`."""
    real = subprocess.Popen
    opened: list[ServingProcess] = []

    def start(code: str) -> ServingProcess:
        monkeypatch.setattr(
            serving_client.subprocess, "Popen", lambda argv, **k: real([sys.executable, "-S", "-c", SCRIPT + code], **k)
        )
        process = ServingProcess([], {}, tmp_path / "log")
        monkeypatch.setattr(serving_client.subprocess, "Popen", real)
        opened.append(process)
        process.wait_ready()
        return process

    yield start
    for process in opened:
        process.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("sys.stdin.readline(); sys.exit('out of memory')", r"ended \(1\) during replay: out of memory"),
        ("sys.stdin.readline(); os.kill(os.getpid(), 9)", r"ended \(-9\) during replay: it printed nothing"),
        ("sys.stdin.readline(); os.close(1); time.sleep(0.5); sys.exit('late')", r"ended \(1\) during replay: late"),
        ("os.close(1); sys.stdin.read(); sys.exit('closed')", r"ended \(-?\d+\) during replay"),
        ("os.close(0); os._exit(3)", r"ended \(3\) during replay"),
        ("sys.stdin.readline(); print('hello', flush=True); sys.stdin.read()", "hello.*not of its protocol"),
        ("sys.stdin.readline(); print('[1]', flush=True); sys.stdin.read()", "not of its protocol"),
    ],
)
def test_a_process_that_fails_mid_command_ends_the_wait(
    scripted, monkeypatch: pytest.MonkeyPatch, code: str, error: str
) -> None:
    monkeypatch.setattr(serving_client, "END_TIMEOUT_S", 0.1 if "read()" in code else 20.0)
    process = scripted(code)
    with pytest.raises(ServingError, match=error) as raised:
        process.replay(REQUESTS, 2)
    assert "\n" not in str(raised.value)


def test_after_its_death_every_command_is_refused(scripted) -> None:
    process = scripted("sys.stdin.readline(); sys.exit('gone')")
    for _ in range(3):
        with pytest.raises(ServingError, match="gone"):
            process.status()
    process.close()
    process.close()


def test_one_that_does_not_end_by_itself_is_killed(scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_client, "END_TIMEOUT_S", 0.3)
    process = scripted("time.sleep(600)")
    process.close()
    assert process._process.returncode == -9


def test_the_engine_ends_when_its_client_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks.serving_client import ServingProcess\n"
        f"process = ServingProcess({TINY!r}, {{}}, Path({str(tmp_path)!r}) / 'log')\n"
        "process.wait_ready(); print(process._process.pid, flush=True); sys.stdin.read()"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(serving_client.__file__).parents[1])}
    client = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    with client:
        assert client.stdout is not None
        engine = int(client.stdout.readline())
        client.kill()
    deadline = time.monotonic() + PATIENCE_S
    while _alive(engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(engine)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
