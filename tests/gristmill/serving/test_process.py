"""The serving process as its parent sees it: JSON lines in, JSON lines out, gone when standard input closes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from gristmill.errors import GristmillError
from gristmill.serving.protocol import PairedCommand, ReplayCommand, parse_command

ROOT = Path(__file__).resolve().parents[3]
SHAPE = {
    "layers": 2,
    "hidden": 64,
    "intermediate": 96,
    "query-heads": 4,
    "key-heads": 2,
    "head-dim": 16,
    "vocabulary": 128,
    "positions": 256,
}
SIZES = [*(f"--{name}={size}" for name, size in SHAPE.items()), "--threads=1"]
REQUESTS = [{"arrival_s": 0.1 * i, "prompt_tokens": 3 + i, "generated_tokens": 5} for i in range(6)]
LIMIT_S = 120


class Process:
    """A serving process and its answers; killed if it outlives the test."""

    def __init__(self, *flags: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "gristmill.serving", *SIZES, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._watchdog = threading.Timer(LIMIT_S, self.popen.kill)
        self._watchdog.start()

    def send(self, **command: Any) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(command) + "\n")
        self.popen.stdin.flush()

    def answer(self, event: str, command_id: str | None = None) -> dict[str, Any]:
        """The next answer of that kind; others on the way must not be errors."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event and (command_id is None or found.get("id") == command_id):
                return found
            assert found["event"] != "error", found
        raise AssertionError(f"no {event}: {self.popen.stderr.read() if self.popen.stderr else ''}")

    def close(self) -> int:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        return self.popen.wait(LIMIT_S)

    def end(self) -> None:
        self._watchdog.cancel()
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    (tmp_path / "store").mkdir()
    made = Process("--store", f"file://{tmp_path}/store", "--cache-dir", str(tmp_path / "cache"))
    yield made
    made.end()


def test_few_steps_of_an_engine_that_rested_leave_a_sequence(process: Process, tmp_path: Path) -> None:
    process.answer("ready")
    for _ in range(3):
        process.send(command="status", id="s")
        process.answer("result", "s")
    process.send(command="replay", id="r", requests=REQUESTS, concurrency=3)
    assert process.answer("result", "r")["result"]["finished"] == 6
    process.send(command="flush", id="f")
    (key,) = [key for key in process.answer("result", "f")["result"]["keys"] if "/sequences/" in key]
    edges = pyarrow.parquet.read_table(tmp_path / "store" / key).to_pylist()
    assert ("rms_norm", "skinny_linear") in {(edge["producer"], edge["consumer"]) for edge in edges}


def test_round_trip(process: Process, tmp_path: Path) -> None:
    ready = process.answer("ready")
    assert (ready["generation"], ready["dtype"], ready["shape"]["layers"]) == (0, "float32", 2)

    process.send(command="replay", id="r1", requests=REQUESTS, concurrency=3, detail=True)
    first = process.answer("result", "r1")["result"]
    assert (first["finished"], first["generated_tokens"]) == (6, 30)
    assert [len(tokens) for tokens in first["tokens"]] == [5] * 6
    process.send(command="replay", id="r2", requests=REQUESTS, concurrency=2)
    second = process.answer("result", "r2")["result"]
    assert second["tokens_digest"] == first["tokens_digest"]
    assert second["tokens"] == []

    process.send(command="ab", id="a", requests=REQUESTS, concurrency=[2], pairs=3, block_steps=2)
    (run,) = process.answer("result", "a")["result"]["runs"]
    assert (len(run["pairs"]), run["compared_tokens"], run["differences"]) == (3, 12, [])

    process.send(command="flush", id="f")
    flushed = process.answer("result", "f")["result"]
    assert flushed["requests"] == 12
    assert flushed["calls"] > 0
    assert all((tmp_path / "store" / key).exists() for key in flushed["keys"])

    process.send(command="replay", id="b1", requests=[{"arrival_s": 0.0, "prompt_tokens": 300, "generated_tokens": 1}])
    assert "256 together" in process.answer("error", "b1")["message"]
    process.send(command="dance", id="b2")
    assert "expected an object whose command is one of" in process.answer("error", "b2")["message"]
    process.send(command="replay", id="b3", requests="all")
    assert "command replay.requests" in process.answer("error", "b3")["message"]

    process.send(command="quit", id="q")
    assert process.answer("result", "q")["result"]["fleet"] == "demo"
    assert process.popen.wait(LIMIT_S) == 0


def test_closing_standard_input_ends_a_running_replay(process: Process, tmp_path: Path) -> None:
    process.answer("ready")
    requests = [{"arrival_s": 0.0, "prompt_tokens": 5, "generated_tokens": 200}] * 2000
    process.send(command="replay", id="long", requests=requests, concurrency=2)
    process.answer("progress", "long")
    process.send(command="status", id="meanwhile")
    process.answer("result", "meanwhile")
    assert process.close() == 0
    assert list((tmp_path / "store").rglob("*.parquet"))  # the last flush


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--store", "ftp://nowhere"], "ftp"),
        (["--store", "file:///tmp"], "--cache-dir"),
        (
            ["--store", "file:///tmp", "--root-file", "/absent/root.json", "--cache-dir", "/tmp/any"],
            "/absent/root.json",
        ),
    ],
)
def test_a_bad_start_is_one_line_and_2(flags: list[str], said: str) -> None:
    process = Process(*flags)
    try:
        assert process.popen.wait(LIMIT_S) == 2
        assert process.popen.stderr is not None
        last = process.popen.stderr.read().strip().splitlines()[-1]
        assert said in last
    finally:
        process.end()


def test_commands_are_parsed_strictly() -> None:
    replay = parse_command(json.dumps({"command": "replay", "requests": REQUESTS}))
    assert isinstance(replay, ReplayCommand)
    assert len(replay.requests) == 6
    paired = parse_command(json.dumps({"command": "ab", "requests": [], "concurrency": [1, 2]}))
    assert isinstance(paired, PairedCommand)
    assert paired.concurrency == (1, 2)
    for line in ("", "[]", "null", "{", '{"command": 3}', '{"command": "replay"}', '{"command": "quit", "now": true}'):
        with pytest.raises(GristmillError):
            parse_command(line)
